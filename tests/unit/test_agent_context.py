"""The execution as its tool sees it."""

import threading

import anyio
import anyio.from_thread
import pytest
from anyio.to_thread import run_sync

from fastapi_carmy import AgentContext, Caller
from fastapi_carmy.cancellation import Cancellation, CancelReason
from fastapi_carmy.events import Event, ToolProgress
from fastapi_carmy.result import NextAction


def context(events: list[Event] | None = None, *, cancellation: Cancellation) -> AgentContext:
    return AgentContext(
        execution_id="e",
        tool="t",
        request_id="r",
        caller=Caller(principal="anna"),
        cancellation=cancellation,
        report=None if events is None else events.append,
    )


async def test_a_part_keeps_the_progress_that_was_told_last() -> None:
    events: list[Event] = []
    ours = context(events, cancellation=Cancellation())

    ours.partial(None)
    ours.progress(2, 4, "half")
    ours.partial([1])

    assert events == [
        ToolProgress("e", "t", 0.0, partial=None, has_partial=True),
        ToolProgress("e", "t", 2.0, 4.0, "half"),
        ToolProgress("e", "t", 2.0, partial=[1], has_partial=True),
    ]


@pytest.mark.parametrize("numbers", [(float("nan"), None), (float("inf"), 1), (1, float("-inf"))])
async def test_progress_is_counted_in_finite_numbers(numbers: tuple[float, float | None]) -> None:
    events: list[Event] = []
    ours = context(events, cancellation=Cancellation())

    with pytest.raises(ValueError, match="finite"):
        ours.progress(*numbers)

    assert events == []


async def test_nobody_who_watches_is_no_mistake() -> None:
    ours = context(cancellation=Cancellation())

    ours.progress(1)
    ours.partial("x")


async def test_a_threads_reports_arrive_in_the_executions_thread_and_in_order() -> None:
    events: list[Event] = []
    threads: list[int] = []

    def report(event: Event) -> None:
        events.append(event)
        threads.append(threading.get_ident())

    ours = AgentContext(
        execution_id="e",
        tool="t",
        request_id=None,
        caller=Caller(),
        cancellation=Cancellation(),
        report=report,
    )

    def work() -> None:
        for step in range(10):
            ours.progress(step)

    await run_sync(work)
    await anyio.lowlevel.checkpoint()

    assert events == [ToolProgress("e", "t", float(step)) for step in range(10)]
    assert set(threads) == {threading.get_ident()}


async def test_suggestions_are_kept_in_order_and_as_they_were() -> None:
    ours = context(cancellation=Cancellation())
    arguments: dict[str, object] = {"sku": "TEA"}

    ours.suggest("order", arguments, reason="Order it.")
    ours.suggest("look", reason="Look again.", after_seconds=1.25)
    arguments["sku"] = "CUP"

    assert ours.suggestions == (
        NextAction(tool="order", reason="Order it.", arguments={"sku": "TEA"}),
        NextAction(tool="look", reason="Look again.", after_ms=1250),
    )


async def test_a_tool_may_wait_for_being_told_to_stop() -> None:
    cancellation = Cancellation()
    ours = context(cancellation=cancellation)
    seen = [ours.is_cancelled]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ours.cancelled)
        await anyio.lowlevel.checkpoint()
        cancellation.fire(CancelReason.HOST)

    seen.append(ours.is_cancelled)
    assert seen == [False, True]


@pytest.mark.parametrize("in_thread", [False, True], ids=["task", "thread"])
async def test_a_part_is_taken_as_it_is_at_the_call(in_thread: bool) -> None:
    events: list[Event] = []
    ours = context(events, cancellation=Cancellation())

    def work() -> None:
        rows: list[object] = []

        for row in (1, NextAction(tool="look", reason="x")):
            rows.append(row)
            ours.partial(rows)

    if in_thread:
        await run_sync(work)
        await anyio.lowlevel.checkpoint()
    else:
        work()

    look = {"tool": "look", "reason": "x", "arguments": None, "after_ms": None}
    assert [event.partial for event in events if isinstance(event, ToolProgress)] == [
        [1],
        [1, look],
    ]


async def test_a_loop_of_another_thread_may_wait_for_being_told_to_stop() -> None:
    cancellation = Cancellation()
    ours = context(cancellation=cancellation)
    waits = threading.Event()

    async def wait() -> bool:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ours.cancelled)
                await anyio.lowlevel.checkpoint()
                waits.set()

        return ours.is_cancelled

    def fire() -> None:
        assert waits.wait(5)
        anyio.from_thread.run_sync(cancellation.fire, CancelReason.HOST)

    told: list[bool] = []

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_sync, fire)
            await run_sync(lambda: told.append(anyio.run(wait)))

    assert told == [True]
