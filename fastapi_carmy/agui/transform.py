"""What changes events on their way from the agent to the client, run by run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, Self, runtime_checkable

from ag_ui.core import (
    BaseEvent,
    ReasoningEncryptedValueEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    TextPart,
    ToolCallArgsEvent,
    ToolCallChunkEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from pydantic import ValidationError
from pydantic_core import from_json

__all__ = (
    "Chain",
    "FilterToolCalls",
    "ToolResultToState",
    "TransformFunction",
    "Transformer",
    "TransformerFactory",
)


@runtime_checkable
class Transformer(Protocol):
    """Turns each event of one run into none, one or several.

    It belongs to one run, so it may remember what it saw. It runs inside `emit` and
    never waits. Whoever drops the opening of an item drops the rest of it too. A
    `finish()` that returns events, if it has one, is asked before the run ends.
    """

    def transform(self, event: BaseEvent) -> Iterable[BaseEvent]:
        """Return what goes on instead of `event`, in order."""
        ...


TransformFunction = Callable[[BaseEvent], Iterable[BaseEvent]]
TransformerFactory = Callable[[], Transformer | TransformFunction]
"""Makes one run's transformer."""


class Chain:
    """One run's transformers: what one returns goes to the next."""

    __slots__ = ("_finishers", "_functions")

    def __init__(self, factories: Sequence[TransformerFactory] = ()) -> None:
        """Make each transformer anew."""
        made = [factory() for factory in factories]
        self._functions = [_function_of(transformer) for transformer in made]
        self._finishers = [getattr(transformer, "finish", None) for transformer in made]

    def __bool__(self) -> bool:
        return bool(self._functions)

    def apply(self, event: BaseEvent) -> list[BaseEvent]:
        """Return what goes on instead of `event`."""
        return self._from(0, [event])

    def finish(self) -> Iterator[BaseEvent]:
        """Yield what the transformers kept back."""
        for index, finish in enumerate(self._finishers):
            if finish is not None:
                yield from self._from(index + 1, list(finish()))

    def _from(self, index: int, events: list[BaseEvent]) -> list[BaseEvent]:
        for function in self._functions[index:]:
            events = [made for event in events for made in function(event)]

        return events


def _function_of(transformer: Transformer | TransformFunction) -> TransformFunction:
    if isinstance(transformer, Transformer):
        return transformer.transform

    if callable(transformer):
        return transformer

    raise TypeError(
        f"A transformer has transform(event), or is a function of an event, not {transformer!r}."
    )


class FilterToolCalls:
    """Keeps whole tool calls from the client, by the tool's name.

    A dropped call's result, chunks and encrypted value are dropped with it; an id that
    is used again is judged again.
    """

    __slots__ = ("_chunk_lanes", "_dropped", "_is_kept")

    def __init__(self, is_kept: Callable[[str], bool]) -> None:
        """Decide by any rule.

        Args:
            is_kept: Tool name → whether the client sees the call.
        """
        self._is_kept = is_kept
        self._dropped: set[str] = set()
        self._chunk_lanes: dict[str | None, str] = {}

    @classmethod
    def allow(cls, *names: str) -> Self:
        """Let only these tools' calls through."""
        return cls(frozenset(names).__contains__)

    @classmethod
    def deny(cls, *names: str) -> Self:
        """Keep these tools' calls back."""
        denied = frozenset(names)
        return cls(lambda name: name not in denied)

    def transform(self, event: BaseEvent) -> Iterable[BaseEvent]:
        """See `Transformer.transform`."""
        return () if self._drops(event) else (event,)

    def _drops(self, event: BaseEvent) -> bool:
        if isinstance(event, ToolCallStartEvent):
            return self._judge(event.tool_call_id, event.tool_call_name)

        if isinstance(event, ToolCallChunkEvent):
            return self._drops_chunk(event)

        if isinstance(event, ToolCallArgsEvent | ToolCallEndEvent | ToolCallResultEvent):
            return event.tool_call_id in self._dropped

        if isinstance(event, ReasoningEncryptedValueEvent):
            return event.subtype == "tool-call" and event.entity_id in self._dropped

        return False

    def _judge(self, call: str, name: str) -> bool:
        if self._is_kept(name):
            self._dropped.discard(call)
        else:
            self._dropped.add(call)

        return call in self._dropped

    def _drops_chunk(self, event: ToolCallChunkEvent) -> bool:
        call = event.tool_call_id

        if call is None:
            call = self._continued(event.subagent_run_id)
        else:
            self._chunk_lanes[event.subagent_run_id] = call

        if call is not None and event.tool_call_name is not None:
            return self._judge(call, event.tool_call_name)

        return call in self._dropped

    def _continued(self, owner: str | None) -> str | None:
        """Return the call that a chunk without id continues: its lane's, or the last one."""
        if owner in self._chunk_lanes:
            return self._chunk_lanes[owner]

        return next(reversed(self._chunk_lanes.values()), None)


class ToolResultToState:
    """Turns a tool's result into a state event, after the result or instead of it.

    A result that is not JSON (or, for `delta`, no JSON Patch) passes as it is.
    """

    __slots__ = ("_calls", "_is_delta", "_replaces", "_tool")

    def __init__(self, tool: str, *, is_delta: bool = False, replaces: bool = False) -> None:
        """Watch one tool.

        Args:
            tool: The tool's name.
            is_delta: Whether its result is a JSON Patch, not the whole state.
            replaces: Whether the result itself is kept back.
        """
        self._tool = tool
        self._is_delta = is_delta
        self._replaces = replaces
        self._calls: set[str] = set()

    @classmethod
    def snapshot(cls, tool: str) -> Self:
        """Take the tool's result as the whole state."""
        return cls(tool)

    @classmethod
    def delta(cls, tool: str) -> Self:
        """Take the tool's result as a JSON Patch of the state."""
        return cls(tool, is_delta=True)

    def replacing(self) -> Self:
        """Send the state event instead of the result."""
        return type(self)(self._tool, is_delta=self._is_delta, replaces=True)

    def transform(self, event: BaseEvent) -> Iterable[BaseEvent]:
        """See `Transformer.transform`."""
        if isinstance(event, ToolCallStartEvent | ToolCallChunkEvent):
            self._note(event)

        elif isinstance(event, ToolCallResultEvent) and event.tool_call_id in self._calls:
            promoted = self._promoted(event)

            if promoted is not None:
                return (promoted,) if self._replaces else (event, promoted)

        return (event,)

    def _note(self, event: ToolCallStartEvent | ToolCallChunkEvent) -> None:
        if event.tool_call_id is None or event.tool_call_name is None:
            return

        if event.tool_call_name == self._tool:
            self._calls.add(event.tool_call_id)
        else:
            self._calls.discard(event.tool_call_id)

    def _promoted(self, event: ToolCallResultEvent) -> BaseEvent | None:
        text = _text_of(event)

        if text is None:
            return None

        try:
            value: Any = from_json(text)

            if self._is_delta:
                return StateDeltaEvent(delta=value, subagent_run_id=event.subagent_run_id)
        except (ValueError, ValidationError):
            return None

        return StateSnapshotEvent(snapshot=value, subagent_run_id=event.subagent_run_id)


def _text_of(event: ToolCallResultEvent) -> str | None:
    content = event.content

    if isinstance(content, str):
        return content

    if len(content) == 1 and isinstance(content[0], TextPart):
        return content[0].text

    return None
