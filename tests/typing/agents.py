"""What users' type checkers see of AG-UI agents; checked, never run."""

from collections.abc import AsyncGenerator
from typing import Any, assert_type

from ag_ui.core import BaseEvent, RunAgentInput
from pydantic import BaseModel

from fastapi_carmy import AgentRouter
from fastapi_carmy.agui import (
    AgUiInput,
    MessageHandle,
    RunContext,
    RunOutcome,
    StepHandle,
    ToolCallHandle,
    run_events,
)
from fastapi_carmy.agui.testing import collect

router = AgentRouter()


class Cart(BaseModel):
    items: list[str] = []


@router.agui("/chat", state=Cart)
async def clerk(run: RunContext[Cart], limit: int = 3) -> RunOutcome | None:
    assert_type(run.state, Cart)
    assert_type(run.last_user_text, str | None)
    assert_type(await run.say("hi"), str)
    await run.set_state(Cart())
    await run.update_state(lambda cart: Cart(items=[*cart.items, "tea"]))

    async with run.message() as message:
        _ = assert_type(message, MessageHandle)

    with run.step("s") as step:
        _ = assert_type(step, StepHandle)
        _ = assert_type(step.tool_call("t"), ToolCallHandle)

    call = await run.tool_call("t")
    _ = assert_type(call, ToolCallHandle)
    assert_type(call.parse_args(Cart), Cart)
    assert_type(await call.result_json({"a": 1}), str)
    assert_type(await run.until_cancelled(run.say("x")), str | None)

    return run.interrupt(reason="r") if limit else None


async def checks(run: RunContext[Any], run_input: AgUiInput) -> None:
    # The decorator returns the agent itself.
    assert_type(await clerk(run, 4), RunOutcome | None)
    assert_type(run_input, RunAgentInput)
    assert_type(run_events(clerk, run_input), AsyncGenerator[BaseEvent])
    assert_type(await collect(clerk), list[BaseEvent])
