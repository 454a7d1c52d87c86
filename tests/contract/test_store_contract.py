"""What every idempotency store promises; a new store adds one line to `STORES`."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from fastapi_carmy.stores import (
    Acquired,
    Conflict,
    Entry,
    IdempotencyStore,
    InProgress,
    Key,
    MemoryStore,
    Record,
    Replay,
    Reservation,
)

KEY = Key("alice", "chat-1", "order-1")
RECORD = Record("exec_1", "completed", b'{"data":\xc3\xa9, "n":1.0}\n')

# Name → what makes an empty one; the folder is empty too.
STORES: dict[str, Callable[[Path], IdempotencyStore]] = {
    "memory": lambda _: MemoryStore(),
}


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[IdempotencyStore]:
    store = STORES[request.param](tmp_path)
    yield store
    await store.aclose()


async def claim(
    store: IdempotencyStore,
    execution_id: str = "exec_1",
    *,
    key: Key = KEY,
    fingerprint: str = "print",
    may_repeat: bool = False,
) -> Reservation:
    return await store.reserve(
        key, fingerprint=fingerprint, execution_id=execution_id, may_repeat=may_repeat
    )


async def test_a_fresh_key_is_acquired(store: IdempotencyStore) -> None:
    assert await claim(store) == Acquired()


async def test_a_running_call_is_in_progress_for_everybody(store: IdempotencyStore) -> None:
    await claim(store)

    for execution_id in ("exec_1", "exec_2"):
        for may_repeat in (False, True):
            answer = await claim(store, execution_id, may_repeat=may_repeat)

            assert isinstance(answer, InProgress)
            assert (answer.execution_id, answer.state) == ("exec_1", "running")


async def test_the_start_is_told_as_rfc_3339_in_utc(store: IdempotencyStore) -> None:
    before = datetime.now(UTC)
    await claim(store)
    after = datetime.now(UTC)

    answer = await claim(store, "exec_2")

    assert isinstance(answer, InProgress)
    assert len(answer.started_at) == len("2026-01-02T03:04:05.678Z")
    assert answer.started_at.endswith("Z")
    started = datetime.fromisoformat(answer.started_at)
    assert before - timedelta(milliseconds=1) <= started <= after + timedelta(seconds=1)


async def test_a_finished_call_is_replayed_byte_for_byte(store: IdempotencyStore) -> None:
    await claim(store)

    assert await store.complete(KEY, execution_id="exec_1", record=RECORD)

    assert await claim(store, "exec_2") == Replay(RECORD)
    assert await claim(store, "exec_3", may_repeat=True) == Replay(RECORD)


@pytest.mark.parametrize("body", [b"", b"\x00\xff", b"x" * 1_100_000])
async def test_any_bytes_are_a_body(store: IdempotencyStore, body: bytes) -> None:
    record = Record("exec_1", "failed", body)
    await claim(store)
    await store.complete(KEY, execution_id="exec_1", record=record)

    assert await claim(store, "exec_2") == Replay(record)


@pytest.mark.parametrize("may_repeat", [False, True])
async def test_another_fingerprint_conflicts_in_every_state(
    store: IdempotencyStore, may_repeat: bool
) -> None:
    async def claim_another() -> Reservation:
        return await claim(store, "exec_2", fingerprint="other", may_repeat=may_repeat)

    await claim(store)
    assert await claim_another() == Conflict()

    await store.abandon(KEY, execution_id="exec_1")
    assert await claim_another() == Conflict()

    await store.complete(KEY, execution_id="exec_1", record=RECORD)
    assert await claim_another() == Conflict()
    assert await claim(store, "exec_3") == Replay(RECORD)


async def test_keys_that_differ_in_any_part_never_meet(store: IdempotencyStore) -> None:
    # Joining the parts by any character would make some of these equal.
    keys = [
        Key(principal, session, request_id)
        for principal in (None, "", "a", "a/b", "a:b", "None", "-", "é")
        for session in (None, "", "c", "b/c", "None")
        for request_id in ("c", "b:c", "/c", "☃" * 85)
    ]

    for number, key in enumerate(keys):
        assert await claim(store, f"exec_{number}", key=key) == Acquired(), key

    for number, key in enumerate(keys):
        entry = await store.lookup(key)
        assert entry is not None
        assert entry.execution_id == f"exec_{number}"
    assert all(one != other for one, other in combinations(keys, 2))


async def test_a_released_key_is_free_for_any_call(store: IdempotencyStore) -> None:
    await claim(store)

    assert await store.release(KEY, execution_id="exec_1")

    assert await store.lookup(KEY) is None
    assert await claim(store, "exec_2", fingerprint="other") == Acquired()


async def test_an_abandoned_call_stays_uncertain(store: IdempotencyStore) -> None:
    await claim(store)

    assert await store.abandon(KEY, execution_id="exec_1")
    assert await store.abandon(KEY, execution_id="exec_1")

    answer = await claim(store, "exec_2")
    assert isinstance(answer, InProgress)
    assert (answer.execution_id, answer.state) == ("exec_1", "abandoned")


async def test_an_abandoned_call_that_may_repeat_is_taken_over(store: IdempotencyStore) -> None:
    await claim(store)
    await store.abandon(KEY, execution_id="exec_1")

    assert await claim(store, "exec_2", may_repeat=True) == Acquired()

    answer = await claim(store, "exec_3", may_repeat=True)
    assert isinstance(answer, InProgress)
    assert (answer.execution_id, answer.state) == ("exec_2", "running")


async def test_the_former_owner_changes_nothing(store: IdempotencyStore) -> None:
    await claim(store)
    await store.abandon(KEY, execution_id="exec_1")
    await claim(store, "exec_2", may_repeat=True)
    before = await store.lookup(KEY)

    assert not await store.complete(KEY, execution_id="exec_1", record=RECORD)
    assert not await store.release(KEY, execution_id="exec_1")
    assert not await store.abandon(KEY, execution_id="exec_1")

    assert await store.lookup(KEY) == before
    record = Record("exec_2", "completed", b"{}")
    assert await store.complete(KEY, execution_id="exec_2", record=record)
    assert await claim(store, "exec_3") == Replay(record)


async def test_an_abandoned_call_is_reconciled_by_its_answer(store: IdempotencyStore) -> None:
    await claim(store)
    await store.abandon(KEY, execution_id="exec_1")

    assert await store.complete(KEY, execution_id="exec_1", record=RECORD)

    assert await claim(store, "exec_2") == Replay(RECORD)


async def test_an_abandoned_call_is_reconciled_by_its_release(store: IdempotencyStore) -> None:
    await claim(store)
    await store.abandon(KEY, execution_id="exec_1")

    assert await store.release(KEY, execution_id="exec_1")

    assert await claim(store, "exec_2") == Acquired()


async def test_nothing_changes_a_finished_entry(store: IdempotencyStore) -> None:
    await claim(store)
    await store.complete(KEY, execution_id="exec_1", record=RECORD)
    before = await store.lookup(KEY)

    other = Record("exec_1", "failed", b"{}")
    assert not await store.complete(KEY, execution_id="exec_1", record=other)
    assert not await store.release(KEY, execution_id="exec_1")
    assert not await store.abandon(KEY, execution_id="exec_1")

    assert await store.lookup(KEY) == before
    assert await claim(store, "exec_2") == Replay(RECORD)


async def test_an_unknown_key_has_nothing_to_change(store: IdempotencyStore) -> None:
    assert not await store.complete(KEY, execution_id="exec_1", record=RECORD)
    assert not await store.release(KEY, execution_id="exec_1")
    assert not await store.abandon(KEY, execution_id="exec_1")
    assert await store.lookup(KEY) is None


async def test_a_released_execution_can_no_longer_finish(store: IdempotencyStore) -> None:
    await claim(store)
    await store.release(KEY, execution_id="exec_1")

    assert not await store.complete(KEY, execution_id="exec_1", record=RECORD)

    assert await claim(store, "exec_2") == Acquired()


async def test_lookup_tells_the_whole_entry(store: IdempotencyStore) -> None:
    await claim(store)
    running = await store.lookup(KEY)
    await store.abandon(KEY, execution_id="exec_1")
    abandoned = await store.lookup(KEY)
    await store.complete(KEY, execution_id="exec_1", record=RECORD)
    finished = await store.lookup(KEY)

    assert running is not None
    assert running == Entry(
        execution_id="exec_1",
        fingerprint="print",
        started_at=running.started_at,
        state="running",
        record=None,
    )
    assert abandoned == replace(running, state="abandoned")
    assert finished == replace(running, state="finished", record=RECORD)


async def test_one_of_many_simultaneous_claims_is_acquired(store: IdempotencyStore) -> None:
    answers: list[Reservation] = []

    async def claim_one(number: int) -> None:
        answers.append(await claim(store, f"exec_{number}"))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(claim_one, number)

    assert answers.count(Acquired()) == 1
    assert sum(isinstance(answer, InProgress) for answer in answers) == 199


async def test_one_of_many_simultaneous_takeovers_is_acquired(store: IdempotencyStore) -> None:
    await claim(store, "exec_first")
    await store.abandon(KEY, execution_id="exec_first")
    answers: list[Reservation] = []

    async def claim_one(number: int) -> None:
        answers.append(await claim(store, f"exec_{number}", may_repeat=True))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(claim_one, number)

    assert answers.count(Acquired()) == 1


async def test_loops_in_several_threads_share_one_store(store: IdempotencyStore) -> None:
    keys = [Key(None, None, f"order-{number}") for number in range(50)]
    winners: list[str] = []

    async def claim_all(thread: int) -> None:
        for key in keys:
            if await claim(store, f"exec_{thread}", key=key) == Acquired():
                winners.append(key.request_id)
                record = Record(f"exec_{thread}", "completed", b"{}")
                assert await store.complete(key, execution_id=f"exec_{thread}", record=record)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for thread in range(8):
                tasks.start_soon(anyio.to_thread.run_sync, anyio.run, claim_all, thread)

    assert sorted(winners) == sorted(key.request_id for key in keys)


async def test_a_closed_store_opens_again_and_keeps_its_entries(store: IdempotencyStore) -> None:
    await claim(store)
    await store.complete(KEY, execution_id="exec_1", record=RECORD)

    await store.aclose()
    await store.aclose()

    assert await claim(store, "exec_2") == Replay(RECORD)
