"""Whatever an agent sends, its client gets a whole run."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import anyio
import jsonpatch
from ag_ui import core
from ag_ui.core import BaseEvent
from ag_ui.encoder import EventEncoder
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from fastapi_carmy.agui import AgUiError, ProtocolViolationError, RunContext, Verifier
from fastapi_carmy.agui.encode import EVENT_CLASSES, encode_event, format_frame
from fastapi_carmy.agui.state import StatePublisher, StateType
from fastapi_carmy.agui.testing import collect, run_input

Ctx = RunContext[Any]

IDS = st.sampled_from(["a", "b"])
TEXT = st.text(max_size=5)
TAGS = st.sampled_from([None, None, "s1"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)

EVENTS: st.SearchStrategy[BaseEvent] = st.one_of(
    st.builds(core.TextMessageStartEvent, messageId=IDS, subagentRunId=TAGS),
    st.builds(core.TextMessageContentEvent, messageId=IDS, delta=TEXT, subagentRunId=TAGS),
    st.builds(core.TextMessageEndEvent, messageId=IDS),
    st.builds(core.TextMessageChunkEvent, messageId=st.none() | IDS, delta=TEXT),
    st.builds(core.ToolCallStartEvent, toolCallId=IDS, toolCallName=TEXT),
    st.builds(core.ToolCallEndEvent, toolCallId=IDS),
    st.builds(core.ToolCallResultEvent, toolCallId=IDS, messageId=IDS, content=TEXT),
    st.builds(core.StepStartedEvent, stepName=IDS, subagentRunId=TAGS),
    st.builds(core.StepFinishedEvent, stepName=IDS, subagentRunId=TAGS),
    st.builds(core.ReasoningStartEvent, messageId=IDS),
    st.builds(core.ReasoningEndEvent, messageId=IDS),
    st.builds(core.SubagentStartedEvent, subagentRunId=IDS, name=TEXT),
    st.builds(core.SubagentFinishedEvent, subagentRunId=IDS),
    st.builds(core.CustomEvent, name=TEXT, value=JSON),
    st.builds(core.StateSnapshotEvent, snapshot=JSON),
    st.builds(core.RunStartedEvent, threadId=IDS, runId=IDS),
    st.builds(core.RunErrorEvent, message=TEXT),
    st.just(core.RunFinishedEvent(thread_id="thread-1", run_id="run-1")),
)


CHANGES = {"START": 1, "STARTED": 1, "END": -1, "FINISHED": -1, "ERROR": -1}


def is_whole(events: Iterable[BaseEvent]) -> bool:
    """Whether a run starts and ends once, by rules written anew for this test."""
    types = [event.type.value for event in events]
    ends = [kind for kind in types if kind in ("RUN_FINISHED", "RUN_ERROR")]
    return (
        types[0] == "RUN_STARTED"
        and types.count("RUN_STARTED") == 1
        and len(ends) == 1
        and types[-1] == ends[0]
    )


def everything_is_closed(events: Iterable[BaseEvent]) -> bool:
    """Whether each START has its END, counted per id."""
    open_items: dict[tuple[str, object], int] = {}
    for event in events:
        kind, _, phase = event.type.value.rpartition("_")
        change = CHANGES.get(phase, 0)
        if change and not kind.startswith("RUN"):
            told = event.model_dump()
            names = ("message_id", "tool_call_id", "step_name")
            tag = told.get("subagent_run_id")
            item = next((told[name] for name in names if name in told), tag)
            key = (kind, (item, tag if kind == "STEP" else None))
            open_items[key] = open_items.get(key, 0) + change
    return all(count == 0 for count in open_items.values())


def collected(agent: object, **options: Any) -> list[BaseEvent]:
    async def run() -> list[BaseEvent]:
        return await collect(agent, run_input(), **options)

    return anyio.run(run)


@settings(max_examples=200)
@given(st.lists(EVENTS, max_size=15), st.booleans(), st.booleans())
def test_a_run_is_whole_whatever_its_agent_sends(
    events: list[BaseEvent], verify: bool, stubborn: bool
) -> None:
    async def agent(run: Ctx) -> None:
        for event in events:
            try:
                run.emit(event)
            except AgUiError:
                if not stubborn:
                    raise

    seen = collected(agent, verify=verify)

    assert is_whole(seen)
    if seen[-1].type.value == "RUN_FINISHED" and verify:
        assert everything_is_closed(seen)


@settings(max_examples=200)
@given(st.lists(EVENTS | TEXT, max_size=15))
def test_a_run_is_whole_whatever_its_generator_yields(items: list[BaseEvent | str]) -> None:
    async def agent(run: Ctx) -> AsyncIterator[BaseEvent | str]:
        for item in items:
            yield item

    seen = collected(agent)

    assert is_whole(seen)
    if seen[-1].type.value == "RUN_FINISHED":
        assert everything_is_closed(seen)


@settings(max_examples=100)
@given(
    st.lists(EVENTS, max_size=6),
    st.lists(st.sampled_from(["drop", "twice", "pass", "raise"]), min_size=1, max_size=8),
)
def test_a_run_is_whole_whatever_its_transformers_do(
    events: list[BaseEvent], moods: list[str]
) -> None:
    class Moody:
        def __init__(self) -> None:
            self.count = 0

        def transform(self, event: BaseEvent) -> list[BaseEvent]:
            mood = moods[self.count % len(moods)]
            self.count += 1
            if mood == "raise":
                raise LookupError
            return {"drop": [], "twice": [event, event], "pass": [event]}[mood]

    async def agent(run: Ctx) -> None:
        await run.say("hi")
        for event in events:
            run.emit(event)

    assert is_whole(collected(agent, transformers=[Moody]))


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=25))
def test_a_refused_event_changes_nothing(events: list[BaseEvent]) -> None:
    strict, told = Verifier(), []
    for event in events:
        try:
            strict.check(event)
        except ProtocolViolationError:
            continue
        told.append(event)

    again = Verifier()
    for event in told:
        again.check(event)

    assert again.open_items == strict.open_items
    assert again.pending_tool_calls == strict.pending_tool_calls


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=25))
def test_everything_open_can_be_closed(events: list[BaseEvent]) -> None:
    verifier = Verifier(needs_start=False)
    for event in events:
        try:
            verifier.check(event)
        except ProtocolViolationError:
            continue
    if verifier.has_ended:
        return

    for event in verifier.closing_events():
        verifier.check(event)

    assert verifier.open_items == {}


@given(EVENTS, st.none() | st.dictionaries(TEXT, JSON, max_size=2), st.none() | st.integers(0, 9))
def test_the_bytes_are_the_sdks(event: BaseEvent, metadata: Any, timestamp: int | None) -> None:
    event.metadata, event.timestamp = metadata, timestamp

    assert encode_event(event) == EventEncoder().encode(event).encode()


def test_every_event_of_the_protocol_is_known() -> None:
    assert {event.model_fields["type"].default for event in EVENT_CLASSES} == set(core.EventType)


@given(st.text())
def test_a_frame_holds_any_text(text: str) -> None:
    frame = format_frame(text).decode()

    assert "\r" not in frame
    assert frame.endswith("\n\n")
    lines = frame[:-2].split("\n")
    assert all(line.startswith("data: ") for line in lines)
    told = text.replace("\r\n", "\n").replace("\r", "\n")
    assert "\n".join(line.removeprefix("data: ") for line in lines) == told


@settings(max_examples=300)
@given(st.lists(JSON, min_size=1, max_size=6))
def test_a_client_that_follows_has_the_agents_state(states: list[Any]) -> None:
    publisher = StatePublisher[Any](StateType())
    document: Any = None
    for state in states:
        event = publisher.publish(state)
        if isinstance(event, core.StateSnapshotEvent):
            document = event.snapshot
        elif isinstance(event, core.StateDeltaEvent):
            patch = event.model_dump(mode="json", by_alias=True)["delta"]
            document = jsonpatch.apply_patch(document, patch)
        written = StateType[Any]().dump(state)
        assert StateType[Any]().dump(document) == written or document == from_json(written)
