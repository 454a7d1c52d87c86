from collections.abc import AsyncIterator
from typing import Any

from ag_ui.core import BaseEvent
from fastapi import FastAPI
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from pydantic_ai.ui.ag_ui import AGUIAdapter

from fastapi_carmy import AgentRouter
from fastapi_carmy.agui import RunContext

assistant = Agent(TestModel(custom_output_text="Tea is in stock."))
router = AgentRouter()


@router.agui("/assistant")
async def serve(run: RunContext[Any]) -> AsyncIterator[BaseEvent]:
    async for event in AGUIAdapter(assistant, run.input).run_stream():
        yield event


app = FastAPI()
app.include_router(router)
