"""The same message by pydantic-ai's AG-UI adapter, from a model that is a function."""

from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, Response
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.ui.ag_ui import AGUIAdapter

EVENTS = 2000

app = FastAPI()


async def _words(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    del messages, info

    for _ in range(EVENTS):
        yield "a few words "


_agent = Agent(FunctionModel(stream_function=_words))


@app.post("/agent")
async def agent(request: Request) -> Response:
    """Answer with one long message."""
    return await AGUIAdapter.dispatch_request(request, agent=_agent)
