"""The same message by this package, as events that an async generator yields."""

from collections.abc import AsyncIterator
from typing import Any

from ag_ui.core import (
    BaseEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
)
from anyio.lowlevel import checkpoint
from fastapi import FastAPI

from fastapi_carmy import AgentRouter
from fastapi_carmy.agui import RunContext

EVENTS = 2000

router = AgentRouter()


@router.agui("/agent")
async def agent(run: RunContext[Any], *, pause: bool = False) -> AsyncIterator[BaseEvent]:
    """Answer with one long message."""
    del run
    yield TextMessageStartEvent(message_id="m", role="assistant")
    for _ in range(EVENTS):
        yield TextMessageContentEvent(message_id="m", delta="a few words ")
        if pause:
            await checkpoint()
    yield TextMessageEndEvent(message_id="m")


app = FastAPI()
app.include_router(router)
