"""A store in this process's memory."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.stores.base import (
    Acquired,
    Conflict,
    Entry,
    IdempotencyCapacityError,
    InProgress,
    Key,
    Record,
    Replay,
    Reservation,
)

__all__ = ("MemoryStore",)

# Each claim may drop two and adds at most one, so expired entries go without a scan.
_DROPPED_AT_ONCE = 2
_ACQUIRED = Acquired()


class MemoryStore:
    """Keeps entries in this process: for one worker, and for tests.

    Finished entries expire `ttl_seconds` after they finished, and the least recently
    used ones make room when `max_entries` or `max_bytes` is reached. Entries that have not
    finished are never dropped, nor is an answer that has just been given, whatever its
    size. Operations take constant time on average.

    It implements `IdempotencyStore`; what it holds is lost when the process ends.
    """

    def __init__(
        self,
        *,
        ttl_seconds: float = 86_400.0,
        max_entries: int = 10_000,
        max_bytes: int = 64 * 2**20,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Make an empty store.

        Args:
            ttl_seconds: How long an answer is replayed, counted from `complete`.
            max_entries: Most entries held at once, finished or not.
            max_bytes: Most bytes of answers held at once.
            clock: Seconds that never go back; decides what has expired.
            wall_clock: Seconds since the epoch; only for `started_at`.

        Raises:
            ConfigurationError: If a limit is not positive.
        """
        if not ttl_seconds > 0:
            raise ConfigurationError(f"ttl_seconds must be above 0, not {ttl_seconds!r}.")

        if max_entries < 1:
            raise ConfigurationError(f"max_entries must be 1 or more, not {max_entries!r}.")

        if max_bytes < 1:
            raise ConfigurationError(f"max_bytes must be 1 or more, not {max_bytes!r}.")

        self._ttl_seconds = ttl_seconds
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._clock = clock
        self._wall_clock = wall_clock
        self._slots: dict[Key, _Slot] = {}
        # Both hold the finished slots: one by when they expire, one by when they were used.
        # The lifetime is one for all, so the order of finishing is the order of expiring.
        self._by_expiry: OrderedDict[Key, float] = OrderedDict()
        self._by_use: OrderedDict[Key, None] = OrderedDict()
        # No slot expires before that; one that went earlier may leave it too low.
        self._expires_next = math.inf
        # Nothing here awaits, so tasks of one loop cannot interleave. The lock is for loops in
        # several threads, which a TestClient without `with` has. It guards constant work, so
        # nobody waits long enough to notice. Reentrant, because the garbage collector can
        # finish a forgotten execution, and with it release its key, inside of any operation.
        self._lock = threading.RLock()

    @property
    def entry_count(self) -> int:
        """How many entries are held, with those that have expired and are not dropped yet."""
        return len(self._slots)

    async def reserve(
        self, key: Key, *, fingerprint: str, execution_id: str, may_repeat: bool
    ) -> Reservation:
        """See `IdempotencyStore.reserve`."""
        with self._lock:
            now = self._clock()

            if now >= self._expires_next:
                self._drop_expired(now)

            slot = self._live(key, now)

            if slot is None:
                if len(self._slots) >= self._max_entries:
                    self._make_room()

                self._slots[key] = _Slot(execution_id, fingerprint, self._wall_clock())
                return _ACQUIRED

            if slot.fingerprint != fingerprint:
                return Conflict()

            if slot.record is not None:
                self._by_use.move_to_end(key)
                return Replay(slot.record)

            if slot.is_abandoned and may_repeat:
                self._slots[key] = _Slot(execution_id, fingerprint, self._wall_clock())
                return _ACQUIRED

            return InProgress(
                slot.execution_id,
                _timestamp(slot.started_at),
                "abandoned" if slot.is_abandoned else "running",
            )

    async def complete(self, key: Key, *, execution_id: str, record: Record) -> bool:
        """See `IdempotencyStore.complete`."""
        with self._lock:
            slot = self._unfinished(key, execution_id)
            if slot is None:
                return False

            now = self._clock()
            self._bytes += len(record.body)

            if self._bytes > self._max_bytes:
                self._make_room_for_bytes(now)

            slot.record = record
            self._by_use[key] = None
            self._by_expiry[key] = expires = now + self._ttl_seconds
            self._expires_next = min(self._expires_next, expires)
            return True

    async def release(self, key: Key, *, execution_id: str) -> bool:
        """See `IdempotencyStore.release`."""
        with self._lock:
            if self._unfinished(key, execution_id) is None:
                return False

            del self._slots[key]
            return True

    async def abandon(self, key: Key, *, execution_id: str) -> bool:
        """See `IdempotencyStore.abandon`."""
        with self._lock:
            slot = self._unfinished(key, execution_id)
            if slot is None:
                return False

            slot.is_abandoned = True
            return True

    async def lookup(self, key: Key) -> Entry | None:
        """See `IdempotencyStore.lookup`."""
        with self._lock:
            slot = self._live(key, self._clock())
            return None if slot is None else slot.as_entry()

    async def aclose(self) -> None:
        """Do nothing: there is nothing to let go of."""

    def _live(self, key: Key, now: float) -> "_Slot | None":
        slot = self._slots.get(key)
        if slot is not None and slot.record is not None and self._by_expiry[key] <= now:
            self._drop(key)
            return None

        return slot

    def _unfinished(self, key: Key, execution_id: str) -> "_Slot | None":
        slot = self._slots.get(key)
        if slot is None or slot.execution_id != execution_id or slot.record is not None:
            return None

        return slot

    def _drop_expired(self, now: float) -> None:
        for _ in range(_DROPPED_AT_ONCE):
            oldest = next(iter(self._by_expiry), None)
            self._expires_next = math.inf if oldest is None else self._by_expiry[oldest]

            if oldest is None or self._expires_next > now:
                return

            self._drop(oldest)

    def _make_room(self) -> None:
        least_used = next(iter(self._by_use), None)
        if least_used is None:
            raise IdempotencyCapacityError(self._max_entries)

        self._drop(least_used)

    def _make_room_for_bytes(self, now: float) -> None:
        while self._bytes > self._max_bytes and self._by_use:
            oldest = next(iter(self._by_expiry))
            has_expired = self._by_expiry[oldest] <= now
            self._drop(oldest if has_expired else next(iter(self._by_use)))

    def _drop(self, key: Key) -> None:
        record = self._slots.pop(key).record
        self._bytes -= 0 if record is None else len(record.body)
        del self._by_expiry[key]
        del self._by_use[key]


class _Slot:
    """One entry, while it changes."""

    __slots__ = ("execution_id", "fingerprint", "is_abandoned", "record", "started_at")

    def __init__(self, execution_id: str, fingerprint: str, started_at: float) -> None:
        self.execution_id = execution_id
        self.fingerprint = fingerprint
        self.started_at = started_at
        self.is_abandoned = False
        self.record: Record | None = None

    def as_entry(self) -> Entry:
        state: Literal["running", "abandoned", "finished"] = "running"
        if self.record is not None:
            state = "finished"
        elif self.is_abandoned:
            state = "abandoned"

        return Entry(
            execution_id=self.execution_id,
            fingerprint=self.fingerprint,
            started_at=_timestamp(self.started_at),
            state=state,
            record=self.record,
        )


def _timestamp(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
