"""The store against a model too simple to be wrong, whatever is done in whichever order."""

from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, TypeVar

import hypothesis.strategies as st
from anyio.from_thread import start_blocking_portal
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
)

from fastapi_carmy.stores import (
    Acquired,
    Conflict,
    Entry,
    IdempotencyCapacityError,
    InProgress,
    Key,
    MemoryStore,
    Record,
    Replay,
    Reservation,
)
from tests.support.clock import Clock

TTL_SECONDS = 10
MAX_ENTRIES = 3
MAX_BYTES = 4
KEYS = [
    Key(None, None, "r"),
    Key("a", None, "r"),
    Key("a", "s", "r"),
    Key("b", None, "r"),
    Key("b", None, "q"),
]

T = TypeVar("T")
Claim = tuple[Key, str]


@dataclass
class Modelled:
    execution_id: str
    fingerprint: str
    started_at: str
    state: Literal["running", "abandoned", "finished"] = "running"
    record: Record | None = None
    finished_at: float = 0.0
    used: int = 0


class StoreStates(RuleBasedStateMachine):
    """Takes each step on a `MemoryStore` and on a plain dict."""

    claims: Bundle[Claim] = Bundle("claims")
    """Acquired once; the key may have another owner since."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.portal = self.stack.enter_context(start_blocking_portal())
        self.clock = Clock()
        self.store = MemoryStore(
            ttl_seconds=TTL_SECONDS,
            max_entries=MAX_ENTRIES,
            max_bytes=MAX_BYTES,
            clock=self.clock,
            wall_clock=self.clock,
        )
        self.model: dict[Key, Modelled] = {}
        self.steps = 0

    def teardown(self) -> None:
        self.stack.close()

    def run(self, step: Callable[[], Coroutine[object, object, T]]) -> T:
        self.steps += 1
        return self.portal.call(step)

    @rule(seconds=st.sampled_from([1, TTL_SECONDS - 1, TTL_SECONDS]))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.now += seconds
        self.model = {
            key: entry
            for key, entry in self.model.items()
            if entry.record is None or self.clock.now < entry.finished_at + TTL_SECONDS
        }

    @rule(
        target=claims,
        key=st.sampled_from(KEYS),
        fingerprint=st.sampled_from(["one", "two"]),
        may_repeat=st.booleans(),
    )
    def reserve(
        self, key: Key, fingerprint: str, may_repeat: bool
    ) -> Claim | MultipleResults[Claim]:
        execution_id = f"exec_{self.steps}"

        async def step() -> Reservation | None:
            try:
                return await self.store.reserve(
                    key, fingerprint=fingerprint, execution_id=execution_id, may_repeat=may_repeat
                )
            except IdempotencyCapacityError:
                return None

        answer = self.run(step)

        assert answer == self.expected_answer(key, fingerprint, may_repeat=may_repeat)
        if answer != Acquired():
            return multiple()

        started_at = f"1970-01-01T00:{self.clock.now // 60:02.0f}:{self.clock.now % 60:02.0f}.000Z"
        self.model[key] = Modelled(execution_id, fingerprint, started_at)
        return (key, execution_id)

    def expected_answer(
        self, key: Key, fingerprint: str, *, may_repeat: bool
    ) -> Reservation | None:
        entry = self.model.get(key)
        if entry is None:
            return Acquired() if self.model_has_room() else None

        if entry.fingerprint != fingerprint:
            return Conflict()

        if entry.record is not None:
            entry.used = self.steps
            return Replay(entry.record)

        if entry.state == "running":
            return InProgress(entry.execution_id, entry.started_at, "running")

        if may_repeat:
            return Acquired()

        return InProgress(entry.execution_id, entry.started_at, "abandoned")

    def model_has_room(self) -> bool:
        finished = [key for key, entry in self.model.items() if entry.record is not None]
        if len(self.model) == MAX_ENTRIES and finished:
            del self.model[min(finished, key=lambda key: self.model[key].used)]

        return len(self.model) < MAX_ENTRIES

    def model_makes_room_for(self, body: bytes) -> None:
        while True:
            held = {
                key: entry.record for key, entry in self.model.items() if entry.record is not None
            }
            if not held or len(body) + sum(len(one.body) for one in held.values()) <= MAX_BYTES:
                return

            del self.model[min(held, key=lambda key: self.model[key].used)]

    def owned(self, claim: Claim) -> Modelled | None:
        key, execution_id = claim
        entry = self.model.get(key)
        is_owned = entry and entry.execution_id == execution_id and entry.record is None
        return entry if is_owned else None

    @rule(claim=claims, body=st.binary(max_size=5))
    def complete(self, claim: Claim, body: bytes) -> None:
        key, execution_id = claim
        record = Record(execution_id, "completed", body)

        async def step() -> bool:
            return await self.store.complete(key, execution_id=execution_id, record=record)

        is_done = self.run(step)

        entry = self.owned(claim)
        assert is_done == (entry is not None)
        if entry is not None:
            self.model_makes_room_for(body)
            entry.state, entry.record = "finished", record
            entry.finished_at, entry.used = self.clock.now, self.steps

    @rule(claim=claims)
    def release(self, claim: Claim) -> None:
        key, execution_id = claim

        async def step() -> bool:
            return await self.store.release(key, execution_id=execution_id)

        is_done = self.run(step)

        assert is_done == (self.owned(claim) is not None)
        if is_done:
            del self.model[key]

    @rule(claim=claims)
    def abandon(self, claim: Claim) -> None:
        key, execution_id = claim

        async def step() -> bool:
            return await self.store.abandon(key, execution_id=execution_id)

        is_done = self.run(step)

        entry = self.owned(claim)
        assert is_done == (entry is not None)
        if entry is not None:
            entry.state = "abandoned"

    @invariant()
    def every_entry_is_as_modelled(self) -> None:
        async def step() -> list[Entry | None]:
            return [await self.store.lookup(key) for key in KEYS]

        expected = [
            None
            if entry is None
            else Entry(
                execution_id=entry.execution_id,
                fingerprint=entry.fingerprint,
                started_at=entry.started_at,
                state=entry.state,
                record=entry.record,
            )
            for entry in map(self.model.get, KEYS)
        ]
        assert self.portal.call(step) == expected


test_the_store_does_what_the_model_does = StoreStates.TestCase
