"""Transformers: what they drop, add and change, and that they can't break a run."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from ag_ui import core
from ag_ui.core import BaseEvent

from fastapi_carmy.agui.context import RunContext
from fastapi_carmy.agui.errors import ProtocolViolationError
from fastapi_carmy.agui.testing import assert_events, collect, open_context, run_input
from fastapi_carmy.agui.transform import Chain, FilterToolCalls, ToolResultToState, Transformer

Run = RunContext[Any]


def types(events: Iterable[BaseEvent]) -> list[str]:
    return [event.type.value for event in events]


def chain(transformer: Transformer) -> Callable[[Sequence[BaseEvent]], list[BaseEvent]]:
    made = Chain([lambda: transformer])
    return lambda events: [out for event in events for out in made.apply(event)]


def call(name: str, call_id: str = "c1", result: str = '{"hits":1}') -> list[BaseEvent]:
    return [
        core.ToolCallStartEvent(tool_call_id=call_id, tool_call_name=name),
        core.ToolCallArgsEvent(tool_call_id=call_id, delta="{}"),
        core.ReasoningEncryptedValueEvent(
            subtype="tool-call", entity_id=call_id, encrypted_value="x"
        ),
        core.ToolCallEndEvent(tool_call_id=call_id),
        core.ToolCallResultEvent(message_id="m", tool_call_id=call_id, content=result),
    ]


async def two_tools(run: Run) -> None:
    async with run.tool_call("search") as search:
        await search.args_json({"q": "x"})
        await search.result_json({"hits": 1})
    async with run.tool_call("internal_debug") as debug:
        await debug.args_json({"q": "internal_debug"})
        await debug.result("internal_debug")
    await run.say("One hit.")


@pytest.mark.spec("ag-ui I.120")
async def test_a_denied_tool_leaves_no_trace() -> None:
    events = await collect(two_tools, transformers=[lambda: FilterToolCalls.deny("internal_debug")])

    assert_events(
        events,
        [
            "RUN_STARTED",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ],
    )
    assert not any("internal_debug" in event.model_dump_json() for event in events)


@pytest.mark.spec("ag-ui I.121")
async def test_a_result_becomes_the_state() -> None:
    events = await collect(
        two_tools,
        transformers=[
            lambda: FilterToolCalls.allow("search"),
            lambda: ToolResultToState.snapshot("search").replacing(),
        ],
    )

    assert_events(
        events,
        [
            "RUN_STARTED",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            {"type": "STATE_SNAPSHOT", "snapshot": {"hits": 1}},
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            # The call was answered, though the client does not see it: nothing is pending.
            {"type": "RUN_FINISHED", "outcome": {"type": "success", "pendingToolCallIds": []}},
        ],
    )


@pytest.mark.spec("ag-ui I.122")
async def test_a_stamp_reaches_every_event() -> None:
    def stamp(event: BaseEvent) -> list[BaseEvent]:
        return [event.model_copy(update={"timestamp": 7})]

    events = await collect(two_tools, transformers=[lambda: stamp])

    assert {event.timestamp for event in events} == {7}


@pytest.mark.spec("ag-ui I.123")
def test_only_listed_tools_pass_an_allow_list() -> None:
    through = chain(FilterToolCalls.allow("search"))
    listed = call("search", "c1")
    other = core.CustomEvent(name="x", value=1)
    value = core.ReasoningEncryptedValueEvent(
        subtype="message", entity_id="c2", encrypted_value="x"
    )

    assert through([*listed, *call("other", "c2"), other, value]) == [*listed, other, value]


@pytest.mark.spec("ag-ui I.123")
def test_an_id_that_is_used_again_is_judged_again() -> None:
    through = chain(FilterToolCalls.deny("secret"))

    assert through(call("secret")) == []
    assert types(through(call("search"))) == types(call("search"))


@pytest.mark.spec("ag-ui I.123")
def test_a_promoted_result_is_kept_unless_it_is_replaced() -> None:
    *rest, result = call("search")

    kept = chain(ToolResultToState.snapshot("search"))([*rest, result])
    replaced = chain(ToolResultToState.snapshot("search").replacing())([*rest, result])

    assert types(kept) == [*types(rest), "TOOL_CALL_RESULT", "STATE_SNAPSHOT"]
    assert types(replaced) == [*types(rest), "STATE_SNAPSHOT"]


@pytest.mark.spec("ag-ui I.123")
def test_a_patch_becomes_a_delta() -> None:
    told = call("search", result='[{"op":"add","path":"/a","value":1}]')

    *_, delta = chain(ToolResultToState.delta("search"))(told)

    assert isinstance(delta, core.StateDeltaEvent)
    assert delta.model_dump(mode="json")["delta"] == [{"op": "add", "path": "/a", "value": 1}]


@pytest.mark.spec("ag-ui I.123")
@pytest.mark.parametrize(
    ("transformer", "result"),
    [
        (ToolResultToState.snapshot("search").replacing(), "no JSON"),
        (ToolResultToState.delta("search").replacing(), '{"a":1}'),
        (ToolResultToState.delta("search").replacing(), '[{"op":"fly"}]'),
        (ToolResultToState.snapshot("other").replacing(), '{"a":1}'),
    ],
)
def test_a_result_that_is_no_state_passes(transformer: Transformer, result: str) -> None:
    told = call("search", result=result)

    assert chain(transformer)(told) == told


def test_a_result_in_one_text_part_is_promoted_and_in_more_is_not() -> None:
    start = call("search")[0]
    part = core.TextPart(type="text", text='{"a":1}')
    one = core.ToolCallResultEvent(message_id="m", tool_call_id="c1", content=[part])
    two = core.ToolCallResultEvent(message_id="m", tool_call_id="c1", content=[part, part])

    assert len(chain(ToolResultToState.snapshot("search"))([start, one])) == 3
    assert len(chain(ToolResultToState.snapshot("search"))([start, two])) == 2


def test_a_call_told_in_chunks_is_promoted_too() -> None:
    opening = core.ToolCallChunkEvent(tool_call_id="c1", tool_call_name="search")
    more = core.ToolCallChunkEvent(delta="{}")
    other = core.ToolCallChunkEvent(tool_call_id="c1", tool_call_name="other")
    result = call("search")[-1]

    assert len(chain(ToolResultToState.snapshot("search"))([opening, more, result])) == 4
    assert len(chain(ToolResultToState.snapshot("search"))([opening, other, result])) == 3


@pytest.mark.spec("ag-ui I.124")
def test_a_denied_call_in_chunks_is_dropped_whole() -> None:
    def chunk(call_id: str | None, name: str | None, tag: str | None = None) -> BaseEvent:
        return core.ToolCallChunkEvent(
            tool_call_id=call_id, tool_call_name=name, delta="x", subagent_run_id=tag
        )

    through = chain(FilterToolCalls.deny("secret"))
    text = core.TextMessageChunkEvent(message_id="m", delta="x")
    kept = [chunk("c2", "search"), chunk(None, None)]

    assert through([chunk("c1", "secret"), chunk(None, None), text]) == [text]
    assert through(kept) == kept
    assert through([chunk("c3", "secret", "s1"), chunk(None, None, "s1")]) == []
    assert through([chunk(None, None, "s2")]) == []
    assert through([chunk("c1", None)]) == []


@pytest.mark.spec("ag-ui I.127")
def test_what_a_transformer_makes_is_verified() -> None:
    def twice(event: BaseEvent) -> list[BaseEvent]:
        return [event, event]

    run, received = open_context(transformers=[lambda: twice])

    with pytest.raises(ProtocolViolationError, match="duplicate-start"):
        _ = run.message()

    assert types(received.drain()) == ["TEXT_MESSAGE_START"]


async def test_each_transformer_gets_what_the_one_before_made() -> None:
    def split(event: BaseEvent) -> Iterable[BaseEvent]:
        if isinstance(event, core.TextMessageContentEvent):
            for letter in event.delta:
                yield event.model_copy(update={"delta": letter})
        else:
            yield event

    def upper(event: BaseEvent) -> Iterable[BaseEvent]:
        if isinstance(event, core.TextMessageContentEvent):
            event = event.model_copy(update={"delta": event.delta.upper()})
        return [event]

    async def agent(run: Run) -> None:
        await run.say("ab")

    events = await collect(agent, transformers=[lambda: split, lambda: upper])

    deltas = [e.delta for e in events if isinstance(e, core.TextMessageContentEvent)]
    assert deltas == ["A", "B"]


async def test_a_transformer_is_made_for_each_run() -> None:
    class Number:
        def __init__(self) -> None:
            self.count = 0

        def transform(self, event: BaseEvent) -> Iterable[BaseEvent]:
            self.count += 1
            return [event.model_copy(update={"timestamp": self.count})]

    for _ in range(2):
        events = await collect(two_tools, transformers=[Number])
        assert [event.timestamp for event in events] == list(range(1, len(events) + 1))


async def test_what_a_transformer_kept_back_goes_out_before_the_end() -> None:
    class Late:
        def __init__(self) -> None:
            self.kept: list[BaseEvent] = []

        def transform(self, event: BaseEvent) -> Iterable[BaseEvent]:
            if isinstance(event, core.CustomEvent):
                self.kept.append(event)
                return []
            return [event]

        def finish(self) -> list[BaseEvent]:
            return self.kept

    async def agent(run: Run) -> None:
        await run.custom("app.x", 1)
        await run.say("hi")

    events = await collect(agent, transformers=[Late])

    assert types(events)[-2:] == ["CUSTOM", "RUN_FINISHED"]


@pytest.mark.parametrize("dropped", ["RUN_STARTED", "RUN_FINISHED", "RUN_ERROR"])
async def test_the_start_and_the_end_can_not_be_dropped(dropped: str) -> None:
    def drop(event: BaseEvent) -> list[BaseEvent]:
        return [] if event.type.value == dropped else [event]

    async def agent(run: Run) -> None:
        if dropped == "RUN_ERROR":
            raise KeyError

    events = await collect(agent, transformers=[lambda: drop])

    assert_events(
        events, ["RUN_STARTED", "RUN_ERROR" if dropped == "RUN_ERROR" else "RUN_FINISHED"]
    )


async def test_nothing_gets_before_the_start_or_behind_the_end() -> None:
    def surround(event: BaseEvent) -> list[BaseEvent]:
        custom = core.CustomEvent(name="app.x", value=1)
        return [custom, event, custom]

    async def agent(run: Run) -> None:
        return None

    events = await collect(agent, transformers=[lambda: surround])

    assert_events(events, ["RUN_STARTED", "CUSTOM", "CUSTOM", "CUSTOM", "RUN_FINISHED"])


@pytest.mark.parametrize("at", ["RUN_STARTED", "TEXT_MESSAGE_CONTENT", "RUN_FINISHED"])
async def test_a_transformer_that_raises_fails_the_run(at: str) -> None:
    def break_at(event: BaseEvent) -> list[BaseEvent]:
        if event.type.value == at:
            raise LookupError("secret")
        return [event]

    async def agent(run: Run) -> None:
        with suppress(LookupError):
            await run.say("hi")

    events = await collect(agent, transformers=[lambda: break_at])

    assert_events(events)
    assert events[0].type.value == "RUN_STARTED"
    last = events[-1]
    assert isinstance(last, core.RunErrorEvent)
    assert last.code == "AGENT_ERROR"
    assert "secret" not in last.message


async def test_a_transformer_that_always_raises_still_leaves_a_whole_stream() -> None:
    def broken(event: BaseEvent) -> list[BaseEvent]:
        raise LookupError

    async def agent(run: Run) -> None:
        raise AssertionError("never entered")

    assert_events(await collect(agent, transformers=[lambda: broken]), ["RUN_STARTED", "RUN_ERROR"])


async def test_a_broken_finish_fails_the_run() -> None:
    class Broken:
        def transform(self, event: BaseEvent) -> Iterable[BaseEvent]:
            return [event]

        def finish(self) -> list[BaseEvent]:
            raise LookupError

    async def agent(run: Run) -> None:
        return None

    assert_events(await collect(agent, transformers=[Broken]), ["RUN_STARTED", "RUN_ERROR"])


async def test_a_kept_back_event_that_is_refused_is_left_out() -> None:
    class Late:
        def transform(self, event: BaseEvent) -> Iterable[BaseEvent]:
            return [event]

        def finish(self) -> list[BaseEvent]:
            return [core.TextMessageEndEvent(message_id="nobody")]

    async def agent(run: Run) -> None:
        return None

    assert_events(await collect(agent, transformers=[Late]), ["RUN_STARTED", "RUN_FINISHED"])


async def test_changed_ids_of_the_run_do_not_win() -> None:
    def rename(event: BaseEvent) -> list[BaseEvent]:
        return [event.model_copy(update={"run_id": "another"})]

    async def agent(run: Run) -> None:
        return None

    events = await collect(agent, run_input(), transformers=[lambda: rename])

    assert_events(events, run_input=run_input())


async def test_a_dropped_end_of_an_item_fails_the_run() -> None:
    def drop(event: BaseEvent) -> list[BaseEvent]:
        return [] if isinstance(event, core.TextMessageEndEvent) else [event]

    async def agent(run: Run) -> None:
        await run.say("hi")

    events = await collect(agent, transformers=[lambda: drop])

    last = events[-1]
    assert isinstance(last, core.RunErrorEvent)
    assert last.code == "PROTOCOL_VIOLATION"


def test_only_transformers_are_taken() -> None:
    with pytest.raises(TypeError, match="transform"):
        Chain([lambda: 7])  # type: ignore[list-item,return-value]
