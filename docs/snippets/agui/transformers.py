import time
from collections.abc import Iterable
from typing import Any

from ag_ui.core import BaseEvent
from fastapi import FastAPI

from fastapi_carmy import AgentRouter
from fastapi_carmy.agui import FilterToolCalls, RunContext, ToolResultToState


def stamped(event: BaseEvent) -> Iterable[BaseEvent]:
    yield event.model_copy(update={"timestamp": int(time.time() * 1000)})


router = AgentRouter()


@router.agui(
    "/chat",
    transformers=[
        lambda: FilterToolCalls.deny("internal_debug"),
        lambda: ToolResultToState.snapshot("count_stock"),
        lambda: stamped,
    ],
)
async def counter(run: RunContext[Any]) -> None:
    async with run.tool_call("internal_debug") as call:
        await call.args("{}")
    async with run.tool_call("count_stock") as call:
        await call.args("{}")
        await call.result_json({"tea": 40, "pot": 5})


app = FastAPI()
app.include_router(router)
