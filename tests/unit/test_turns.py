import asyncio
import gc
import threading
from collections.abc import Callable

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio.from_thread import start_blocking_portal

from fastapi_carmy.turns import Turns


async def wait_for(turns: Turns, name: str, order: list[int], number: int) -> None:
    await turns[name].take()
    order.append(number)


async def queue_up(turns: Turns, count: int, order: list[int]) -> list[asyncio.Task[None]]:
    """Let so many tasks wait for the turn of `count`, in order."""
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(wait_for(turns, "count", order, number)))
        await anyio.wait_all_tasks_blocked()
    return tasks


def test_a_free_turn_is_taken_without_waiting() -> None:
    turns = Turns()

    assert turns["count"].take_nowait()
    assert not turns["count"].take_nowait()

    turns["count"].give()
    assert turns["count"].take_nowait()


def test_each_tool_has_a_turn_of_its_own() -> None:
    turns = Turns()

    assert turns["count"].take_nowait()
    assert turns["wipe"].take_nowait()


def test_a_turn_that_nobody_took_cannot_be_given() -> None:
    turns = Turns()

    with pytest.raises(RuntimeError, match="taken"):
        turns["count"].give()


async def test_a_free_turn_is_taken_by_whoever_would_wait() -> None:
    turns = Turns()

    with anyio.fail_after(5):
        await turns["count"].take()

    assert not turns["count"].take_nowait()


async def test_turns_go_to_those_who_wait_in_the_order_they_came() -> None:
    turns = Turns()
    order: list[int] = []
    assert turns["count"].take_nowait()
    tasks = await queue_up(turns, 3, order)

    for number in range(3):
        turns["count"].give()
        assert not turns["count"].take_nowait()
        with anyio.fail_after(5):
            await tasks[number]
        assert order == list(range(number + 1))

    turns["count"].give()
    assert turns["count"].take_nowait()


async def test_a_cancelled_wait_leaves_the_queue() -> None:
    turns = Turns()
    order: list[int] = []
    assert turns["count"].take_nowait()
    first, second = await queue_up(turns, 2, order)

    first.cancel()
    await asyncio.wait([first], timeout=5)
    turns["count"].give()

    assert first.cancelled()
    with anyio.fail_after(5):
        await second
    assert order == [1]


async def test_a_wait_that_is_cancelled_as_its_turn_comes_passes_it_on() -> None:
    turns = Turns()
    order: list[int] = []
    assert turns["count"].take_nowait()
    first, second = await queue_up(turns, 2, order)

    turns["count"].give()
    first.cancel()
    with anyio.fail_after(5):
        await second

    assert first.cancelled()
    assert order == [1]
    turns["count"].give()
    assert turns["count"].take_nowait()


async def test_when_all_who_wait_are_cancelled_the_turn_is_free_again() -> None:
    turns = Turns()
    assert turns["count"].take_nowait()
    tasks = await queue_up(turns, 2, [])

    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=5)
    turns["count"].give()

    assert turns["count"].take_nowait()


async def test_a_deadline_of_anyio_ends_a_wait_too() -> None:
    turns = Turns()
    assert turns["count"].take_nowait()

    with anyio.move_on_after(0) as scope:
        await turns["count"].take()

    assert scope.cancelled_caught
    turns["count"].give()
    assert turns["count"].take_nowait()


async def test_a_turn_is_given_from_a_thread_to_a_waiting_task() -> None:
    turns = Turns()
    order: list[int] = []
    assert turns["count"].take_nowait()
    (task,) = await queue_up(turns, 1, order)

    await anyio.to_thread.run_sync(turns["count"].give)

    with anyio.fail_after(5):
        await task
    assert order == [0]


def test_loops_in_several_threads_take_turns() -> None:
    turns = Turns()
    inside: list[int] = []
    seen: list[int] = []

    async def work(number: int) -> None:
        for _ in range(50):
            await turns["count"].take()
            inside.append(number)
            await anyio.lowlevel.checkpoint()
            seen.append(len(inside))
            inside.remove(number)
            turns["count"].give()

    def in_a_loop_of_its_own(number: int) -> None:
        async def main() -> None:
            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:
                    for _ in range(5):
                        tasks.start_soon(work, number)

        anyio.run(main)

    threads = [threading.Thread(target=in_a_loop_of_its_own, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert seen == [1] * (4 * 5 * 50)
    assert turns["count"].take_nowait()


async def hold(turns: Turns, *, when_taken: Callable[[], object]) -> None:
    await turns["count"].take()
    try:
        when_taken()
        await anyio.sleep_forever()
    finally:
        turns["count"].give()


def test_an_owner_whose_loop_ends_leaves_the_turn_to_the_next_loop() -> None:
    turns = Turns()
    is_taken = threading.Event()

    with start_blocking_portal() as portal:
        held = portal.start_task_soon(lambda: hold(turns, when_taken=is_taken.set))
        assert is_taken.wait(5)
        held.cancel()

    async def next_request() -> None:
        with anyio.fail_after(5):
            await turns["count"].take()

    anyio.run(next_request)


def test_an_owner_whose_loop_was_closed_under_it_leaves_the_turn() -> None:
    turns = Turns()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)

    owners: list[asyncio.Task[None]] = []

    async def start() -> None:
        owners.append(asyncio.create_task(hold(turns, when_taken=lambda: None)))
        await asyncio.sleep(0)

    loop.run_until_complete(start())
    assert not turns["count"].take_nowait()
    loop.close()
    owners.clear()
    gc.collect()

    assert turns["count"].take_nowait()


def test_a_waiter_whose_loop_was_closed_is_passed_over() -> None:
    turns = Turns()
    assert turns["count"].take_nowait()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    waiters: list[asyncio.Task[None]] = []

    async def start() -> None:
        waiters.append(asyncio.create_task(turns["count"].take()))
        await asyncio.sleep(0)

    loop.run_until_complete(start())
    loop.close()

    turns["count"].give()

    assert turns["count"].take_nowait()
    waiters.clear()
    gc.collect()
    assert not turns["count"].take_nowait()
    turns["count"].give()


def test_a_thread_passes_over_a_waiter_whose_loop_was_closed() -> None:
    turns = Turns()
    assert turns["count"].take_nowait()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    waiters: list[asyncio.Task[None]] = []

    async def start() -> None:
        waiters.append(asyncio.create_task(turns["count"].take()))
        await asyncio.sleep(0)

    loop.run_until_complete(start())
    loop.close()

    thread = threading.Thread(target=turns["count"].give)
    thread.start()
    thread.join(5)

    assert turns["count"].take_nowait()
