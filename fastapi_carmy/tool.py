"""A tool: what it declares, and how it is validated, run and answered for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NotRequired, Protocol, TypedDict

__all__ = (
    "Confirmation",
    "Effect",
    "Envelope",
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
    is_repeatable: bool = field(init=False, repr=False, compare=False)
    """Whether running it twice is safe: it has no effect, or says so itself."""
    is_cacheable: bool = field(init=False, repr=False, compare=False)
    """Whether a success may be cached by the agent."""
    needs_confirmation: bool = field(init=False, repr=False, compare=False)
    """Whether a person has to agree first. Source: carmy/1, section 4.4."""

    def __post_init__(self) -> None:
        """Work out once what every call asks."""
        has_no_effect = self.effect in (Effect.NONE, Effect.READ)
        needs_person = self.confirmation != "none" or self.effect == Effect.DESTRUCTIVE
        # The way a frozen dataclass sets its own fields.
        object.__setattr__(self, "is_repeatable", self.idempotent or has_no_effect)
        object.__setattr__(self, "is_cacheable", self.idempotent and has_no_effect)
        object.__setattr__(self, "needs_confirmation", needs_person)


class InvalidOutputError(Exception):
    """A tool returned what its output schema does not allow; the text is for the log."""


class Envelope(TypedDict):
    """What a call's body holds, once it is validated."""

    tool: str
    arguments: dict[str, object]
    """Validated, by parameter name."""
    request_id: NotRequired[object]
    """As sent."""


@dataclass(frozen=True, slots=True)
class Input:
    """Validates a call's envelope for one tool."""

    validate_json: Callable[[bytes], Envelope]
    """JSON → the envelope with validated arguments; raises `pydantic.ValidationError`.

    Envelope keys other than `tool`, `arguments` and `request_id` are refused.
    """
    takes_plain_only: bool = False
    """Whether the arguments are texts, integers and truth values, taken as they are."""


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
    call: Callable[..., Any]
    """Calls the function with everything by name: arguments, and what is injected."""
    plan: object
    """How its dependencies are solved; belongs to `injection`."""
    has_guards: bool = False
    has_dependencies: bool = False
    context_parameters: tuple[str, ...] = ()
    """Names of the parameters that take the `AgentContext` itself."""
    caller_parameters: tuple[str, ...] = ()
    """Names of the parameters that take the `Caller` itself."""

    has_injected: bool = field(init=False, repr=False, compare=False)
    """Whether it takes anything that is no argument."""

    def __post_init__(self) -> None:
        """Work out once what every call asks."""
        has_own = bool(self.context_parameters or self.caller_parameters)
        object.__setattr__(self, "has_injected", self.has_dependencies or has_own)
