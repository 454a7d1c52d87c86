"""The same message by this package, verification on."""

from typing import Any

from anyio.lowlevel import checkpoint
from fastapi import FastAPI

from fastapi_carmy import AgentRouter
from fastapi_carmy.agui import RunContext

EVENTS = 2000

router = AgentRouter()


@router.agui("/agent")
async def agent(run: RunContext[Any], *, pause: bool = False) -> None:
    """Answer with one long message."""
    async with run.message() as message:
        for _ in range(EVENTS):
            await message.delta("a few words ")
            if pause:
                await checkpoint()


app = FastAPI()
app.include_router(router)
