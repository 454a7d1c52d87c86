"""Messages, reasoning, calls, steps and subagents: opened, continued, closed once."""

from typing import Any

import pytest
from ag_ui import core
from pydantic import BaseModel, ValidationError

from fastapi_carmy.agui.context import RunContext
from fastapi_carmy.agui.errors import DisconnectedError, EventError, ProtocolViolationError
from fastapi_carmy.agui.testing import assert_events, collect, open_context, run_input

Run = RunContext[Any]


class Query(BaseModel):
    city: str


@pytest.mark.spec("ag-ui E.62")
async def test_a_whole_run_is_told_event_by_event() -> None:
    async def agent(run: Run) -> None:
        async with run.step("research") as step:
            await step.think("I should look this up.")
            async with step.tool_call("search") as call:
                await call.args_json({"q": "rust"})
                await call.result_json({"hits": 1})
            async with step.assistant_message() as message:
                await message.delta("Found ")
                await message.delta("one.")
            run.state["hits"] = 1
            await run.publish_state()

    events = await collect(agent, run_input(thread_id="t", run_id="r"))

    reasoning = {"messageId": "r-msg-1"}
    call = {"toolCallId": "r-call-1"}
    message = {"messageId": "r-msg-3"}
    assert_events(
        events,
        [
            {"type": "RUN_STARTED", "threadId": "t", "runId": "r", "protocolVersion": "1.0"},
            {"type": "STEP_STARTED", "stepName": "research"},
            {"type": "REASONING_START", **reasoning},
            {"type": "REASONING_MESSAGE_START", "role": "reasoning", **reasoning},
            {
                "type": "REASONING_MESSAGE_CONTENT",
                "delta": "I should look this up.",
                **reasoning,
            },
            {"type": "REASONING_MESSAGE_END", **reasoning},
            {"type": "REASONING_END", **reasoning},
            {"type": "TOOL_CALL_START", "toolCallName": "search", **call},
            {"type": "TOOL_CALL_ARGS", "delta": '{"q":"rust"}', **call},
            {"type": "TOOL_CALL_END", **call},
            {
                "type": "TOOL_CALL_RESULT",
                "messageId": "r-msg-2",
                "content": '{"hits":1}',
                "role": "tool",
                **call,
            },
            {"type": "TEXT_MESSAGE_START", "role": "assistant", **message},
            {"type": "TEXT_MESSAGE_CONTENT", "delta": "Found ", **message},
            {"type": "TEXT_MESSAGE_CONTENT", "delta": "one.", **message},
            {"type": "TEXT_MESSAGE_END", **message},
            {"type": "STATE_SNAPSHOT", "snapshot": {"hits": 1}},
            {"type": "STEP_FINISHED", "stepName": "research"},
            {"type": "RUN_FINISHED", "outcome": {"type": "success"}},
        ],
        run_input=run_input(thread_id="t", run_id="r"),
    )


@pytest.mark.spec("ag-ui F.77")
@pytest.mark.spec("ag-ui F.90")
async def test_a_message_that_nobody_ends_is_ended_by_the_run() -> None:
    async def agent(run: Run) -> None:
        message = run.message()
        await message.delta("x")

    assert_events(
        await collect(agent),
        [
            "RUN_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ],
    )


@pytest.mark.spec("ag-ui F.78")
async def test_reasoning_that_nobody_ends_is_ended_by_the_run() -> None:
    async def agent(run: Run) -> None:
        reasoning = await run.reasoning()
        await reasoning.delta("x")

    assert_events(
        await collect(agent),
        [
            "RUN_STARTED",
            "REASONING_START",
            "REASONING_MESSAGE_START",
            "REASONING_MESSAGE_CONTENT",
            "REASONING_MESSAGE_END",
            "REASONING_END",
            "RUN_FINISHED",
        ],
    )


@pytest.mark.spec("ag-ui F.79")
@pytest.mark.spec("ag-ui E.71")
async def test_a_call_without_a_result_is_the_clients_to_run() -> None:
    async def agent(run: Run) -> None:
        call = run.tool_call("pick")
        await call.args("{}")
        async with run.tool_call("search") as other:
            await other.result("1")

    assert_events(
        await collect(agent),
        [
            "RUN_STARTED",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_START",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "TOOL_CALL_END",
            {
                "type": "RUN_FINISHED",
                "outcome": {"type": "success", "pendingToolCallIds": ["run-1-call-1"]},
            },
        ],
    )


@pytest.mark.spec("ag-ui F.80")
async def test_steps_nest() -> None:
    async def agent(run: Run) -> None:
        async with run.step("outer") as outer:
            async with outer.step("inner") as inner:
                await inner.say("deep")
            await outer.say("shallow")

    steps = [
        (place, event.type.value, event.step_name)
        for place, event in enumerate(await collect(agent))
        if isinstance(event, core.StepStartedEvent | core.StepFinishedEvent)
    ]

    assert steps == [
        (1, "STEP_STARTED", "outer"),
        (2, "STEP_STARTED", "inner"),
        (6, "STEP_FINISHED", "inner"),
        (10, "STEP_FINISHED", "outer"),
    ]


@pytest.mark.spec("ag-ui F.81")
async def test_an_end_is_sent_once() -> None:
    run, received = open_context()
    async with run.message() as message:
        await message.end()
        await message.end()
    async with run.step("s") as step:
        await step.finish()
    async with run.reasoning() as reasoning:
        await reasoning.end()
    async with run.tool_call("t") as call:
        await call.end()
    async with run.subagent("helper") as helper:
        await helper.finish()
        await helper.fail("late")

    ends = [event.type.value for event in received.drain()]

    assert ends == [
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_END",
        "STEP_STARTED",
        "STEP_FINISHED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TOOL_CALL_START",
        "TOOL_CALL_END",
        "SUBAGENT_STARTED",
        "SUBAGENT_FINISHED",
    ]


@pytest.mark.spec("ag-ui F.82")
async def test_arguments_are_collected_and_parsed() -> None:
    run, _ = open_context()
    async with run.tool_call("weather") as call:
        await call.args('{"city":')
        with pytest.raises(ValidationError):
            call.parse_args(Query)
        await call.args('"Seoul"}')

        assert call.raw_args == '{"city":"Seoul"}'
        assert call.parse_args(Query) == Query(city="Seoul")
        assert call.parse_args() == {"city": "Seoul"}


@pytest.mark.spec("ag-ui F.83")
async def test_json_is_written_compactly_and_values_are_encrypted() -> None:
    run, received = open_context()
    async with run.reasoning() as reasoning:
        await reasoning.encrypted_value("abc")
    async with run.tool_call("weather") as call:
        await call.args_json(Query(city="Seoul"))
        await call.encrypted_value("def")
        assert await call.result_json({"a": [1, 2]}) == "run-1-msg-2"

    events = received.drain()

    values = [event for event in events if isinstance(event, core.ReasoningEncryptedValueEvent)]
    assert [(v.subtype, v.entity_id, v.encrypted_value) for v in values] == [
        ("message", "run-1-msg-1", "abc"),
        ("tool-call", "run-1-call-1", "def"),
    ]
    (args,) = [event for event in events if isinstance(event, core.ToolCallArgsEvent)]
    (result,) = [event for event in events if isinstance(event, core.ToolCallResultEvent)]
    assert args.delta == '{"city":"Seoul"}'
    assert result.content == '{"a":[1,2]}'


async def test_a_result_may_have_parts_and_may_come_after_the_end() -> None:
    run, received = open_context()
    call = await run.tool_call_with_id("c", "paint")
    await call.end()
    await call.result([core.TextPart(type="text", text="done")])

    assert [event.type.value for event in received.drain()] == [
        "TOOL_CALL_START",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
    ]
    with pytest.raises(ProtocolViolationError, match="out-of-order"):
        await call.result("again")


@pytest.mark.spec("ag-ui F.85")
async def test_say_opens_continues_and_ends_a_message() -> None:
    run, received = open_context()

    assert await run.say("hello") == "run-1-msg-1"

    told = [event.model_dump(mode="json", by_alias=True) for event in received.drain()]
    assert told == [
        {"type": "TEXT_MESSAGE_START", "messageId": "run-1-msg-1", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "run-1-msg-1", "delta": "hello"},
        {"type": "TEXT_MESSAGE_END", "messageId": "run-1-msg-1"},
    ]


@pytest.mark.spec("ag-ui F.85")
async def test_nothing_can_be_sent_to_a_client_that_is_gone() -> None:
    run, received = open_context()
    message = run.message()
    received.close()

    with pytest.raises(DisconnectedError):
        await run.say("hello")

    message.close()
    assert received.drain() == []


@pytest.mark.spec("ag-ui F.88")
async def test_nothing_is_added_to_what_has_ended() -> None:
    run, received = open_context(verify=False)
    message = run.message()
    reasoning = run.reasoning()
    call = run.tool_call("t")
    for handle in (message, reasoning, call):
        handle.close()
    received.drain()

    with pytest.raises(ProtocolViolationError) as caught:
        await message.delta("x")
    with pytest.raises(ProtocolViolationError):
        await reasoning.delta("x")
    with pytest.raises(ProtocolViolationError):
        await call.args("x")

    assert caught.value.entity_id == message.id
    assert received.drain() == []


@pytest.mark.spec("ag-ui F.88")
async def test_two_messages_may_be_open_at_once() -> None:
    run, received = open_context()
    async with run.message() as one, run.message("user", name="anna") as two:
        await one.delta("a")
        await two.delta("b")
        await one.delta("c")

    told = [
        (event.message_id, getattr(event, "delta", event.type.value))
        for event in received.drain()
        if not isinstance(event, core.TextMessageStartEvent)
        and isinstance(event, core.TextMessageContentEvent | core.TextMessageEndEvent)
    ]
    assert told == [
        (one.id, "a"),
        (two.id, "b"),
        (one.id, "c"),
        (two.id, "TEXT_MESSAGE_END"),
        (one.id, "TEXT_MESSAGE_END"),
    ]


@pytest.mark.spec("ag-ui F.89")
async def test_an_exception_inside_a_block_ends_it_and_goes_on() -> None:
    run, received = open_context()

    async def fail() -> None:
        async with run.message() as message:
            await message.delta("x")
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    with pytest.raises(LookupError), run.step("s"):
        raise LookupError

    assert [event.type.value for event in received.drain()] == [
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "STEP_STARTED",
        "STEP_FINISHED",
    ]


async def test_an_empty_text_adds_nothing() -> None:
    run, received = open_context()

    await run.say("")
    await run.think("")
    async with run.tool_call("t") as call:
        await call.args("")

    assert not [event for event in received.drain() if hasattr(event, "delta")]


async def test_what_a_subagent_says_is_tagged() -> None:
    async def agent(run: Run) -> None:
        async with run.subagent("researcher", description="looks things up") as sub:
            await sub.say("a")
            await sub.custom("app.x", 1)
            await sub.raw({"a": 1}, "s")
            async with sub.step("s"), sub.tool_call("t") as call:
                await call.result("1")
            async with sub.subagent("deeper") as deeper:
                await deeper.think("b")
            await sub.finish({"found": 1})

    events = await collect(agent)

    assert_events(events)
    tags = [getattr(event, "subagent_run_id", None) for event in events]
    inner = [event for event in events if getattr(event, "subagent_run_id", "") == "run-1-sub-2"]
    assert tags[0] is None
    assert tags[-1] is None
    assert set(tags[1:-1]) == {"run-1-sub-1", "run-1-sub-2"}
    assert isinstance(inner[0], core.SubagentStartedEvent)
    assert inner[0].parent_subagent_run_id == "run-1-sub-1"
    finished = events[-2]
    assert isinstance(finished, core.SubagentFinishedEvent)
    assert finished.result == {"found": 1}


async def test_a_subagent_that_raises_has_failed() -> None:
    run, received = open_context()
    with pytest.raises(LookupError):
        async with run.subagent("helper"):
            raise LookupError("secret")
    async with run.subagent("helper") as other:
        await other.fail("no luck", code="NONE")

    failures = [event for event in received.drain() if isinstance(event, core.SubagentErrorEvent)]

    assert [(one.message, one.code) for one in failures] == [
        ("The subagent did not finish.", None),
        ("no luck", "NONE"),
    ]


async def test_the_other_events_have_a_method_each() -> None:
    run, received = open_context()

    shown = await run.activity("search", {"query": "x"})
    await run.activity_delta(shown, "search", [{"op": "add", "path": "/done", "value": True}])
    await run.activity("search", {"query": "y"}, id=shown, replace=False)
    await run.custom("app.x", None)
    await run.raw({"a": None}, "provider")
    await run.messages_snapshot([core.UserMessage(id="u", role="user", content="x")])
    run.message_with_id("m").emit(core.CustomEvent(name="app.y", value=1))
    _ = run.reasoning_with_id("g")

    told = [event.model_dump(mode="json", by_alias=True) for event in received.drain()]
    assert told == [
        {
            "type": "ACTIVITY_SNAPSHOT",
            "messageId": shown,
            "activityType": "search",
            "content": {"query": "x"},
        },
        {
            "type": "ACTIVITY_DELTA",
            "messageId": shown,
            "activityType": "search",
            "patch": [{"op": "add", "path": "/done", "value": True}],
        },
        {
            "type": "ACTIVITY_SNAPSHOT",
            "messageId": shown,
            "activityType": "search",
            "content": {"query": "y"},
            "replace": False,
        },
        {"type": "CUSTOM", "name": "app.x", "value": None},
        {"type": "RAW", "event": {"a": None}, "source": "provider"},
        {
            "type": "MESSAGES_SNAPSHOT",
            "messages": [{"id": "u", "role": "user", "content": "x"}],
        },
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
        {"type": "CUSTOM", "name": "app.y", "value": 1},
        {"type": "REASONING_START", "messageId": "g"},
        {"type": "REASONING_MESSAGE_START", "messageId": "g", "role": "reasoning"},
    ]


async def test_a_wrong_value_sends_nothing_and_is_not_repeated() -> None:
    run, received = open_context()
    message = run.message()
    received.drain()

    with pytest.raises(EventError) as caught:
        await message.delta(424242)  # type: ignore[arg-type]

    assert "424242" not in str(caught.value)
    assert received.drain() == []


async def test_a_start_that_fails_gives_no_handle() -> None:
    run, received = open_context()
    _ = run.message_with_id("m")

    with pytest.raises(ProtocolViolationError):
        _ = run.message_with_id("m")

    run.emit(core.ReasoningMessageStartEvent(message_id="g", role="reasoning"))
    received.drain()
    with pytest.raises(ProtocolViolationError):
        _ = run.reasoning_with_id("g")
    assert [event.type.value for event in received.drain()] == ["REASONING_START", "REASONING_END"]


async def test_what_fails_at_the_end_of_a_block_is_raised_unless_the_block_raised() -> None:
    run, _ = open_context()

    async def end_twice(error: Exception | None) -> None:
        async with run.message() as message:
            run.emit(core.TextMessageEndEvent(message_id=message.id))
            if error is not None:
                raise error

    with pytest.raises(ProtocolViolationError):
        await end_twice(None)
    with pytest.raises(LookupError):
        await end_twice(LookupError())
