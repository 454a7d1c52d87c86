"""A tool: what it declares, and how it is validated, run and answered for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

__all__ = (
    "Confirmation",
    "Effect",
    "Input",
    "InvalidOutputError",
    "OnDisconnect",
    "Output",
    "Tool",
    "ToolKind",
    "ToolSpec",
)

Confirmation = Literal["none", "required"]
OnDisconnect = Literal["cancel", "finish"]


class Effect(StrEnum):
    """What running a tool does to the world. Source: carmy/1, section 1.2."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    EXTERNAL_WRITE = "external_write"
    DESTRUCTIVE = "destructive"


class ToolKind(StrEnum):
    """How a tool's function is run."""

    ASYNC = "async"
    THREAD = "thread"
    ASYNC_GENERATOR = "async_generator"
    THREAD_GENERATOR = "thread_generator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What the catalog says of a tool, and the limits it runs under."""

    name: str
    description: str
    input_schema: Mapping[str, object]
    output_schema: Mapping[str, object]
    effect: Effect
    idempotent: bool = False
    parallel_safe: bool = False
    confirmation: Confirmation = "none"
    timeout_seconds: float | None = None
    """Deadline of one execution; `None` means the router's."""
    on_disconnect: OnDisconnect | None = None
    """What a hang-up does; `None` means the router's."""
    tags: tuple[str, ...] = ()

    @property
    def is_repeatable(self) -> bool:
        """Whether running it twice is safe: it has no effect, or says so itself."""
        return self.idempotent or self.effect in (Effect.NONE, Effect.READ)

    @property
    def is_cacheable(self) -> bool:
        """Whether a success may be cached by the agent."""
        return self.idempotent and self.effect in (Effect.NONE, Effect.READ)


class InvalidOutputError(Exception):
    """A tool returned what its output schema does not allow; the text is for the log."""


class Input(Protocol):
    """Validates a call's envelope for one tool."""

    def validate_json(self, body: bytes) -> dict[str, object]:
        """Return `{"tool": …, "arguments": {…}, …}` with validated arguments.

        Envelope keys other than `tool`, `arguments` and `request_id` are refused.

        Raises:
            pydantic.ValidationError: If anything in `body` does not fit.
        """
        ...


class Output(Protocol):
    """Validates and serialises what a tool returns."""

    def dump(self, value: object) -> bytes:
        """Return `value` as JSON bytes.

        Raises:
            InvalidOutputError: If it does not fit the output schema, or JSON can't hold it.
        """
        ...

    def dump_item(self, value: object) -> bytes:
        """Return one item of a generator's result as JSON bytes.

        Raises:
            InvalidOutputError: As `dump`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool, ready to run."""

    spec: ToolSpec
    input: Input
    output: Output
    kind: ToolKind
    bind: Callable[[dict[str, object]], Callable[[], object]]
    """Values by parameter name (arguments and injected ones) → the call, ready to be made."""
    plan: object
    """How its dependencies are solved; belongs to `injection`."""
    has_guards: bool = False
    has_dependencies: bool = False
    context_parameters: tuple[str, ...] = ()
    """Names of the parameters that take the `AgentContext` itself."""
    caller_parameters: tuple[str, ...] = ()
    """Names of the parameters that take the `Caller` itself."""

    @property
    def has_injected(self) -> bool:
        """Whether it takes anything that is no argument."""
        return bool(self.has_dependencies or self.context_parameters or self.caller_parameters)
