"""A run from its start to its end, whatever the agent does."""

import gc
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from ag_ui import core
from ag_ui.core import BaseEvent
from pydantic import BaseModel

from fastapi_carmy.agui.agents import agent_of
from fastapi_carmy.agui.context import RunContext
from fastapi_carmy.agui.errors import (
    AgUiError,
    DisconnectedError,
    ProtocolViolationError,
    SlowConsumerError,
)
from fastapi_carmy.agui.run import Run, RunOptions
from fastapi_carmy.agui.running import parse_frames
from fastapi_carmy.agui.testing import assert_events, collect, run_input
from fastapi_carmy.cancellation import join, start_task
from fastapi_carmy.errors import AgentError, ErrorCategory

Ctx = RunContext[Any]


def types(events: list[BaseEvent]) -> list[str]:
    return [event.type.value for event in events]


def text_start(message: str = "m1") -> BaseEvent:
    return core.TextMessageStartEvent(message_id=message)


def run_finished(**fields: Any) -> BaseEvent:
    return core.RunFinishedEvent.model_validate(
        {"threadId": "thread-1", "runId": "run-1", **fields}
    )


def failed(events: list[BaseEvent]) -> core.RunErrorEvent:
    assert_events(events)
    last = events[-1]
    assert isinstance(last, core.RunErrorEvent)
    return last


@pytest.mark.spec("ag-ui E.53")
async def test_an_agent_that_says_nothing_succeeds() -> None:
    async def idle(run: Ctx) -> None:
        return None

    events = await collect(idle)

    assert [event.model_dump(mode="json", by_alias=True) for event in events] == [
        {
            "type": "RUN_STARTED",
            "threadId": "thread-1",
            "runId": "run-1",
            "protocolVersion": "1.0",
        },
        {
            "type": "RUN_FINISHED",
            "threadId": "thread-1",
            "runId": "run-1",
            "outcome": {"type": "success"},
        },
    ]


@pytest.mark.spec("ag-ui E.54")
async def test_an_agent_error_tells_its_text() -> None:
    async def broken(run: Ctx) -> None:
        await run.say("Looking that up…")
        raise AgentError("WEATHER_DOWN", "the weather service is down", ErrorCategory.CAPACITY)

    events = await collect(broken)

    assert types(events) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_ERROR",
    ]
    assert failed(events).code == "AGENT_ERROR"
    assert failed(events).message == "agent error: the weather service is down"


async def test_an_unexpected_error_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(run: Ctx) -> None:
        raise LookupError("secret")

    last = failed(await collect(broken))

    assert last.code == "AGENT_ERROR"
    assert "secret" not in last.message
    error_id = last.message.partition("error id ")[2].partition(")")[0]
    assert len(error_id) == 32
    assert error_id in caplog.text
    assert "secret" in caplog.text


async def test_an_unexpected_error_is_told_to_a_developer() -> None:
    async def broken(run: Ctx) -> None:
        raise LookupError("what\ud800 it is")

    assert "LookupError: what? it is" in failed(await collect(broken, expose_errors=True)).message


@pytest.mark.spec("ag-ui E.55")
async def test_what_is_open_is_closed_before_an_error() -> None:
    async def broken(run: Ctx) -> None:
        message = run.message()
        await message.delta("x")
        raise LookupError

    assert types(await collect(broken)) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_ERROR",
    ]


@pytest.mark.spec("ag-ui E.56")
async def test_the_inner_is_closed_before_the_outer() -> None:
    async def broken(run: Ctx) -> None:
        _ = await run.step("s")
        _ = await run.message()
        raise LookupError

    assert types(await collect(broken)) == [
        "RUN_STARTED",
        "STEP_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_END",
        "STEP_FINISHED",
        "RUN_ERROR",
    ]


@pytest.mark.spec("ag-ui E.60")
async def test_an_agent_may_end_its_run_itself() -> None:
    async def fails(run: Ctx) -> None:
        run.emit(core.RunErrorEvent(message="mine"))

    async def finishes(run: Ctx) -> object:
        run.emit(run_finished())
        return {"late": "result"}

    async def finishes_and_fails(run: Ctx) -> None:
        run.emit(run_finished())
        raise LookupError

    async def thinks_better_of_it(run: Ctx) -> None:
        run.emit(run_finished())
        run.emit(core.RunErrorEvent(message="mine"))

    for agent in (fails, thinks_better_of_it):
        assert_events(
            await collect(agent), ["RUN_STARTED", {"type": "RUN_ERROR", "message": "mine"}]
        )
    for ending in (finishes, finishes_and_fails):
        events = await collect(ending)
        assert_events(
            events, ["RUN_STARTED", {"type": "RUN_FINISHED", "outcome": {"type": "success"}}]
        )


async def test_nothing_goes_out_after_the_end() -> None:
    async def agent(run: Ctx) -> None:
        run.emit(run_finished())
        with pytest.raises(ProtocolViolationError, match="run-ended"):
            run.emit(core.CustomEvent(name="x", value=1))

    assert types(await collect(agent)) == ["RUN_STARTED", "RUN_FINISHED"]


async def test_a_context_that_outlives_its_run_says_nothing() -> None:
    kept: list[Ctx] = []

    async def agent(run: Ctx) -> None:
        kept.append(run)

    await collect(agent)

    with pytest.raises(DisconnectedError):
        await kept[0].say("still here")


@pytest.mark.spec("ag-ui E.66")
async def test_the_input_is_echoed_on_request() -> None:
    told = run_input(
        messages=[
            {"id": "1", "role": "developer", "content": "x", "metadata": {"a": None}},
            {"id": "2", "role": "system", "content": "x"},
            {"id": "3", "role": "user", "content": [{"type": "text", "text": "x"}]},
            {
                "id": "4",
                "role": "assistant",
                "toolCalls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
                ],
            },
            {"id": "5", "role": "tool", "content": "x", "toolCallId": "c"},
            {"id": "6", "role": "activity", "activityType": "x", "content": {"a": None}},
            {"id": "7", "role": "reasoning", "content": "x"},
        ],
        state={"a": None},
        tools=[{"name": "t", "description": "d", "parameters": {"type": "object"}}],
        context=[{"description": "d", "value": "v"}],
        forwardedProps={"a": [None]},
        resume=[{"interruptId": "i", "status": "cancelled"}],
    )

    async def idle(run: Ctx) -> None:
        return None

    first, _ = await collect(idle, told, echo_input=True)
    silent, _ = await collect(idle, told)

    assert isinstance(first, core.RunStartedEvent)
    assert first.input == told
    assert "input" not in silent.model_dump(by_alias=True)


@pytest.mark.spec("ag-ui E.67")
async def test_a_function_and_an_object_and_their_relatives_are_agents() -> None:
    class Agent:
        async def run(self, run: Ctx) -> None:
            return None

    class Callable:
        async def __call__(self, run: Ctx) -> None:
            return None

    async def with_more(greeting: str, run: Ctx) -> None:
        assert greeting == "hi"

    async def untyped(anything):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        assert isinstance(anything, RunContext)

    shared = Agent()
    for agent in (shared, shared, Callable(), partial(with_more, "hi"), shared.run, untyped):
        assert types(await collect(agent)) == ["RUN_STARTED", "RUN_FINISHED"]

    assert types(await collect(with_more, values={"greeting": "hi"})) == [
        "RUN_STARTED",
        "RUN_FINISHED",
    ]


@pytest.mark.spec("ag-ui D.50")
def test_what_is_no_agent_is_refused_by_name() -> None:
    def plain(run: Ctx) -> None:
        return None

    class Sync:
        def run(self, run: Ctx) -> None:
            return None

    async def no_run() -> None:
        return None

    async def starred(*runs: Ctx) -> None:
        return None

    for wrong in (plain, Sync(), 7, "agent", None, Sync, no_run, starred):
        with pytest.raises(TypeError, match="an agent is an async function"):
            agent_of(wrong)


@pytest.mark.spec("ag-ui E.68")
async def test_every_kind_of_exception_ends_in_a_whole_stream() -> None:
    async def grouped(run: Ctx) -> None:
        raise ExceptionGroup(
            "several", [LookupError("a"), AgentError("X", "first told", ErrorCategory.CONFLICT)]
        )

    async def stopped_iteration(run: Ctx) -> None:
        raise StopAsyncIteration

    async def cancelled_itself(run: Ctx) -> None:
        raise anyio.get_cancelled_exc_class()

    assert failed(await collect(grouped)).message == "agent error: first told"
    assert failed(await collect(stopped_iteration)).code == "AGENT_ERROR"
    assert failed(await collect(cancelled_itself)).code == "CANCELLED"


@pytest.mark.spec("ag-ui E.68")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_stops_the_process_goes_on(kind: type[BaseException]) -> None:
    async def agent(run: Ctx) -> None:
        raise kind

    async def main() -> None:
        await collect(agent)

    with pytest.raises(kind):
        anyio.run(main)


@pytest.mark.spec("ag-ui E.72")
@pytest.mark.parametrize("value", [{"a": [1, None]}, "text", 0, False, [], 1.5])
async def test_what_an_agent_returns_is_the_result(value: object) -> None:
    async def agent(run: Ctx) -> object:
        return value

    *_, last = await collect(agent)

    assert isinstance(last, core.RunFinishedEvent)
    assert last.result == value
    assert last.outcome == core.RunFinishedSuccessOutcome(type="success")


@pytest.mark.parametrize("value", [object(), b"\xff", {"a": object()}])
async def test_nonsense_is_no_result(value: object) -> None:
    async def agent(run: Ctx) -> object:
        return value

    assert failed(await collect(agent)).code == "SERIALIZATION"


async def test_interrupts_may_be_returned_as_they_are() -> None:
    question = core.Interrupt(id="i", reason="r")

    async def one(run: Ctx) -> object:
        return question

    async def several(run: Ctx) -> object:
        return [question, question]

    async def outcome(run: Ctx) -> object:
        return core.RunFinishedCancelledOutcome(type="cancelled")

    for agent, count in ((one, 1), (several, 2)):
        *_, last = await collect(agent)
        assert isinstance(last, core.RunFinishedEvent)
        assert isinstance(last.outcome, core.RunFinishedInterruptOutcome)
        assert last.outcome.interrupts == [question] * count

    *_, last = await collect(outcome)
    assert isinstance(last, core.RunFinishedEvent)
    assert last.outcome == core.RunFinishedCancelledOutcome(type="cancelled")


@pytest.mark.spec("ag-ui H.112")
async def test_an_event_out_of_order_fails_the_run() -> None:
    async def agent(run: Ctx) -> None:
        run.emit(core.TextMessageContentEvent(message_id="m1", delta="x"))

    events = await collect(agent)

    assert types(events) == ["RUN_STARTED", "RUN_ERROR"]
    assert failed(events).code == "PROTOCOL_VIOLATION"


async def test_a_refusal_that_is_caught_does_no_harm() -> None:
    async def agent(run: Ctx) -> None:
        with pytest.raises(ProtocolViolationError):
            run.emit(core.TextMessageContentEvent(message_id="m1", delta="x"))

    assert types(await collect(agent)) == ["RUN_STARTED", "RUN_FINISHED"]


@pytest.mark.spec("ag-ui H.113")
async def test_what_was_opened_by_hand_and_left_open_is_a_violation() -> None:
    async def agent(run: Ctx) -> object:
        run.emit(text_start())
        return run.interrupt(reason="x")

    last = failed(await collect(agent))

    assert last.code == "PROTOCOL_VIOLATION"
    assert "open-at-finish" in last.message


async def test_an_error_tolerates_what_was_opened_by_hand() -> None:
    async def agent(run: Ctx) -> None:
        run.emit(text_start())
        raise LookupError

    assert types(await collect(agent)) == ["RUN_STARTED", "TEXT_MESSAGE_START", "RUN_ERROR"]


@pytest.mark.spec("ag-ui H.114")
async def test_without_verification_the_run_still_has_one_start_and_one_end() -> None:
    async def agent(run: Ctx) -> None:
        run.emit(core.TextMessageContentEvent(message_id="m1", delta="x"))
        with pytest.raises(ProtocolViolationError):
            run.emit(core.RunStartedEvent(thread_id="thread-1", run_id="run-1"))
        run.emit(run_finished())
        with pytest.raises(ProtocolViolationError):
            run.emit(run_finished())

    async def leaves_open(run: Ctx) -> None:
        run.emit(text_start())

    assert types(await collect(agent, verify=False)) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_CONTENT",
        "RUN_FINISHED",
    ]
    assert types(await collect(leaves_open, verify=False)) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "RUN_ERROR",
    ]


async def test_an_event_that_can_not_be_encoded_fails_the_run() -> None:
    async def agent(run: Ctx) -> None:
        await run.custom("x", object())

    assert failed(await collect(agent)).code == "SERIALIZATION"


async def test_an_event_that_can_not_be_made_fails_the_run_without_its_value() -> None:
    async def agent(run: Ctx) -> None:
        core.TextMessageContentEvent(message_id="m", delta=424242)  # type: ignore[arg-type]

    last = failed(await collect(agent))

    assert last.code == "PROTOCOL"
    assert "424242" not in last.message


@pytest.mark.spec("ag-ui E.76")
async def test_a_burst_that_nobody_reads_is_capped() -> None:
    sent = 0

    async def agent(run: Ctx) -> None:
        nonlocal sent
        for _ in range(10_000):
            run.emit(core.CustomEvent(name="x", value="x"))
            sent += 1

    last = failed(await collect(agent))

    assert 1000 < sent < 10_000
    assert "waiting" in last.message


@pytest.mark.spec("ag-ui E.76")
async def test_who_waits_for_the_client_may_say_any_amount_in_order() -> None:
    async def agent(run: Ctx) -> None:
        for number in range(10_000):
            await run.custom("x", number)

    events = await collect(agent)

    assert [e.value for e in events if isinstance(e, core.CustomEvent)] == list(range(10_000))


async def test_an_agent_can_recover_from_a_slow_client() -> None:
    async def agent(run: Ctx) -> None:
        message = run.message()
        with suppress(SlowConsumerError):
            for _ in range(10_000):
                run.emit(core.CustomEvent(name="x", value="x"))
        message.close()
        await run.drain()
        await run.say("go on")

    assert_events(await collect(agent))


# Generators.


@pytest.mark.spec("ag-ui E.74")
async def test_a_generator_yields_texts_and_events() -> None:
    async def agent(run: Ctx) -> AsyncIterator[BaseEvent | str]:
        yield "Hello, "
        yield "world."
        yield core.CustomEvent(name="x", value=1)
        yield "Bye."

    assert_events(
        await collect(agent),
        [
            "RUN_STARTED",
            {"type": "TEXT_MESSAGE_START", "messageId": "run-1-msg-1", "role": "assistant"},
            {"type": "TEXT_MESSAGE_CONTENT", "delta": "Hello, "},
            {"type": "TEXT_MESSAGE_CONTENT", "delta": "world."},
            "TEXT_MESSAGE_END",
            "CUSTOM",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ],
    )


@pytest.mark.spec("ag-ui E.74")
async def test_what_a_generator_leaves_open_is_closed() -> None:
    async def agent(run: Ctx) -> AsyncIterator[BaseEvent]:
        yield core.StepStartedEvent(step_name="s")
        yield text_start()

    assert_events(
        await collect(agent),
        [
            "RUN_STARTED",
            "STEP_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_END",
            "STEP_FINISHED",
            "RUN_FINISHED",
        ],
    )


async def test_a_generator_may_tell_the_start_and_the_end_of_the_run() -> None:
    ran_on = False

    async def agent(run: Ctx) -> AsyncIterator[BaseEvent]:
        nonlocal ran_on
        yield core.RunStartedEvent(thread_id="thread-1", run_id="run-1")
        yield run_finished(result=7)
        ran_on = True

    assert_events(
        await collect(agent),
        ["RUN_STARTED", {"type": "RUN_FINISHED", "result": 7, "outcome": {"type": "success"}}],
    )
    assert ran_on


async def test_a_generator_may_fail_its_run() -> None:
    async def agent(run: Ctx) -> AsyncIterator[BaseEvent]:
        yield core.RunErrorEvent(message="mine", code="MINE")

    assert_events(await collect(agent), ["RUN_STARTED", {"type": "RUN_ERROR", "code": "MINE"}])


async def test_what_a_generator_yields_behind_the_end_is_left_out() -> None:
    closed = False

    async def agent(run: Ctx) -> AsyncIterator[BaseEvent]:
        nonlocal closed
        try:
            yield run_finished()
            yield core.CustomEvent(name="x", value=1)
        finally:
            closed = True

    assert_events(await collect(agent), ["RUN_STARTED", "RUN_FINISHED"])
    assert closed


@pytest.mark.parametrize(
    "item",
    [
        core.RunStartedEvent(thread_id="thread-1", run_id="another"),
        core.TextMessageEndEvent(message_id="nobody"),
        run_finished(runId="another"),
        {"type": "CUSTOM"},
        7,
    ],
)
async def test_a_generator_that_yields_something_wrong_is_closed_and_fails(item: Any) -> None:
    closed = False

    async def agent(run: Ctx) -> AsyncIterator[Any]:
        nonlocal closed
        try:
            yield item
        finally:
            closed = True

    events = await collect(agent)

    assert failed(events).code in ("PROTOCOL", "PROTOCOL_VIOLATION")
    assert closed


async def test_an_object_may_have_a_generator() -> None:
    class Agent:
        async def run(self, run: Ctx) -> AsyncIterator[str]:
            yield "hi"

    assert len(await collect(Agent())) == 5


async def test_a_generator_that_raises_fails_the_run() -> None:
    async def agent(run: Ctx) -> AsyncIterator[str]:
        yield "hi"
        raise LookupError

    events = await collect(agent)

    assert types(events)[-2:] == ["TEXT_MESSAGE_END", "RUN_ERROR"]


# What the agent was given.


async def driven(agent: Any, teardown: Any, **options: Any) -> list[BaseEvent]:
    run = Run(run_input(), RunOptions(**options))
    task = start_task(run.drive(agent_of(agent).bind(), teardown))
    events = [event async for frames in run.frames() for event in parse_frames(frames)]
    await join(task)
    return events


async def test_what_the_agent_was_given_is_closed_before_the_end_is_told() -> None:
    seen: list[BaseException | None] = []

    async def fine(run: Ctx) -> None:
        return None

    async def fails(run: Ctx) -> None:
        raise LookupError

    async def close(error: BaseException | None) -> None:
        seen.append(error)

    assert types(await driven(fine, close)) == ["RUN_STARTED", "RUN_FINISHED"]
    assert types(await driven(fails, close)) == ["RUN_STARTED", "RUN_ERROR"]
    assert seen[0] is None
    assert isinstance(seen[1], LookupError)


async def test_a_commit_that_fails_is_no_success(caplog: pytest.LogCaptureFixture) -> None:
    async def fine(run: Ctx) -> None:
        await run.say("Done.")

    async def ended(run: Ctx) -> None:
        run.emit(run_finished())

    async def fails(run: Ctx) -> None:
        raise AgentError("X", "first", ErrorCategory.CONFLICT)

    async def commit(error: BaseException | None) -> None:
        raise LookupError("commit")

    assert types(await driven(fine, commit))[-1] == "RUN_ERROR"
    assert types(await driven(ended, commit)) == ["RUN_STARTED", "RUN_ERROR"]
    with caplog.at_level(logging.ERROR):
        assert failed(await driven(fails, commit)).message == "agent error: first"
    assert "commit" in caplog.text


async def nonsense(run: Ctx) -> object:
    return object()


async def leaves_open(run: Ctx) -> None:
    run.emit(text_start())


async def says_it_failed(run: Ctx) -> None:
    run.emit(core.RunErrorEvent(message="mine"))


async def yields_that_it_failed(run: Ctx) -> AsyncIterator[BaseEvent]:
    yield core.RunErrorEvent(message="mine")


async def leaves_to_close(run: Ctx) -> None:
    _ = await run.message()


def broken_end(event: BaseEvent) -> list[BaseEvent]:
    if event.type.value == "TEXT_MESSAGE_END":
        raise LookupError
    return [event]


@pytest.mark.parametrize(
    ("agent", "options"),
    [
        (nonsense, {}),
        (leaves_open, {}),
        (says_it_failed, {}),
        (yields_that_it_failed, {}),
        (leaves_to_close, {"transformers": [lambda: broken_end]}),
    ],
)
async def test_what_the_agent_was_given_learns_of_every_failure(
    agent: Any, options: dict[str, Any]
) -> None:
    seen: list[BaseException | None] = []

    async def close(error: BaseException | None) -> None:
        seen.append(error)

    events = await driven(agent, close, **options)

    assert types(events)[-1] == "RUN_ERROR"
    assert isinstance(seen[0], AgUiError)


@pytest.mark.spec("ag-ui D.45")
async def test_many_runs_of_one_agent_do_not_meet() -> None:
    barrier = anyio.Event()
    waiting = 0

    async def agent(run: Ctx) -> None:
        nonlocal waiting
        async with run.message() as message:
            await message.delta(f"{run.thread_id} ")
            waiting += 1
            if waiting == 16:
                barrier.set()
            await barrier.wait()
            await message.delta(run.last_user_text or "")
        await run.set_state({"thread": run.thread_id})

    results: dict[int, list[BaseEvent]] = {}

    async def client(number: int) -> None:
        told = run_input(f"question {number}", thread_id=f"thread-{number}")
        results[number] = await collect(agent, told)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for number in range(16):
                tasks.start_soon(client, number)

    for number, events in results.items():
        text = "".join(
            event.delta for event in events if isinstance(event, core.TextMessageContentEvent)
        )
        assert text == f"thread-{number} question {number}"
        assert_events(events)


async def test_a_run_leaves_nothing_behind() -> None:
    async def agent(run: Ctx) -> None:
        _ = run.message()

    await collect(agent)
    gc.collect()

    assert not [one for one in gc.get_objects() if isinstance(one, Run)]


class _Later(BaseModel):
    x: "NotDefinedYet"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "result",
    [
        pytest.param({(1, 2): "\ud800"}, id="a key that is a tuple"),
        pytest.param(_Later.model_construct(x=1), id="a model that is not fully defined"),
        pytest.param(float("nan"), id="not a number"),
        pytest.param(object(), id="an object"),
    ],
)
async def test_a_result_that_json_cannot_hold_fails_the_run(result: object) -> None:
    async def agent(run: Ctx) -> Any:
        return result

    with anyio.fail_after(5):
        events = await collect(agent, run_input())

    assert types(events) == ["RUN_STARTED", "RUN_ERROR"]
    assert getattr(events[-1], "code", None) == "SERIALIZATION"
