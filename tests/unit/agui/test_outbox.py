"""What waits for a slow client, and who waits with it."""

import anyio
import pytest

from fastapi_carmy.agui.errors import DisconnectedError, SlowConsumerError
from fastapi_carmy.agui.outbox import Outbox


async def test_frames_that_wait_together_are_taken_together() -> None:
    outbox = Outbox()
    outbox.put(b"a")
    outbox.put(b"b")

    assert await outbox.take(None) == b"ab"


async def test_the_reader_waits_for_a_frame_and_gets_the_end() -> None:
    outbox = Outbox()
    taken: list[bytes | None] = []

    async def read() -> None:
        taken.append(await outbox.take(None))
        taken.append(await outbox.take(None))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            outbox.put(b"a")
            await anyio.wait_all_tasks_blocked()
            outbox.finish()

    assert taken == [b"a", None]


async def test_the_reader_is_told_of_silence() -> None:
    outbox = Outbox()

    with anyio.fail_after(5):
        assert await outbox.take(0.01) == b""


async def test_a_writer_that_waits_goes_on_when_the_reader_has_caught_up() -> None:
    outbox = Outbox()
    for _ in range(128):
        outbox.put(b"x")
    went_on = anyio.Event()

    async def write() -> None:
        await outbox.room()
        went_on.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.wait_all_tasks_blocked()
            assert not went_on.is_set()
            await outbox.take(None)

    assert went_on.is_set()


async def test_a_writer_that_does_not_wait_is_stopped_at_the_cap() -> None:
    outbox = Outbox(max_events=2, max_bytes=100)
    outbox.check()
    outbox.put(b"x")
    outbox.check()
    outbox.put(b"x")

    with pytest.raises(SlowConsumerError):
        outbox.check()

    await outbox.take(None)
    outbox.check()


def test_bytes_are_capped_too_but_one_frame_may_have_any_size() -> None:
    outbox = Outbox(max_events=100, max_bytes=10)
    outbox.check()
    outbox.put(b"x" * 1000)

    with pytest.raises(SlowConsumerError):
        outbox.check()


async def test_nothing_is_kept_for_a_reader_that_is_gone() -> None:
    outbox = Outbox()
    outbox.put(b"x")
    outbox.close()
    outbox.put(b"y")

    with pytest.raises(DisconnectedError):
        outbox.check()

    assert await outbox.take(None) is None
    assert outbox.take_nowait() == []


async def test_a_writer_that_waits_goes_on_when_the_reader_goes() -> None:
    outbox = Outbox()
    outbox.put(b"x" * 2**20)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.room)
            tasks.start_soon(outbox.drained)
            await anyio.wait_all_tasks_blocked()
            outbox.close()


def test_nothing_is_added_after_the_end() -> None:
    outbox = Outbox()
    outbox.put(b"x")
    outbox.finish()
    outbox.put(b"y")

    with pytest.raises(DisconnectedError):
        outbox.check()

    assert outbox.take_nowait() == [b"x"]
