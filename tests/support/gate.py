"""A door in front of a thread: the test sees it arrive, and says when it goes on."""

import threading
from typing import Self

import anyio
from anyio.to_thread import run_sync

__all__ = ("Gate",)

LIMIT_SECONDS = 10.0


class Gate:
    """Holds a sync function in its thread until the test lets it go, at the latest on leaving."""

    def __init__(self) -> None:
        self._entered = threading.Event()
        self._is_open = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def pass_through(self) -> None:
        """Wait in front of it; called by the thread."""
        self._entered.set()
        assert self._is_open.wait(LIMIT_SECONDS), "Nobody opened the gate."

    def open(self) -> None:
        """Let whoever waits, or comes later, go on."""
        self._is_open.set()

    async def entered(self) -> None:
        """Return once somebody waits in front of it."""
        # A limiter of its own: the test's may be what the thread has taken the last place of.
        assert await run_sync(self._entered.wait, LIMIT_SECONDS, limiter=anyio.CapacityLimiter(1))
