"""What an execution reports while it lives, in the order of carmy/1, section 2.3."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi_carmy.result import ExecutionResult

__all__ = (
    "Event",
    "ExecutionCompleted",
    "ExecutionStarted",
    "ToolCompleted",
    "ToolProgress",
    "ToolStarted",
)


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """Always first."""

    execution_id: str
    tool: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """The tool is about to run."""

    execution_id: str
    tool: str


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """How far the tool has come, as it says itself."""

    execution_id: str
    tool: str
    progress: float
    total: float | None = None
    message: str | None = None
    partial: object = None
    has_partial: bool = False
    """Whether `partial` was given; it may be `None` itself."""


@dataclass(frozen=True, slots=True)
class ToolCompleted:
    """Sent exactly when `ToolStarted` was."""

    execution_id: str
    tool: str
    duration_ms: int
    ok: bool


@dataclass(frozen=True, slots=True)
class ExecutionCompleted:
    """Always last; carries the whole answer."""

    result: "ExecutionResult"


Event = ExecutionStarted | ToolStarted | ToolProgress | ToolCompleted | ExecutionCompleted
