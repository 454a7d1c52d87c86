"""The order of events: each rule of AG-UI 1.0, on a bare context and on the verifier."""

from collections.abc import Mapping, Sequence

import pytest
from ag_ui import core
from ag_ui.core import BaseEvent

from fastapi_carmy.agui.errors import EventError, ProtocolViolationError
from fastapi_carmy.agui.testing import run_input
from fastapi_carmy.agui.verify import Verifier


def run_started() -> BaseEvent:
    return core.RunStartedEvent(thread_id="thread-1", run_id="run-1")


def run_finished(**fields: object) -> BaseEvent:
    return core.RunFinishedEvent.model_validate(
        {"threadId": "thread-1", "runId": "run-1", **fields}
    )


def run_error() -> BaseEvent:
    return core.RunErrorEvent(message="x")


def text_start(message: str = "m1", tag: str | None = None) -> BaseEvent:
    return core.TextMessageStartEvent(message_id=message, subagent_run_id=tag)


def text(message: str = "m1", tag: str | None = None) -> BaseEvent:
    return core.TextMessageContentEvent(message_id=message, delta="x", subagent_run_id=tag)


def text_end(message: str = "m1", tag: str | None = None) -> BaseEvent:
    return core.TextMessageEndEvent(message_id=message, subagent_run_id=tag)


def text_chunk(
    message: str | None = "m1",
    tag: str | None = None,
    role: str | None = None,
    name: str | None = None,
) -> BaseEvent:
    return core.TextMessageChunkEvent.model_validate(
        {"messageId": message, "delta": "x", "subagentRunId": tag, "role": role, "name": name}
    )


def call_start(
    call: str = "c1", tag: str | None = None, parent: str | None = None, name: str = "search"
) -> BaseEvent:
    return core.ToolCallStartEvent(
        tool_call_id=call, tool_call_name=name, parent_message_id=parent, subagent_run_id=tag
    )


def call_args(call: str = "c1", tag: str | None = None) -> BaseEvent:
    return core.ToolCallArgsEvent(tool_call_id=call, delta="{}", subagent_run_id=tag)


def call_end(call: str = "c1", tag: str | None = None) -> BaseEvent:
    return core.ToolCallEndEvent(tool_call_id=call, subagent_run_id=tag)


def call_chunk(
    call: str | None = "c1",
    name: str | None = "search",
    tag: str | None = None,
    parent: str | None = None,
) -> BaseEvent:
    return core.ToolCallChunkEvent(
        tool_call_id=call,
        tool_call_name=name,
        delta="{}",
        subagent_run_id=tag,
        parent_message_id=parent,
    )


def result(call: str = "c1", message: str = "m9", tag: str | None = None) -> BaseEvent:
    return core.ToolCallResultEvent(
        message_id=message, tool_call_id=call, content="1", subagent_run_id=tag
    )


def span_start(message: str = "g1", tag: str | None = None) -> BaseEvent:
    return core.ReasoningStartEvent(message_id=message, subagent_run_id=tag)


def span_end(message: str = "g1", tag: str | None = None) -> BaseEvent:
    return core.ReasoningEndEvent(message_id=message, subagent_run_id=tag)


def thought_start(message: str = "g1", tag: str | None = None) -> BaseEvent:
    return core.ReasoningMessageStartEvent(
        message_id=message, role="reasoning", subagent_run_id=tag
    )


def thought(message: str = "g1", tag: str | None = None) -> BaseEvent:
    return core.ReasoningMessageContentEvent(message_id=message, delta="x", subagent_run_id=tag)


def thought_end(message: str = "g1", tag: str | None = None) -> BaseEvent:
    return core.ReasoningMessageEndEvent(message_id=message, subagent_run_id=tag)


def thought_chunk(message: str | None = "g1", tag: str | None = None) -> BaseEvent:
    return core.ReasoningMessageChunkEvent(message_id=message, delta="x", subagent_run_id=tag)


def step_start(name: str = "s", tag: str | None = None) -> BaseEvent:
    return core.StepStartedEvent(step_name=name, subagent_run_id=tag)


def step_end(name: str = "s", tag: str | None = None) -> BaseEvent:
    return core.StepFinishedEvent(step_name=name, subagent_run_id=tag)


def subagent(run: str = "s1", parent: str | None = None) -> BaseEvent:
    return core.SubagentStartedEvent(
        subagent_run_id=run, name="helper", parent_subagent_run_id=parent
    )


def subagent_end(run: str = "s1", **fields: object) -> BaseEvent:
    return core.SubagentFinishedEvent.model_validate({"subagentRunId": run, **fields})


def subagent_error(run: str = "s1") -> BaseEvent:
    return core.SubagentErrorEvent(subagent_run_id=run, message="x")


def snapshot() -> BaseEvent:
    return core.StateSnapshotEvent(snapshot={})


def custom() -> BaseEvent:
    return core.CustomEvent(name="x", value=None)


def encrypted(subtype: str, entity: str, tag: str | None) -> BaseEvent:
    return core.ReasoningEncryptedValueEvent.model_validate(
        {"subtype": subtype, "entityId": entity, "encryptedValue": "x", "subagentRunId": tag}
    )


def activity(message: str = "a1", tag: str | None = None, replace: bool | None = None) -> BaseEvent:
    return core.ActivitySnapshotEvent(
        message_id=message, activity_type="x", content={}, subagent_run_id=tag, replace=replace
    )


def activity_delta(message: str = "a1", tag: str | None = None) -> BaseEvent:
    return core.ActivityDeltaEvent(
        message_id=message, activity_type="x", patch=[], subagent_run_id=tag
    )


def messages(*told: Mapping[str, object]) -> BaseEvent:
    return core.MessagesSnapshotEvent.model_validate({"messages": list(told)})


def bare() -> Verifier:
    return Verifier(run_input(), needs_start=False)


def broken_rule(events: Sequence[BaseEvent], verifier: Verifier | None = None) -> str | None:
    """Return the rule that the last event breaks; all before it must be accepted."""
    verifier = verifier or bare()
    *before, last = events
    for event in before:
        verifier.check(event)
    try:
        verifier.check(last)
    except ProtocolViolationError as error:
        return error.rule if error.event_type == last.type.value else error.event_type
    return None


@pytest.mark.spec("ag-ui H.99")
def test_a_whole_valid_stream_is_accepted() -> None:
    verifier = Verifier(run_input())

    for event in [
        run_started(),
        step_start(),
        text_start(),
        text(),
        text_end(),
        span_start(),
        thought_start(),
        thought(),
        thought_end(),
        span_end(),
        call_start(),
        call_args(),
        call_end(),
        result(),
        snapshot(),
        custom(),
        step_end(),
        run_finished(),
    ]:
        verifier.check(event)

    assert verifier.has_ended


@pytest.mark.spec("ag-ui H.100")
def test_items_of_different_ids_may_overlap() -> None:
    events = [
        run_started(),
        text_start(),
        text(),
        call_start("c1"),
        call_start("c2"),
        call_args("c1"),
        call_args("c2"),
        call_args("c1"),
        call_end("c1"),
        call_args("c2"),
        call_end("c2"),
        text_end(),
        run_finished(),
    ]

    assert broken_rule(events) is None


@pytest.mark.spec("ag-ui H.101")
@pytest.mark.spec("ag-ui H.102")
@pytest.mark.parametrize(
    "event",
    [
        text(),
        text_end(),
        call_args(),
        call_end(),
        thought(),
        thought_end(),
        span_end(),
        step_end(),
        subagent_end(),
        subagent_error(),
    ],
    ids=lambda event: event.type.value,
)
def test_what_is_not_open_can_not_go_on_or_end(event: BaseEvent) -> None:
    assert broken_rule([event]) == "not-open"


@pytest.mark.spec("ag-ui H.103")
@pytest.mark.parametrize(
    "event",
    [text_start(), call_start(), span_start(), thought_start(), step_start(), subagent()],
    ids=lambda event: event.type.value,
)
def test_what_is_open_can_not_be_opened_again(event: BaseEvent) -> None:
    assert broken_rule([event, event]) == "duplicate-start"


@pytest.mark.spec("ag-ui H.103")
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (text_start(), text_end()),
        (call_start(), call_end()),
        (span_start(), span_end()),
        (thought_start(), thought_end()),
        (step_start(), step_end()),
    ],
    ids=lambda event: event.type.value,
)
def test_what_was_closed_may_be_opened_again(start: BaseEvent, end: BaseEvent) -> None:
    assert broken_rule([start, end, start]) is None


@pytest.mark.spec("ag-ui H.104")
def test_a_run_starts_once() -> None:
    assert broken_rule([run_started(), run_started()]) == "duplicate-run-started"


@pytest.mark.spec("ag-ui H.105")
@pytest.mark.parametrize(
    "event",
    [text_start(), call_start(), span_start(), thought_start(), step_start(), subagent()],
    ids=lambda event: event.type.value,
)
def test_a_run_finishes_only_when_everything_is_closed(event: BaseEvent) -> None:
    assert broken_rule([event, run_finished()]) == "open-at-finish"


@pytest.mark.spec("ag-ui H.106")
def test_a_run_may_fail_with_something_open() -> None:
    assert broken_rule([text_start(), run_error()]) is None


@pytest.mark.spec("ag-ui H.107")
def test_nothing_follows_the_end_but_one_late_failure() -> None:
    assert broken_rule([run_finished(), custom()]) == "run-ended"
    assert broken_rule([run_finished(), run_finished()]) == "run-ended"
    assert broken_rule([run_finished(), run_error()]) is None
    assert broken_rule([run_finished(), run_error(), run_error()]) == "run-ended"
    assert broken_rule([run_error(), run_started()]) == "run-ended"


@pytest.mark.spec("ag-ui H.108")
def test_a_result_needs_a_call_of_this_run_or_of_the_input() -> None:
    told = {
        "id": "a",
        "role": "assistant",
        "toolCalls": [
            {"id": "c-old", "type": "function", "function": {"name": "f", "arguments": ""}}
        ],
    }
    known = Verifier(run_input(messages=[told]), needs_start=False)

    assert broken_rule([result("c-nope")]) == "unknown-id"
    assert broken_rule([result("c-old")], known) is None
    assert broken_rule([messages(told), result("c-old")]) is None


@pytest.mark.spec("ag-ui H.109")
def test_a_call_ends_before_its_result() -> None:
    assert broken_rule([call_start(), result()]) == "out-of-order"


@pytest.mark.spec("ag-ui H.110")
def test_chunks_need_no_start() -> None:
    assert broken_rule([text_chunk(), call_chunk(), result()]) is None


@pytest.mark.spec("ag-ui H.111")
def test_a_refusal_names_event_rule_and_id() -> None:
    with pytest.raises(ProtocolViolationError) as caught:
        bare().check(text())

    assert "TEXT_MESSAGE_CONTENT" in str(caught.value)
    assert "not-open" in str(caught.value)
    assert '"m1"' in str(caught.value)
    assert caught.value.entity_id == "m1"


def test_a_refusal_at_the_end_lists_what_is_open() -> None:
    verifier = bare()
    verifier.check(text_start())
    verifier.check(step_start("look"))

    with pytest.raises(ProtocolViolationError, match="messages=") as caught:
        verifier.check(run_finished())

    assert "steps=['look']" in str(caught.value)


@pytest.mark.spec("ag-ui H.116")
def test_steps_belong_to_whoever_started_them() -> None:
    both = [step_start("tools"), step_start("tools", "s1")]

    assert broken_rule(both) is None
    assert broken_rule([step_start("tools"), step_end("tools", "s1")]) == "not-open"
    assert broken_rule([step_start("tools", ""), step_end("tools")]) == "not-open"


@pytest.mark.spec("ag-ui H.117")
def test_a_subagent_run_is_used_once() -> None:
    assert broken_rule([subagent(), subagent_end(), subagent()]) == "duplicate-start"
    assert broken_rule([subagent(), subagent_error(), subagent_end()]) == "not-open"
    assert broken_rule([subagent("s2", parent="s1")]) == "unknown-id"
    assert broken_rule([subagent(), subagent_end(), subagent("s2", parent="s1")]) is None


@pytest.mark.spec("ag-ui H.117")
@pytest.mark.parametrize(
    ("start", "go_on"),
    [
        (text_start, text),
        (text_start, text_end),
        (call_start, call_args),
        (call_start, call_end),
        (thought_start, thought),
        (thought_start, thought_end),
        (span_start, span_end),
    ],
)
def test_a_tag_names_the_opener_or_is_absent(start: object, go_on: object) -> None:
    assert callable(start)
    assert callable(go_on)

    assert broken_rule([start(tag="s1"), go_on(tag="s2")]) == "owner-mismatch"
    assert broken_rule([start(), go_on(tag="s1")]) == "owner-mismatch"
    assert broken_rule([start(tag="s1"), go_on()]) is None
    assert broken_rule([start(tag="s1"), go_on(tag="s1")]) is None


def test_what_is_opened_again_keeps_its_owner() -> None:
    closed = [text_start(tag="s1"), text_end()]

    assert broken_rule([*closed, text_start(tag="s2")]) == "owner-mismatch"
    assert broken_rule([*closed, text_start(), text(tag="s1")]) is None


def test_a_call_belongs_to_the_owner_of_its_message() -> None:
    parent = text_start(tag="s1")

    assert broken_rule([parent, call_start(tag="s2", parent="m1")]) == "owner-mismatch"
    assert broken_rule([parent, call_start(parent="m1"), call_args(tag="s1")]) is None
    assert broken_rule([parent, call_start(parent="m1"), call_args(tag="s2")]) == "owner-mismatch"
    assert broken_rule([parent, call_start(parent="unknown")]) is None


def test_a_call_that_is_opened_again_stays_where_it_was() -> None:
    first = [text_start("m1", tag="s1"), call_start(parent="m1"), call_end(), text_start("m2")]

    assert broken_rule([*first, call_start(parent="m2")]) == "owner-mismatch"
    assert broken_rule([*first, call_start()]) is None
    assert broken_rule([*first, call_start(tag="s1")]) is None


def test_an_encrypted_value_is_checked_against_what_it_belongs_to() -> None:
    assert broken_rule([call_start(tag="s1"), encrypted("tool-call", "c1", "s2")]) == (
        "owner-mismatch"
    )
    assert broken_rule([text_start(tag="s1"), encrypted("message", "m1", "s2")]) == (
        "owner-mismatch"
    )
    assert broken_rule([thought_start(tag="s1"), encrypted("message", "g1", "s2")]) == (
        "owner-mismatch"
    )
    assert broken_rule([thought_start(tag="s1"), encrypted("message", "g1", "s1")]) is None
    assert broken_rule([encrypted("message", "nobody", "s1")]) is None


def test_an_activity_is_owned_by_its_last_full_snapshot() -> None:
    assert broken_rule([activity(tag="s1"), activity_delta(tag="s2")]) == "owner-mismatch"
    assert broken_rule([activity(tag="s1"), activity(tag="s2"), activity_delta(tag="s2")]) is None
    assert broken_rule(
        [activity(tag="s1"), activity(tag="s2", replace=False), activity_delta(tag="s2")]
    ) == ("owner-mismatch")


def test_a_snapshot_of_the_conversation_tells_owners_anew() -> None:
    said = {"id": "m1", "role": "assistant", "content": "x", "subagentRunId": "s1"}
    shown = {"id": "a1", "role": "activity", "activityType": "x", "content": {}}
    thinking = {"id": "g1", "role": "reasoning", "content": "x", "subagentRunId": "s1"}

    assert broken_rule([messages(said), text_start(tag="s2")]) == "owner-mismatch"
    assert broken_rule([messages(shown), activity_delta(tag="s2")]) == "owner-mismatch"
    assert broken_rule([messages(thinking), span_start(tag="s2")]) == "owner-mismatch"
    assert broken_rule([text_start(), text_end(), messages(said), text_start(tag="s1")]) is None


def test_a_result_can_not_take_over_a_message_that_is_open() -> None:
    call = [call_start(), call_end()]

    assert broken_rule([text_start(tag="s1"), *call, result(message="m1")]) == "owner-mismatch"
    assert broken_rule([text_start(), *call, result(message="m1")]) is None
    assert broken_rule([*call, result(message="m1"), text_start(tag="s1")]) == "owner-mismatch"


@pytest.mark.spec("ag-ui H.119")
def test_a_span_and_its_message_may_share_an_id() -> None:
    events = [span_start(), thought_start(), thought(), thought_end(), span_end(), run_finished()]

    assert broken_rule(events) is None


def test_the_first_event_starts_or_fails_the_run() -> None:
    assert broken_rule([text_start()], Verifier(run_input())) == "run-not-started"
    assert broken_rule([run_error()], Verifier(run_input())) is None


def test_a_run_has_the_ids_of_its_input() -> None:
    other = core.RunStartedEvent(thread_id="thread-1", run_id="another")

    assert broken_rule([other]) == "run-ids"
    assert broken_rule([core.RunFinishedEvent(thread_id="x", run_id="run-1")]) == "run-ids"
    assert broken_rule([other], Verifier()) is None


def test_a_success_names_exactly_the_calls_without_a_result() -> None:
    calls = [call_start("c1"), call_end("c1"), call_start("c2"), call_end("c2"), result("c1")]
    told = run_finished(outcome={"type": "success", "pendingToolCallIds": ["c2"]})
    wrong = run_finished(outcome={"type": "success", "pendingToolCallIds": ["c1"]})

    assert broken_rule([*calls, told]) is None
    assert broken_rule([*calls, wrong]) == "pending-tool-calls"
    assert broken_rule([*calls, run_finished()]) is None


def test_a_run_with_a_suspended_subagent_is_no_success() -> None:
    suspended = [subagent(), subagent_end(outcome={"type": "suspended"})]
    asking = {"type": "interrupt", "interrupts": [{"id": "i", "reason": "r"}]}

    assert broken_rule([*suspended, run_finished()]) == "open-interrupt"
    assert broken_rule([*suspended, run_finished(outcome=asking)]) is None


def test_an_echoed_input_tells_owners() -> None:
    said = {"id": "m1", "role": "user", "content": "x", "subagentRunId": "s1"}
    start = core.RunStartedEvent(
        thread_id="thread-1", run_id="run-1", input=run_input(messages=[said])
    )

    assert broken_rule([start, text_start(tag="s2")]) == "owner-mismatch"


def test_only_events_of_the_protocol_are_taken() -> None:
    class Mine(core.CustomEvent):
        pass

    assert broken_rule([Mine(name="x", value=1)]) is None
    with pytest.raises(EventError):
        bare().check(core.BaseEvent(type=core.EventType.CUSTOM))


def test_a_refused_event_leaves_no_trace() -> None:
    verifier = bare()
    verifier.check(text_start())

    for _ in range(2):
        with pytest.raises(ProtocolViolationError):
            verifier.check(run_finished())

    verifier.check(text_end())
    verifier.check(run_finished())


# Chunks.


def test_the_first_chunk_names_its_stream() -> None:
    assert broken_rule([text_chunk(None)]) == "chunk-without-id"
    assert broken_rule([thought_chunk(None)]) == "chunk-without-id"
    assert broken_rule([call_chunk(None)]) == "chunk-without-id"
    assert broken_rule([call_chunk("c1", None)]) == "chunk-without-id"


@pytest.mark.spec("ag-ui L.141")
def test_later_chunks_need_no_id() -> None:
    events = [
        thought_chunk("think-1"),
        thought_chunk(None),
        thought_chunk(None),
        text_chunk("say-1"),
        text_chunk(None),
        text_chunk(None),
        text_chunk("say-2"),
        text_chunk(None),
        call_chunk("call-1"),
        call_chunk(None, None),
        text_chunk("say-1"),
        run_finished(),
    ]

    assert broken_rule(events) is None


def test_a_chunk_stream_ends_with_the_next_other_event() -> None:
    assert broken_rule([text_chunk(), custom(), text_chunk(None)]) == "chunk-without-id"
    assert broken_rule([text_chunk(), call_chunk(), text_chunk(None)]) == "chunk-without-id"
    assert broken_rule([text_chunk(), messages(), text_chunk(None)]) == "chunk-without-id"
    assert broken_rule([text_chunk(), activity(), text_chunk(None)]) is None
    assert broken_rule([text_chunk(), subagent(), text_chunk(None)]) is None


def test_a_chunk_may_repeat_but_not_change_what_was_said() -> None:
    assert broken_rule([text_chunk(), text_chunk(role="assistant")]) is None
    assert broken_rule([text_chunk(), text_chunk(role="user")]) == "chunk-mismatch"
    assert broken_rule([text_chunk(name="a"), text_chunk(None, name="b")]) == "chunk-mismatch"
    assert broken_rule([call_chunk(), call_chunk(None, "other")]) == "chunk-mismatch"
    assert broken_rule([call_chunk(), call_chunk(parent="m1")]) == "chunk-mismatch"


def test_one_item_is_not_told_in_both_forms() -> None:
    assert broken_rule([text_start(), text_chunk()]) == "mixed-forms"
    assert broken_rule([text_chunk(), text()]) == "mixed-forms"
    assert broken_rule([text_chunk(), text_end()]) == "mixed-forms"
    assert broken_rule([text_chunk(), text_start()]) == "mixed-forms"
    assert broken_rule([call_start(), call_chunk()]) == "mixed-forms"
    assert broken_rule([thought_start(), thought_chunk()]) == "mixed-forms"
    assert broken_rule([thought_start(), text_chunk("g1")]) is None


def test_each_subagent_streams_chunks_of_its_own() -> None:
    both = [text_chunk("m1", "s1"), text_chunk("m2", "s2")]

    assert broken_rule([*both, text_chunk(None, "s1"), text_chunk(None, "s2")]) is None
    assert broken_rule([*both, text_chunk(None)]) == "ambiguous-chunk"
    assert broken_rule([*both, text_chunk("m1", "s2")]) == "owner-mismatch"
    assert broken_rule([*both, text_chunk("m1")]) is None
    assert broken_rule([both[0], text_chunk(None)]) is None
    assert broken_rule([both[0], text_chunk("m2"), text_chunk(None)]) is None
    assert broken_rule([subagent(), both[0], subagent_end(), text_chunk(None, "s1")]) == (
        "chunk-without-id"
    )


def test_a_chunked_message_keeps_its_owner() -> None:
    said = [text_chunk("m1", "s1"), custom()]

    assert broken_rule([text_start(tag="s1"), text_end(), text_chunk("m1", "s2")]) == (
        "owner-mismatch"
    )
    assert broken_rule([*said, call_chunk(tag="s2", parent="m1")]) == "owner-mismatch"
    assert broken_rule(
        [text_chunk("m1", "s1"), call_start(), call_end(), result(message="m1")]
    ) == ("owner-mismatch")


def test_a_chunked_call_is_pending_until_its_result() -> None:
    verifier = bare()
    verifier.check(call_chunk("c1"))
    verifier.check(call_chunk("c2"))
    verifier.check(result("c1"))

    assert verifier.pending_tool_calls == ["c2"]


def test_what_closes_everything_is_accepted() -> None:
    verifier = bare()
    for event in [
        subagent("s1"),
        step_start("a"),
        step_start("b", "s1"),
        text_start(tag="s1"),
        span_start(),
        thought_start(),
        call_start(),
    ]:
        verifier.check(event)

    for event in verifier.closing_events():
        verifier.check(event)

    verifier.check(run_finished())
