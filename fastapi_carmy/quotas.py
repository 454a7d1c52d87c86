"""How much has been spent of a quota, counted in this process."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

__all__ = ("MemoryQuota", "QuotaKey")

QuotaKey = tuple[str | None, ...]
"""Whose quota it is."""


class MemoryQuota:
    """Exact moving windows, one a key: at most `limit` in any `per_seconds`.

    The in-memory storages of `limits` are no use here: the plain one starts a thread for
    each call, the asynchronous one a task, and it belongs to one event loop.
    """

    def __init__(self, limit: int, per_seconds: int, clock: Callable[[], float]) -> None:
        """Make a quota of which nothing is spent.

        Args:
            limit: Most that is spent within any `per_seconds`, 1 or more.
            per_seconds: Length of the window, 1 or more.
            clock: Seconds that never go back.
        """
        self._limit = limit
        self._per_seconds = per_seconds
        self._clock = clock
        # When each key last spent, at most `limit` times; the key that spent last comes last.
        self._spent: OrderedDict[QuotaKey, deque[float]] = OrderedDict()
        # Nothing here awaits, so tasks of one loop cannot interleave; the lock is for loops in
        # several threads, and guards constant work.
        self._lock = threading.Lock()

    @property
    def key_count(self) -> int:
        """How many keys are remembered."""
        return len(self._spent)

    def spend(self, key: QuotaKey) -> float | None:
        """Spend one and return `None`, or return the seconds until there is one to spend."""
        with self._lock:
            now = self._clock()
            self._forget_idle(now)
            times = self._spent.get(key)
            if times is None:
                times = self._spent[key] = deque(maxlen=self._limit)

            if len(times) == self._limit and now - times[0] < self._per_seconds:
                return times[0] + self._per_seconds - now

            times.append(now)
            self._spent.move_to_end(key)
            return None

    def give_back(self, key: QuotaKey) -> None:
        """Take back the last one that was spent, if it still counts."""
        with self._lock:
            times = self._spent.get(key)
            if times:
                times.pop()

            if not times:
                self._spent.pop(key, None)

    def _forget_idle(self, now: float) -> None:
        # Each call may forget two keys and adds at most one, so idle ones go without a scan.
        for _ in range(2):
            idle = next(iter(self._spent), None)
            if idle is None or now - self._spent[idle][-1] < self._per_seconds:
                return

            del self._spent[idle]
