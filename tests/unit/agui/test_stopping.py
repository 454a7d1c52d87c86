"""A run that is told to stop: by the host, by a limit, because nobody reads any more."""

import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from ag_ui import core
from ag_ui.core import BaseEvent

from fastapi_carmy.agui.agents import agent_of
from fastapi_carmy.agui.context import RunContext
from fastapi_carmy.agui.errors import DisconnectedError, RunCancelledError
from fastapi_carmy.agui.run import Run, RunOptions
from fastapi_carmy.agui.running import parse_frames
from fastapi_carmy.agui.testing import assert_events, collect, run_input
from fastapi_carmy.agui.tokens import CancelToken
from fastapi_carmy.cancellation import CancelReason, join, start_task

Ctx = RunContext[Any]


def types(events: list[BaseEvent]) -> list[str]:
    return [event.type.value for event in events]


def texts(events: list[BaseEvent]) -> list[str]:
    return [event.delta for event in events if isinstance(event, core.TextMessageContentEvent)]


def assert_cancelled(events: list[BaseEvent]) -> None:
    assert_events(events)
    last = events[-1]
    assert isinstance(last, core.RunFinishedEvent)
    assert last.outcome == core.RunFinishedCancelledOutcome(type="cancelled")
    assert last.result is None


@pytest.mark.spec("ag-ui G.91")
async def test_a_stopped_agent_stops_at_its_next_word() -> None:
    async def agent(run: Ctx) -> None:
        for text in ("one", "two", "three"):
            await run.say(text)
            run.cancel_token.cancel()

    events = await collect(agent)

    assert texts(events) == ["one"]
    assert_cancelled(events)


@pytest.mark.spec("ag-ui G.92")
async def test_a_run_that_is_stopped_before_it_starts_never_enters_the_agent() -> None:
    async def agent(run: Ctx) -> None:
        raise AssertionError("entered")

    token = CancelToken()
    token.cancel()

    events = await collect(agent, token=token)

    assert types(events) == ["RUN_STARTED", "RUN_FINISHED"]
    assert_cancelled(events)


@pytest.mark.spec("ag-ui G.93")
async def test_a_waiting_agent_is_woken() -> None:
    token = CancelToken()
    results: list[object] = []

    async def agent(run: Ctx) -> None:
        await run.say("working")
        token.cancel()
        results.append(await run.until_cancelled(anyio.sleep_forever()))

    with anyio.fail_after(5):
        events = await collect(agent, token=token)

    assert results == [None]
    assert texts(events) == ["working"]
    assert_cancelled(events)


@pytest.mark.spec("ag-ui G.94")
async def test_a_polite_agent_looks_before_it_speaks() -> None:
    async def agent(run: Ctx) -> str:
        for text in ("a", "b"):
            if run.is_cancelled:
                break
            await run.say(text)
            run.cancel_token.cancel()
        return "success, it thinks"

    events = await collect(agent)

    assert texts(events) == ["a"]
    assert_cancelled(events)


async def test_an_agent_that_swallows_its_cancellation_is_still_cancelled() -> None:
    async def agent(run: Ctx) -> str:
        run.cancel_token.cancel()
        with pytest.raises(RunCancelledError):
            await run.say("x")
        return "success"

    assert_cancelled(await collect(agent))


async def test_an_agent_that_only_waits_is_interrupted_once_after_the_grace() -> None:
    finished = anyio.Event()

    async def agent(run: Ctx) -> None:
        _ = await run.step("s")
        run.emit(core.TextMessageStartEvent(message_id="m"))
        try:
            run.cancel_token.cancel()
            await anyio.sleep_forever()
        finally:
            assert run.is_cancelled
            # More than one `await` of a clean-up works: it is interrupted once.
            await anyio.sleep(0.01)
            await anyio.sleep(0.01)
            finished.set()

    with anyio.fail_after(5):
        events = await collect(agent)

    assert finished.is_set()
    assert types(events) == [
        "RUN_STARTED",
        "STEP_STARTED",
        "TEXT_MESSAGE_START",
        "STEP_FINISHED",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    assert_cancelled(events)


@pytest.mark.spec("ag-ui G.98")
async def test_another_thread_may_stop_a_run() -> None:
    async def agent(run: Ctx) -> None:
        threading.Thread(target=run.cancel_token.cancel).start()
        await run.cancelled()

    with anyio.fail_after(5):
        assert_cancelled(await collect(agent))


async def test_a_run_over_its_limit_times_out_with_everything_closed() -> None:
    async def agent(run: Ctx) -> None:
        _ = await run.message()
        await anyio.sleep_forever()

    with anyio.fail_after(5):
        events = await collect(agent, timeout_seconds=0.05)

    assert_events(
        events,
        [
            "RUN_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_END",
            {"type": "RUN_ERROR", "code": "TIMEOUT"},
        ],
    )


async def test_a_run_within_its_limit_is_not_touched() -> None:
    token = CancelToken()

    async def agent(run: Ctx) -> None:
        await run.say("x")

    events = await collect(agent, timeout_seconds=0.05, token=token)
    with anyio.move_on_after(0.1):
        await token.wait()

    assert types(events)[-1] == "RUN_FINISHED"
    assert not token.is_cancelled


async def test_an_agent_that_ignores_everything_is_let_go(caplog: pytest.LogCaptureFixture) -> None:
    may_end = anyio.Event()
    refused: list[type[Exception]] = []

    async def agent(run: Ctx) -> None:
        _ = await run.message()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except anyio.get_cancelled_exc_class():
                continue
        try:
            await run.say("still here")
        except Exception as error:  # noqa: BLE001 - What it raises is what is asked.
            refused.append(type(error))

    run = Run(run_input(), RunOptions(timeout_seconds=0.05))
    task = start_task(run.drive(agent_of(agent).bind()))

    with anyio.fail_after(10):
        events = [event async for frames in run.frames() for event in parse_frames(frames)]
        assert not task.done()
        may_end.set()
        await join(task)

    assert types(events) == ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "RUN_ERROR"]
    assert "did not stop" in caplog.text
    assert refused == [RunCancelledError]


@pytest.mark.spec("ag-ui G.95")
@pytest.mark.spec("ag-ui C.34")
async def test_nothing_is_sent_to_a_client_that_left_and_the_agent_cleans_up() -> None:
    saw: list[bool] = []

    async def agent(run: Ctx) -> None:
        _ = await run.message()
        try:
            await anyio.sleep_forever()
        finally:
            await anyio.sleep(0.01)
            saw.append(run.is_cancelled)

    run = Run(run_input(), RunOptions(grace_seconds=0.01))
    task = start_task(run.drive(agent_of(agent).bind()))

    with anyio.fail_after(5):
        await anext(run.frames())
        run.disconnect()
        await join(task)

    assert run.token.reason is CancelReason.DISCONNECT
    assert saw == [True]
    assert await run.outbox.take(None) is None


async def test_an_agent_that_goes_on_talking_to_nobody_is_stopped_at_once() -> None:
    raised: list[BaseException] = []

    async def agent(run: Ctx) -> None:
        try:
            while True:
                await run.say("x")
        except (RunCancelledError, DisconnectedError) as error:
            raised.append(error)
            raise

    run = Run(run_input())
    task = start_task(run.drive(agent_of(agent).bind()))

    with anyio.fail_after(5):
        await anext(run.frames())
        run.disconnect()
        await join(task)

    assert len(raised) == 1


@pytest.mark.spec("ag-ui C.33")
async def test_a_run_that_ended_is_not_cancelled() -> None:
    token = CancelToken()

    async def agent(run: Ctx) -> None:
        await run.say("done")

    await collect(agent, token=token)

    assert not token.is_cancelled


@pytest.mark.spec("ag-ui C.40")
async def test_a_generator_is_closed_when_nobody_reads() -> None:
    saw: list[bool] = []

    async def agent(run: Ctx) -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
                await anyio.sleep(0.001)
        finally:
            await anyio.sleep(0.01)
            saw.append(run.is_cancelled)

    run = Run(run_input())
    task = start_task(run.drive(agent_of(agent).bind()))

    with anyio.fail_after(5):
        await anext(run.frames())
        run.disconnect()
        await join(task)

    assert saw == [True]


async def test_a_generator_cut_short_has_everything_closed() -> None:
    async def agent(run: Ctx) -> AsyncIterator[BaseEvent]:
        yield core.SubagentStartedEvent(subagent_run_id="s1", name="helper")
        yield core.ReasoningStartEvent(message_id="g")
        yield core.ReasoningMessageStartEvent(message_id="g", role="reasoning")
        yield core.ToolCallStartEvent(tool_call_id="c", tool_call_name="t")
        run.cancel_token.cancel()
        await anyio.sleep_forever()

    with anyio.fail_after(5):
        events = await collect(agent)

    assert_cancelled(events)


async def test_somebody_elses_interruption_goes_on() -> None:
    closed_with: list[BaseException | None] = []

    async def agent(run: Ctx) -> None:
        await anyio.sleep_forever()

    async def teardown(error: BaseException | None) -> None:
        closed_with.append(error)

    run = Run(run_input())

    with anyio.fail_after(5), anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.drive, agent_of(agent).bind(), teardown)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()

    assert scope.cancelled_caught
    assert len(closed_with) == 1
    assert isinstance(closed_with[0], anyio.get_cancelled_exc_class())
    frames = b"".join(run.outbox.take_nowait())
    assert types(parse_frames(frames)) == ["RUN_STARTED", "RUN_ERROR"]


async def test_a_failure_while_stopping_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def agent(run: Ctx) -> None:
        run.cancel_token.cancel()
        raise LookupError("secret")

    assert_cancelled(await collect(agent))
    assert "secret" in caplog.text


async def test_what_a_stopped_agent_was_given_is_rolled_back() -> None:
    seen: list[BaseException | None] = []

    async def agent(run: Ctx) -> None:
        run.cancel_token.cancel()

    async def teardown(error: BaseException | None) -> None:
        seen.append(error)

    run = Run(run_input())
    task = start_task(run.drive(agent_of(agent).bind(), teardown))
    async for _ in run.frames():
        pass
    await join(task)

    assert isinstance(seen[0], RunCancelledError)


def test_a_token_keeps_its_first_reason() -> None:
    token = CancelToken()
    token.cancel(CancelReason.DEADLINE)
    token.cancel(CancelReason.HOST)

    assert token.reason is CancelReason.DEADLINE
