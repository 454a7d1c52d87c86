"""One execution's signal interrupts its task once, and takes the interruption back."""

import threading
from asyncio import current_task, get_running_loop
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
from anyio.to_thread import run_sync

from fastapi_carmy.cancellation import (
    TICK_SECONDS,
    TICKS,
    Bell,
    Cancellation,
    CancelReason,
    Interrupted,
    Latch,
    after,
    join,
    race,
    start_task,
)


def cancelling() -> int:
    task = current_task()
    assert task is not None
    return task.cancelling()


async def work_until_interrupted(cancellation: Cancellation, then: Callable[[], None]) -> None:
    cancellation.begin()
    then()
    try:
        await anyio.sleep_forever()
    finally:
        cancellation.end()


async def test_firing_interrupts_the_work_and_settling_takes_it_back() -> None:
    cancellation = Cancellation()

    with pytest.raises(Interrupted):
        await work_until_interrupted(
            cancellation, lambda: cancellation.fire(CancelReason.DISCONNECT)
        )

    assert cancelling() == 1
    assert await cancellation.settle()
    assert cancelling() == 0
    assert cancellation.is_cancelled
    await anyio.lowlevel.checkpoint()


async def test_the_first_reason_stays_and_interrupts_once() -> None:
    cancellation = Cancellation()
    awaited: list[str] = []

    async def work() -> None:
        cancellation.begin()
        cancellation.fire(CancelReason.DEADLINE)
        cancellation.fire(CancelReason.HOST)
        try:
            await anyio.sleep_forever()
        finally:
            for step in ("a", "b"):
                await anyio.lowlevel.checkpoint()
                cancellation.fire(CancelReason.STOP)
                awaited.append(step)
            cancellation.end()

    with pytest.raises(Interrupted):
        await work()

    assert await cancellation.settle()
    assert cancellation.reason is CancelReason.DEADLINE
    assert awaited == ["a", "b"]


async def test_nothing_is_interrupted_before_begin_or_after_end() -> None:
    cancellation = Cancellation()
    cancellation.begin()
    cancellation.end()
    cancellation.fire(CancelReason.HOST)

    await anyio.lowlevel.checkpoint()

    assert await cancellation.settle()
    with pytest.raises(Interrupted):
        cancellation.begin()


async def test_work_that_fires_the_signal_itself_is_settled_too() -> None:
    cancellation = Cancellation()
    cancellation.begin()
    cancellation.fire(CancelReason.HOST)
    cancellation.end()

    assert await cancellation.settle()

    assert cancelling() == 0
    await anyio.lowlevel.checkpoint()


async def test_an_interruption_of_somebody_else_is_not_taken_back() -> None:
    cancellation = Cancellation()
    settled: list[bool] = []

    async def work() -> None:
        cancellation.begin()
        try:
            await anyio.sleep_forever()
        except Interrupted:
            cancellation.end()
            settled.append(await cancellation.settle())
            raise

    task = start_task(work())
    await anyio.lowlevel.checkpoint()
    task.cancel()
    with pytest.raises(Interrupted):
        await join(task)

    assert settled == [False]
    assert not cancellation.is_cancelled


async def test_a_deadline_fires_and_one_that_ended_does_not() -> None:
    cancellation = Cancellation()
    ended = Cancellation()
    ended.limit(0.01)
    ended.end()

    with pytest.raises(Interrupted):
        await work_until_interrupted(cancellation, lambda: cancellation.limit(0.02))

    assert await cancellation.settle()
    assert cancellation.reason is CancelReason.DEADLINE
    assert not ended.is_cancelled


@pytest.mark.parametrize("ticks", range(TICKS + 1))
async def test_a_long_deadline_survives_the_ticks(ticks: int) -> None:
    cancellation = Cancellation()
    cancellation.ticks_left = TICKS

    def limit() -> None:
        for _ in range(ticks):
            cancellation.tick()

        cancellation.watch(anyio.sleep_forever)
        cancellation.limit(TICKS * TICK_SECONDS + 0.05)

        for _ in range(TICKS - ticks):
            cancellation.tick()

    with anyio.fail_after(5), pytest.raises(Interrupted):
        await work_until_interrupted(cancellation, limit)

    assert await cancellation.settle()
    cancellation.close()
    assert cancellation.reason is CancelReason.DEADLINE


async def test_a_deadline_that_is_over_before_the_ticks_does_not_wait_for_them() -> None:
    cancellation = Cancellation()
    cancellation.ticks_left = TICKS

    with anyio.fail_after(5), pytest.raises(Interrupted):
        await work_until_interrupted(cancellation, lambda: cancellation.limit(0.01))

    assert await cancellation.settle()
    assert cancellation.reason is CancelReason.DEADLINE


async def test_a_client_is_watched_after_the_ticks_and_not_before() -> None:
    asked: list[str] = []
    cancellation = Cancellation()
    cancellation.ticks_left = TICKS

    async def disconnected() -> None:
        asked.append("asked")
        await anyio.sleep_forever()

    cancellation.watch(disconnected)
    await anyio.wait_all_tasks_blocked()
    assert asked == []

    for _ in range(TICKS):
        cancellation.tick()

    await anyio.wait_all_tasks_blocked()
    assert asked == ["asked"]
    cancellation.close()


async def test_a_disconnect_fires_once_the_watch_has_begun() -> None:
    cancellation = Cancellation()

    async def disconnected() -> None: ...

    with anyio.fail_after(5), pytest.raises(Interrupted):
        await work_until_interrupted(cancellation, lambda: cancellation.watch(disconnected))

    assert await cancellation.settle()
    assert cancellation.reason is CancelReason.DISCONNECT


async def test_work_that_finishes_only_notes_a_disconnect() -> None:
    cancellation = Cancellation()
    cancellation.finishes = True

    cancellation.fire(CancelReason.DISCONNECT)
    assert not cancellation.is_cancelled
    cancellation.fire(CancelReason.DEADLINE)

    assert cancellation.reason is CancelReason.DEADLINE


async def test_finishing_is_cut_whatever_was_said() -> None:
    cancellation = Cancellation()
    cancellation.fire(CancelReason.HOST)
    cancellation.limit_finish(0.01)

    with anyio.fail_after(5), pytest.raises(Interrupted):
        await anyio.sleep_forever()

    assert await cancellation.settle()
    assert cancellation.overran
    assert cancelling() == 0


async def test_waiting_ends_when_it_fires_and_at_once_afterwards() -> None:
    cancellation = Cancellation()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancellation.wait)
        tasks.start_soon(cancellation.wait)
        await anyio.lowlevel.checkpoint()
        cancellation.fire(CancelReason.HOST)

    with anyio.fail_after(5):
        await cancellation.wait()


async def test_another_thread_may_fire_and_post() -> None:
    cancellation = Cancellation()
    threads: list[int] = []

    def from_outside() -> None:
        cancellation.post(lambda: threads.append(threading.get_ident()))
        cancellation.fire_threadsafe(CancelReason.HOST)

    await run_sync(from_outside)
    with anyio.fail_after(5):
        await cancellation.wait()

    assert threads == [threading.get_ident()]


async def test_joining_leaves_the_task_alone_when_it_is_interrupted() -> None:
    may_end = anyio.Event()

    async def work() -> str:
        await may_end.wait()
        return "done"

    task = start_task(work())
    with anyio.move_on_after(0):
        await join(task)
    may_end.set()

    assert await join(task) == "done"


async def test_a_latch_is_set_once_and_from_any_thread() -> None:
    latch = Latch()
    calls: list[str] = []
    latch.then(lambda: calls.append("kept"))
    forget = latch.then(lambda: calls.append("forgotten"))
    forget()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(latch.wait)
        await anyio.lowlevel.checkpoint()
        assert await run_sync(latch.set)

    with anyio.fail_after(5):
        await latch.wait()
    assert latch.is_set
    assert not latch.set()
    assert calls == ["kept"]


async def test_what_is_wished_of_a_set_latch_happens_in_the_next_turn() -> None:
    latch = Latch()
    latch.set()
    calls: list[str] = []

    latch.then(lambda: calls.append("kept"))
    latch.then(lambda: calls.append("forgotten"))()
    assert calls == []
    await anyio.lowlevel.checkpoint()

    assert calls == ["kept"]


async def test_a_race_ends_with_whoever_is_first() -> None:
    latch = Latch()

    async def quick() -> str:
        return "done"

    assert await race(quick(), latch) == (True, "done")
    after(0.01, latch.set)
    with anyio.fail_after(5):
        assert await race(anyio.sleep_forever(), latch) == (False, None)


async def test_a_race_that_is_interrupted_interrupts_its_work() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append("interrupted")

    with anyio.move_on_after(0.01):
        await race(work(), Latch())

    assert seen == ["interrupted"]


async def test_a_time_limit_that_is_taken_back_does_nothing() -> None:
    calls: list[str] = []

    forget = after(0, lambda: calls.append("late"))
    forget()
    await anyio.lowlevel.checkpoint()

    assert calls == []


async def test_a_bell_keeps_to_the_time_of_its_last_wait() -> None:
    bell = Bell()
    loop = get_running_loop()
    loop.call_soon(bell.ring)
    await bell.wait(60)

    with anyio.fail_after(5):
        await bell.wait(0.01)

    loop.call_soon(bell.ring)
    await bell.wait(0.02)
    rings = loop.call_later(0.06, bell.ring)
    await bell.wait()
    bell.close()

    assert loop.time() >= rings.when()
