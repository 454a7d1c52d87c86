"""What type checkers of users see; read by mypy and pyright, never run."""

from collections.abc import Awaitable, Callable
from typing import assert_type

from fastapi_carmy import AgentError, AgentRouter, Caller, CurrentCaller, Effect, ErrorCategory
from fastapi_carmy.result import ExecutionResult
from fastapi_carmy.tool import ToolSpec

agent = AgentRouter(server="shop", tags=["agent"])


@agent.tool(effect="write", idempotent=True)
async def create_order(sku: str, quantity: int = 1) -> list[str]:
    """Place an order."""
    return [sku] * quantity


@agent.tool(effect=Effect.READ)
def count() -> int:
    """Count."""
    return 1


def caller_of(caller: CurrentCaller) -> Caller:
    """Return the caller."""
    return caller


async def check() -> None:
    """Hold the decorator, and what a router answers, to their types."""
    assert_type(await create_order("TEA-001"), list[str])
    assert_type(count(), int)
    takes_the_function: Callable[[str, int], Awaitable[list[str]]] = create_order
    del takes_the_function

    assert_type(agent.tools, tuple[ToolSpec, ...])
    assert_type(agent.tools_version, str)
    result = await agent.execute("create_order", {"sku": "TEA-001"}, caller=Caller("anna"))
    assert_type(result, ExecutionResult)
    assert_type(result.execution_id, str)
    assert_type(result.error, AgentError | None)

    error = AgentError("OUT_OF_STOCK", "None is left.", ErrorCategory.CONFLICT)
    assert_type(error.category, ErrorCategory)
    assert_type(error.status_code, int)
