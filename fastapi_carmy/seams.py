"""What an execution is made with: its dependencies, and what all executions share."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi_carmy.audit import AuditSink
from fastapi_carmy.caller import Caller
from fastapi_carmy.context import AgentContext
from fastapi_carmy.errors import AgentError
from fastapi_carmy.policies import Policies
from fastapi_carmy.stores.base import IdempotencyStore
from fastapi_carmy.threads import LoopLimiter
from fastapi_carmy.tool import OnDisconnect, Tool
from fastapi_carmy.turns import Turns

__all__ = ("Home", "Opened", "Settings")


class Opened(Protocol):
    """A call's dependencies: opened step by step, closed together."""

    @property
    def caller(self) -> Caller | None:
        """Who calls; `None` when the host names nobody."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close."""
        ...

    async def guards(self, tool: Tool, context: Callable[[], AgentContext]) -> None:
        """Run the tool's own guards; `context` makes the execution's context if they ask.

        Raises:
            Exception: Whatever a guard refuses with.
        """
        ...

    async def dependencies(
        self, tool: Tool, context: Callable[[], AgentContext], arguments: dict[str, object]
    ) -> Mapping[str, object]:
        """Open the tool's remaining dependencies.

        Returns:
            Parameter name → value, for every parameter that is injected.
        """
        ...

    async def aclose(self, error: BaseException | None) -> None:
        """Close the tool's dependencies, then the guards', each seeing `error`.

        Raises:
            Exception: What a teardown raises; `error` itself is not raised again.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all executions of one router share."""

    store: IdempotencyStore
    policies: Policies
    turns: Turns
    limiter: LoopLimiter
    """Threads for sync tools."""
    translate: Callable[[Exception], AgentError | None]
    """Turns the host's own exceptions into data; `None` for unexpected ones."""
    nearest: Callable[[str, Caller], str | None]
    """Unknown tool name → the one most likely meant, of those that the caller gets to see."""
    timeout_seconds: float
    on_disconnect: OnDisconnect
    finish_seconds: float = 5.0
    """Limit for closing dependencies and recording, once the tool has returned."""
    audit: tuple[AuditSink, ...] = ()


class Home(Protocol):
    """Where executions live."""

    @property
    def settings(self) -> Settings:
        """What they share."""
        ...

    @property
    def ids(self) -> Iterator[str]:
        """What to call the next ones."""
        ...

    def leave(self, execution: Any) -> None:
        """Be told of an execution once nothing of it is left."""
        ...
