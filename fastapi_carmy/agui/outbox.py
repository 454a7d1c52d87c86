"""What the agent has emitted and the client has not taken yet."""

import time

import anyio
from anyio.lowlevel import checkpoint

from fastapi_carmy.agui.errors import DisconnectedError, SlowConsumerError
from fastapi_carmy.cancellation import Bell

__all__ = ("Outbox",)

_WAIT_ABOVE_EVENTS = 128
_WAIT_ABOVE_BYTES = 64 * 1024
_TURN_SECONDS = 0.001


class Outbox:
    """Frames on their way out, in order; one reader, any number of writers.

    Awaited writers wait for a slow reader (`room`), plain ones may go on up to a cap.
    Frames that are waiting together are taken together.
    """

    __slots__ = (
        "_arrival",
        "_frames",
        "_is_closed",
        "_is_finished",
        "_last_turn",
        "_max_bytes",
        "_max_events",
        "_size",
        "_taken",
    )

    def __init__(self, *, max_events: int = 4096, max_bytes: int = 4 * 2**20) -> None:
        """Start empty.

        Args:
            max_events: How many frames may wait before `put` refuses another.
            max_bytes: How many bytes may; one frame of any size is taken when fewer wait.
        """
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._frames: list[bytes] = []
        self._size = 0
        self._is_finished = False
        self._is_closed = False
        self._last_turn = 0.0
        self._arrival = Bell()
        self._taken: anyio.Event | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the reader is gone."""
        return self._is_closed

    def check(self) -> None:
        """Refuse a writer that may not go on.

        Raises:
            DisconnectedError: If nothing more is read.
            SlowConsumerError: If too much waits already.
        """
        if self._is_closed or self._is_finished:
            raise DisconnectedError

        if len(self._frames) >= self._max_events or self._size >= self._max_bytes:
            raise SlowConsumerError

    def put(self, frame: bytes) -> None:
        """Add a frame; call `check` before, unless it has to go out in any case."""
        if self._is_closed or self._is_finished:
            return

        self._frames.append(frame)
        self._size += len(frame)

        self._arrival.ring()

    def finish(self) -> None:
        """Add nothing more; the reader gets what waits, then the end."""
        self._is_finished = True
        self._wake()

    def close(self) -> None:
        """Read nothing more; what waits is dropped."""
        self._is_closed = True
        self._frames.clear()
        self._size = 0
        self._wake()

    async def room(self) -> None:
        """Wait until the reader has caught up, and let it have a turn now and then.

        A burst costs one turn a millisecond, not one an event.
        """
        while len(self._frames) >= _WAIT_ABOVE_EVENTS or self._size >= _WAIT_ABOVE_BYTES:
            if self._taken is None:
                self._taken = anyio.Event()

            await self._taken.wait()

        now = time.monotonic()

        if now - self._last_turn >= _TURN_SECONDS:
            self._last_turn = now
            await checkpoint()

    async def turn(self) -> None:
        """Wait like `room`, and let the reader have a turn in any case."""
        self._last_turn = 0.0
        await self.room()

    async def drained(self) -> None:
        """Wait until the reader has taken everything."""
        while self._frames:
            if self._taken is None:
                self._taken = anyio.Event()

            await self._taken.wait()

        await checkpoint()

    async def wait(self) -> None:
        """Return once there is a frame, or nothing comes any more."""
        while not (self._frames or self._is_finished or self._is_closed):
            await self._arrival.wait()

    async def take(self, seconds: float | None) -> bytes | None:
        """Return the frames that wait, as one chunk.

        Args:
            seconds: How long to wait for one; `None` means for ever.

        Returns:
            One frame or more; `b""` when none came in time; `None` after the last one.
        """
        if not self._frames:
            if seconds is None:
                await self.wait()
            elif not (self._is_finished or self._is_closed):
                await self._arrival.wait(seconds)

        if self._frames:
            return b"".join(self.take_nowait())

        return None if self._is_finished or self._is_closed else b""

    def take_nowait(self) -> list[bytes]:
        """Return the frames that wait, if any do."""
        frames, self._frames = self._frames, []
        self._size = 0
        self._let_writers_go()

        return frames

    def _wake(self) -> None:
        self._arrival.ring()
        self._arrival.close()
        self._let_writers_go()

    def _let_writers_go(self) -> None:
        if self._taken is not None:
            self._taken.set()
            self._taken = None
