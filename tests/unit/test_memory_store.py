import pytest

from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.stores import (
    Acquired,
    IdempotencyCapacityError,
    IdempotencyStore,
    InProgress,
    Key,
    MemoryStore,
    Record,
    Replay,
    Reservation,
    open_store,
)
from tests.support.clock import Clock


def key(name: str) -> Key:
    return Key(None, None, name)


async def claim(store: IdempotencyStore, name: str) -> Reservation:
    return await store.reserve(
        key(name), fingerprint="print", execution_id=f"exec_{name}", may_repeat=False
    )


async def finish(store: IdempotencyStore, name: str) -> Record:
    record = Record(f"exec_{name}", "completed", name.encode())
    assert await claim(store, name) == Acquired()
    assert await store.complete(key(name), execution_id=f"exec_{name}", record=record)
    return record


async def test_an_answer_is_replayed_until_its_time_is_over() -> None:
    clock = Clock()
    store = MemoryStore(ttl_seconds=60, clock=clock)
    record = await finish(store, "a")

    clock.now = 59.9
    assert await claim(store, "a") == Replay(record)

    clock.now = 60
    assert await store.lookup(key("a")) is None
    assert await claim(store, "a") == Acquired()


async def test_an_answer_lives_a_day_by_default() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    record = await finish(store, "a")

    clock.now = 86_399
    assert await claim(store, "a") == Replay(record)

    clock.now = 86_400
    assert await claim(store, "a") == Acquired()


async def test_what_has_not_finished_never_expires() -> None:
    clock = Clock()
    store = MemoryStore(ttl_seconds=60, clock=clock)
    await claim(store, "running")
    await claim(store, "abandoned")
    await store.abandon(key("abandoned"), execution_id="exec_abandoned")

    clock.now = 1e9

    assert isinstance(await claim(store, "running"), InProgress)
    assert isinstance(await claim(store, "abandoned"), InProgress)


async def test_the_least_recently_used_answer_makes_room() -> None:
    store = MemoryStore(max_entries=3)
    for name in ("a", "b", "c"):
        await finish(store, name)
    await claim(store, "a")

    await claim(store, "d")

    assert await store.lookup(key("b")) is None
    assert await store.lookup(key("a")) is not None
    assert await store.lookup(key("c")) is not None


async def finish_with(store: IdempotencyStore, name: str, size: int) -> None:
    record = Record(f"exec_{name}", "completed", b"x" * size)
    assert await claim(store, name) == Acquired()
    assert await store.complete(key(name), execution_id=f"exec_{name}", record=record)


async def held(store: IdempotencyStore, names: str) -> str:
    return "".join([name for name in names if await store.lookup(key(name)) is not None])


async def test_the_least_recently_used_answers_make_room_for_the_bytes_of_a_new_one() -> None:
    store = MemoryStore(max_bytes=10)
    for name in "abc":
        await finish_with(store, name, 3)
    await claim(store, "a")
    await claim(store, "r")

    await finish_with(store, "d", 6)

    assert await held(store, "abcdr") == "adr"


async def test_an_answer_over_the_limit_is_kept_until_the_next_one() -> None:
    store = MemoryStore(max_bytes=10)
    await finish_with(store, "a", 3)

    await finish_with(store, "b", 11)
    after_one = await held(store, "ab")
    await finish_with(store, "c", 10)

    assert (after_one, await held(store, "abc")) == ("b", "c")


async def test_expired_answers_make_room_before_those_that_count() -> None:
    clock = Clock()
    store = MemoryStore(ttl_seconds=60, max_bytes=10, clock=clock)
    await finish_with(store, "a", 4)
    clock.now = 30
    await finish_with(store, "b", 4)
    await claim(store, "a")
    await claim(store, "c")
    clock.now = 60

    await store.complete(
        key("c"), execution_id="exec_c", record=Record("exec_c", "completed", b"xxxx")
    )

    assert await held(store, "abc") == "bc"


async def test_many_megabytes_of_answers_are_not_held_by_default() -> None:
    store = MemoryStore()

    for number in range(70):
        await finish_with(store, f"{number}", 2**20)

    assert store.entry_count == 64


async def test_a_store_full_of_unfinished_entries_refuses_new_ones() -> None:
    store = MemoryStore(max_entries=2)
    await claim(store, "a")
    await claim(store, "b")
    await store.abandon(key("b"), execution_id="exec_b")

    with pytest.raises(IdempotencyCapacityError) as caught:
        await claim(store, "c")

    assert caught.value.max_entries == 2
    assert isinstance(await claim(store, "a"), InProgress)
    await store.release(key("b"), execution_id="exec_b")
    assert await claim(store, "c") == Acquired()


async def test_expired_answers_are_forgotten_as_new_calls_come() -> None:
    clock = Clock()
    store = MemoryStore(ttl_seconds=60, clock=clock)
    for number in range(100):
        await finish(store, f"old-{number}")
    clock.now = 60

    for number in range(50):
        await finish(store, f"new-{number}")

    assert store.entry_count == 50


@pytest.mark.parametrize(
    "options",
    [{"ttl_seconds": 0}, {"ttl_seconds": float("nan")}, {"max_entries": 0}, {"max_bytes": 0}],
)
def test_limits_must_be_positive(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        MemoryStore(**options)  # type: ignore[arg-type]


async def test_a_url_opens_a_memory_store_with_its_options() -> None:
    store = open_store("memory://?max_entries=1&ttl_seconds=0.5")

    await claim(store, "a")
    with pytest.raises(IdempotencyCapacityError):
        await claim(store, "b")


def test_a_store_is_opened_as_itself() -> None:
    store = MemoryStore()

    assert open_store(store) is store


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("memory://?ttl=5", "'ttl'"),
        ("memory://?max_entries=many", "max_entries"),
        ("memory://?max_entries=1.5", "max_entries"),
        ("memory://?max_entries=", "max_entries"),
        ("memory://?ttl_seconds=-1", "ttl_seconds"),
        ("memory://?ttl_seconds=1&ttl_seconds=2", "ttl_seconds"),
        ("memory://shop", "options only"),
        ("memory:///shop", "options only"),
        ("postgresql://carmy:hunter2@db/shop", "'postgresql'.*memory://"),
        ("shop.db", "''.*memory://"),
        ("", "''.*memory://"),
        ("memory://[", "URL"),
    ],
)
def test_a_url_that_names_no_store_is_refused_without_being_repeated(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        open_store(url)

    assert "hunter2" not in str(caught.value)
    assert "shop" not in str(caught.value)


def test_a_class_is_no_store() -> None:
    with pytest.raises(ConfigurationError, match="MemoryStore is a class"):
        open_store(MemoryStore)  # type: ignore[arg-type]


def test_an_object_that_is_no_store_is_refused() -> None:
    class Half:
        async def reserve(self) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'Half'.*complete, release, abandon, lookup"):
        open_store(Half())  # type: ignore[arg-type]
