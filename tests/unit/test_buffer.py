"""Events wait for a reader; only old progress gives way. Source: carmy/1, section 2.3."""

import anyio
import pytest

from fastapi_carmy.buffer import EventBuffer
from fastapi_carmy.events import (
    Event,
    ExecutionCompleted,
    ExecutionStarted,
    ToolCompleted,
    ToolProgress,
    ToolStarted,
)
from fastapi_carmy.result import ExecutionResult

STARTED = ExecutionStarted("e", "t")
TOOL_STARTED = ToolStarted("e", "t")
TOOL_COMPLETED = ToolCompleted("e", "t", 1, ok=True)
COMPLETED = ExecutionCompleted(ExecutionResult.completed("e", b"1", cacheable=False))


def progress(done: float) -> ToolProgress:
    return ToolProgress("e", "t", done)


def buffer(*events: Event) -> EventBuffer[Event]:
    made = EventBuffer[Event](lambda event: event)
    for event in events:
        made.report(event)
    return made


def test_events_are_taken_in_order_and_once() -> None:
    held = buffer(STARTED, TOOL_STARTED, progress(1), progress(2), TOOL_COMPLETED, COMPLETED)

    assert held.take() == [
        STARTED,
        TOOL_STARTED,
        progress(1),
        progress(2),
        TOOL_COMPLETED,
        COMPLETED,
    ]
    assert held.take() == []


def test_after_the_end_there_is_nothing() -> None:
    held = buffer(STARTED)
    held.end()

    assert held.take() == [STARTED]
    assert held.take() is None


@pytest.mark.parametrize("events", [[], [STARTED], [STARTED, TOOL_STARTED, TOOL_COMPLETED]])
def test_progress_counts_while_the_tool_is_under_way_only(events: list[Event]) -> None:
    held = buffer(*events, progress(1))

    assert held.take() == events


def test_too_much_progress_drops_the_oldest() -> None:
    held = buffer(STARTED, TOOL_STARTED)
    for step in range(10_000):
        held.report(progress(step))
    held.report(TOOL_COMPLETED)
    held.report(COMPLETED)

    items = held.take()

    assert items is not None
    assert items[:2] == [STARTED, TOOL_STARTED]
    assert items[-2:] == [TOOL_COMPLETED, COMPLETED]
    assert items[2:-2] == [progress(step) for step in range(10_000 - 256, 10_000)]


def test_large_progress_is_limited_by_its_bytes_and_the_newest_stays() -> None:
    held = EventBuffer[bytes](lambda event: b"x" * 600_000, size=len)
    held.report(TOOL_STARTED)
    for step in range(5):
        held.report(progress(step))
    assert [len(item) for item in held.take() or ()] == [600_000, 600_000]

    huge = EventBuffer[bytes](lambda event: b"x" * 3_000_000, size=len)
    huge.report(TOOL_STARTED)
    huge.report(progress(1))
    huge.report(progress(2))
    assert len(huge.take() or ()) == 2


async def test_a_reader_waits_for_the_next_event() -> None:
    held = buffer()
    taken: list[list[Event] | None] = []

    async def read() -> None:
        while (items := await held.next()) is not None:
            taken.append(items)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.lowlevel.checkpoint()
            held.report(STARTED)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            held.report(COMPLETED)
            held.end()

    assert taken == [[STARTED], [COMPLETED]]


async def test_a_wait_may_end_with_nothing() -> None:
    held = buffer()

    await held.wait(0.001)

    assert held.take() == []


async def test_a_failure_is_raised_once_everything_before_it_was_taken() -> None:
    held = buffer(STARTED)
    held.end(RuntimeError("broken"))

    assert await held.next() == [STARTED]
    with pytest.raises(RuntimeError, match="broken"):
        await held.next()
