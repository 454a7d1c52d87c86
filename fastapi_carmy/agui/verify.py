"""The order of events that AG-UI 1.0 asks of a producer, checked one event at a time.

Longer than other modules, because each of the 31 events has its few lines here, and all
of them read and write the state of one run.
"""

from collections.abc import Callable
from typing import Any

from ag_ui import core

from fastapi_carmy.agui.attribution import Attribution, Owners, check_owner
from fastapi_carmy.agui.chunks import Chunk, Lanes
from fastapi_carmy.agui.errors import EventError
from fastapi_carmy.agui.rules import violation

__all__ = ("Verifier",)

_Open = dict[str, None]
"""The ids that are open, in the order of opening."""


class Verifier:
    """Follows one run's events, and refuses one that may not come now.

    A refused event leaves no trace, so the run can go on without it. Items are told
    apart by kind and id, and may overlap; what was closed may be opened again.
    """

    def __init__(
        self, run_input: core.RunAgentInput | None = None, *, needs_start: bool = True
    ) -> None:
        """Begin a run.

        Args:
            run_input: The run's input: its ids, and the messages and calls that are known.
            needs_start: Whether the first event must be RUN_STARTED or RUN_ERROR.
        """
        self._ids = None if run_input is None else (run_input.thread_id, run_input.run_id)
        self._needs_start = needs_start
        self._has_started = False
        self._end: type[core.BaseEvent] | None = None
        self._messages: _Open = {}
        self._reasoning: _Open = {}
        self._spans: _Open = {}
        self._calls: _Open = {}
        self._steps: dict[tuple[str | None, str], None] = {}
        self._subagents: dict[str, bool] = {}
        self._suspended = False
        self._lanes = Lanes()
        self._started_calls: dict[str, bool] = {}
        self._withheld: set[str] = set()
        self._owners = Attribution()
        self._checks = self._make_checks()

        if run_input is not None:
            self._owners.learn(run_input.messages, replace=False)

    @property
    def has_started(self) -> bool:
        """Whether RUN_STARTED was seen."""
        return self._has_started

    @property
    def has_ended(self) -> bool:
        """Whether RUN_FINISHED or RUN_ERROR was seen."""
        return self._end is not None

    @property
    def has_finished(self) -> bool:
        """Whether the end was RUN_FINISHED."""
        return self._end is core.RunFinishedEvent

    @property
    def pending_tool_calls(self) -> list[str]:
        """The calls that were started in this run and have no result, in order."""
        return [
            call
            for call, answered in self._started_calls.items()
            if not answered and call not in self._withheld
        ]

    @property
    def withholds_results(self) -> bool:
        """Whether a call has a result that the client does not see."""
        return any(not self._started_calls.get(call, True) for call in self._withheld)

    def note_answer(self, call: str) -> None:
        """Count a call as answered, whether or not the client sees the result."""
        self._withheld.add(call)

    @property
    def open_items(self) -> dict[str, list[str]]:
        """What is open now: kind → ids, in the order of opening; empty kinds are left out."""
        items = {
            "messages": list(self._messages),
            "reasoning": list(self._reasoning),
            "spans": list(self._spans),
            "calls": list(self._calls),
            "steps": [name for _, name in self._steps],
            "subagents": [name for name, is_open in self._subagents.items() if is_open],
        }

        return {kind: ids for kind, ids in items.items() if ids}

    def check_closed(self) -> None:
        """Refuse the end of a run while something is open.

        Raises:
            ProtocolViolationError: If something is.
        """
        items = self.open_items

        if items:
            still_open = ", ".join(f"{kind}={ids}" for kind, ids in items.items())
            raise violation("RUN_FINISHED", "open-at-finish", detail=f" [open: {still_open}]")

    def closing_events(self) -> list[core.BaseEvent]:
        """Return what closes everything that is open, the inner before the outer."""
        events: list[core.BaseEvent] = []
        events += [core.ReasoningMessageEndEvent(message_id=one) for one in self._reasoning]
        events += [core.ReasoningEndEvent(message_id=one) for one in self._spans]
        events += [core.TextMessageEndEvent(message_id=one) for one in self._messages]
        events += [core.ToolCallEndEvent(tool_call_id=one) for one in self._calls]
        events += [
            core.StepFinishedEvent(step_name=name, subagent_run_id=owner)
            for owner, name in reversed(self._steps)
        ]
        events += [
            core.SubagentErrorEvent(subagent_run_id=one, message="The subagent did not finish.")
            for one, is_open in reversed(self._subagents.items())
            if is_open
        ]

        return events

    def check(self, event: core.BaseEvent) -> None:
        """Record `event`, or refuse it.

        Raises:
            ProtocolViolationError: If it may not come now.
            EventError: If it is not an event of the protocol.
        """
        entry = self._checks.get(type(event)) or self._entry_of(event)

        if self._end is not None or not self._has_started:
            self._check_phase(event)

        entry[0](event)

        if self._lanes and entry[1] is not None:
            entry[1](event)

    # Everything below is keyed by class; a subclass of an event counts as that event.

    def _make_checks(self) -> "dict[type[core.BaseEvent], _Check]":
        own, everyone, nobody = self._close_own_lane, self._close_lanes, None

        return {
            core.RunStartedEvent: (self._run_started, everyone),
            core.RunFinishedEvent: (self._run_finished, everyone),
            core.RunErrorEvent: (self._run_error, everyone),
            core.StepStartedEvent: (self._step_started, own),
            core.StepFinishedEvent: (self._step_finished, own),
            core.TextMessageStartEvent: (self._message_start, own),
            core.TextMessageContentEvent: (self._message_content, own),
            core.TextMessageEndEvent: (self._message_end, own),
            core.TextMessageChunkEvent: (self._message_chunk, nobody),
            core.ToolCallStartEvent: (self._call_start, own),
            core.ToolCallArgsEvent: (self._call_args, own),
            core.ToolCallEndEvent: (self._call_end, own),
            core.ToolCallChunkEvent: (self._call_chunk, nobody),
            core.ToolCallResultEvent: (self._call_result, own),
            core.ReasoningStartEvent: (self._span_start, own),
            core.ReasoningEndEvent: (self._span_end, own),
            core.ReasoningMessageStartEvent: (self._reasoning_start, own),
            core.ReasoningMessageContentEvent: (self._reasoning_content, own),
            core.ReasoningMessageEndEvent: (self._reasoning_end, own),
            core.ReasoningMessageChunkEvent: (self._reasoning_chunk, nobody),
            core.ReasoningEncryptedValueEvent: (self._encrypted_value, nobody),
            core.MessagesSnapshotEvent: (self._messages_snapshot, everyone),
            core.ActivitySnapshotEvent: (self._activity_snapshot, nobody),
            core.ActivityDeltaEvent: (self._activity_delta, nobody),
            core.StateSnapshotEvent: (_anything, own),
            core.StateDeltaEvent: (_anything, own),
            core.CustomEvent: (_anything, own),
            core.RawEvent: (_anything, nobody),
            core.SubagentStartedEvent: (self._subagent_started, nobody),
            core.SubagentFinishedEvent: (self._subagent_finished, own),
            core.SubagentErrorEvent: (self._subagent_error, own),
        }

    def _entry_of(self, event: object) -> "_Check":
        for base in type(event).__mro__:
            entry = self._checks.get(base)

            if entry is not None:
                return entry

        raise EventError(f"{type(event).__name__} is no event of AG-UI.")

    def _close_own_lane(self, event: Any) -> None:
        self._lanes.close(event.subagent_run_id)

    def _close_lanes(self, event: core.BaseEvent) -> None:
        del event
        self._lanes.close_all()

    # The run.

    def _check_phase(self, event: core.BaseEvent) -> None:
        if self._end is not None:
            # A run may still fail after it was reported finished, once.
            if self._end is core.RunErrorEvent or not isinstance(event, core.RunErrorEvent):
                raise violation(event.type.value, "run-ended")

        elif self._needs_start and not isinstance(event, core.RunStartedEvent | core.RunErrorEvent):
            raise violation(event.type.value, "run-not-started")

    def _check_ids(self, event: core.RunStartedEvent | core.RunFinishedEvent) -> None:
        if self._ids is not None and self._ids != (event.thread_id, event.run_id):
            raise violation(event.type.value, "run-ids", event.run_id)

    def _run_started(self, event: core.RunStartedEvent) -> None:
        if self._has_started:
            raise violation("RUN_STARTED", "duplicate-run-started", event.run_id)

        self._check_ids(event)
        self._has_started = True

        if event.input is not None:
            self._owners.learn(event.input.messages, replace=False)

    def _run_finished(self, event: core.RunFinishedEvent) -> None:
        self._check_ids(event)

        self.check_closed()
        outcome = event.outcome

        if outcome is None or outcome.type == "success":
            if self._suspended:
                raise violation("RUN_FINISHED", "open-interrupt")

            pending = None if outcome is None else outcome.pending_tool_call_ids

            if pending is not None and pending != self.pending_tool_calls:
                raise violation("RUN_FINISHED", "pending-tool-calls")

        self._end = core.RunFinishedEvent

    def _run_error(self, event: core.RunErrorEvent) -> None:
        del event
        self._has_started = True
        self._end = core.RunErrorEvent

    # Messages, reasoning and tool calls: opened, continued, closed.

    def _open(self, event: Any, kind: str, opened: _Open, owners: Owners, entity: str) -> None:
        if entity in opened:
            raise violation(event.type.value, "duplicate-start", entity)

        if self._lanes and self._lanes.holds(kind, entity):
            raise violation(event.type.value, "mixed-forms", entity)

        check_owner(event, owners, entity)
        owners.setdefault(entity, event.subagent_run_id)
        opened[entity] = None

    def _need_open(self, event: Any, kind: str, opened: _Open, owners: Owners, entity: str) -> None:
        if entity not in opened:
            mixed = self._lanes.holds(kind, entity)
            raise violation(event.type.value, "mixed-forms" if mixed else "not-open", entity)

        if event.subagent_run_id is not None:
            check_owner(event, owners, entity)

    def _message_start(self, event: core.TextMessageStartEvent) -> None:
        self._open(event, "message", self._messages, self._owners.messages, event.message_id)

    def _message_content(self, event: core.TextMessageContentEvent) -> None:
        self._need_open(event, "message", self._messages, self._owners.messages, event.message_id)

    def _message_end(self, event: core.TextMessageEndEvent) -> None:
        self._need_open(event, "message", self._messages, self._owners.messages, event.message_id)
        del self._messages[event.message_id]

    def _span_start(self, event: core.ReasoningStartEvent) -> None:
        self._open(event, "span", self._spans, self._owners.reasoning, event.message_id)

    def _span_end(self, event: core.ReasoningEndEvent) -> None:
        self._need_open(event, "span", self._spans, self._owners.reasoning, event.message_id)
        del self._spans[event.message_id]

    def _reasoning_start(self, event: core.ReasoningMessageStartEvent) -> None:
        self._open(event, "reasoning", self._reasoning, self._owners.reasoning, event.message_id)

    def _reasoning_content(self, event: core.ReasoningMessageContentEvent) -> None:
        self._need_open(
            event, "reasoning", self._reasoning, self._owners.reasoning, event.message_id
        )

    def _reasoning_end(self, event: core.ReasoningMessageEndEvent) -> None:
        self._need_open(
            event, "reasoning", self._reasoning, self._owners.reasoning, event.message_id
        )
        del self._reasoning[event.message_id]

    def _call_start(self, event: core.ToolCallStartEvent) -> None:
        call = event.tool_call_id
        owner = self._owners.owner_of_call(event, call, event.parent_message_id)
        self._open(event, "call", self._calls, self._owners.calls, call)
        self._owners.calls[call] = owner
        self._started_calls[call] = False
        self._withheld.discard(call)

    def _call_args(self, event: core.ToolCallArgsEvent) -> None:
        self._need_open(event, "call", self._calls, self._owners.calls, event.tool_call_id)

    def _call_end(self, event: core.ToolCallEndEvent) -> None:
        self._need_open(event, "call", self._calls, self._owners.calls, event.tool_call_id)
        del self._calls[event.tool_call_id]

    def _call_result(self, event: core.ToolCallResultEvent) -> None:
        call, message = event.tool_call_id, event.message_id

        if call in self._calls:
            raise violation("TOOL_CALL_RESULT", "out-of-order", call)

        if call not in self._started_calls and call not in self._owners.known_calls:
            raise violation("TOOL_CALL_RESULT", "unknown-id", call)

        is_open = message in self._messages or self._lanes.holds("message", message)

        if is_open and self._owners.messages[message] != event.subagent_run_id:
            raise violation("TOOL_CALL_RESULT", "owner-mismatch", message)

        if call in self._started_calls:
            self._started_calls[call] = True

        # The result mints the tool's message, whoever had the id before.
        self._owners.messages[event.message_id] = event.subagent_run_id

    def _encrypted_value(self, event: core.ReasoningEncryptedValueEvent) -> None:
        self._owners.check_value(event)

    # Chunks.

    def _message_chunk(self, event: core.TextMessageChunkEvent) -> None:
        chunk = _chunk(event, "message", event.message_id, (event.role, event.name))
        self._take_chunk(event, chunk, self._messages, self._owners.messages)

    def _reasoning_chunk(self, event: core.ReasoningMessageChunkEvent) -> None:
        chunk = _chunk(event, "reasoning", event.message_id, (None, None))
        self._take_chunk(event, chunk, self._reasoning, self._owners.reasoning)

    def _call_chunk(self, event: core.ToolCallChunkEvent) -> None:
        said = (event.tool_call_name, event.parent_message_id)
        chunk = _chunk(event, "call", event.tool_call_id, said)
        opened = self._take_chunk(event, chunk, self._calls, self._owners.calls)

        if opened is not None:
            self._started_calls[opened] = False

    def _take_chunk(self, event: Any, chunk: Chunk, opened: _Open, owners: Owners) -> str | None:
        """Follow a chunk; return the id of the stream that it opens, if it does."""
        entity = chunk.entity_id

        if entity is not None and entity in opened:
            raise violation(chunk.event_type, "mixed-forms", entity)

        lane = self._lanes.lane_of(chunk)

        if self._lanes.continues(chunk, lane):
            return None

        if entity is None or (chunk.kind == "call" and chunk.first[0] is None):
            raise violation(chunk.event_type, "chunk-without-id", entity)

        if chunk.kind == "call":
            owners[entity] = self._owners.owner_of_call(event, entity, chunk.first[1])
        else:
            check_owner(event, owners, entity)
            owners.setdefault(entity, chunk.owner)

        self._lanes.open(chunk, lane, entity)

        return entity

    # The rest.

    def _step_started(self, event: core.StepStartedEvent) -> None:
        step = (event.subagent_run_id, event.step_name)

        if step in self._steps:
            raise violation("STEP_STARTED", "duplicate-start", event.step_name)

        self._steps[step] = None

    def _step_finished(self, event: core.StepFinishedEvent) -> None:
        step = (event.subagent_run_id, event.step_name)

        if step not in self._steps:
            raise violation("STEP_FINISHED", "not-open", event.step_name)

        del self._steps[step]

    def _subagent_started(self, event: core.SubagentStartedEvent) -> None:
        subagent, parent = event.subagent_run_id, event.parent_subagent_run_id

        # An id is one invocation's: it is used once in a run, also after it ended.
        if subagent in self._subagents:
            raise violation("SUBAGENT_STARTED", "duplicate-start", subagent)

        if parent is not None and parent not in self._subagents:
            raise violation("SUBAGENT_STARTED", "unknown-id", parent)

        self._subagents[subagent] = True

    def _subagent_finished(self, event: core.SubagentFinishedEvent) -> None:
        self._subagent_error(event)

        if event.outcome is not None and event.outcome.type == "suspended":
            self._suspended = True

    def _subagent_error(self, event: core.SubagentFinishedEvent | core.SubagentErrorEvent) -> None:
        if not self._subagents.get(event.subagent_run_id):
            raise violation(event.type.value, "not-open", event.subagent_run_id)

        self._subagents[event.subagent_run_id] = False

    def _activity_snapshot(self, event: core.ActivitySnapshotEvent) -> None:
        if event.message_id not in self._owners.activities or event.replace is not False:
            self._owners.activities[event.message_id] = event.subagent_run_id

    def _activity_delta(self, event: core.ActivityDeltaEvent) -> None:
        check_owner(event, self._owners.activities, event.message_id)

    def _messages_snapshot(self, event: core.MessagesSnapshotEvent) -> None:
        self._owners.learn(event.messages, replace=True)


_Check = tuple[Callable[[Any], None], Callable[[Any], None] | None]
"""What records an event, and what it does to chunk streams afterwards."""


def _anything(event: core.BaseEvent) -> None:
    del event


def _chunk(
    event: Any, kind: str, entity_id: str | None, first: tuple[str | None, str | None]
) -> Chunk:
    return Chunk(event.type.value, kind, entity_id, event.subagent_run_id, first)
