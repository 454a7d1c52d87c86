"""An execution's events, held for a reader that may be slow."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from fastapi_carmy.cancellation import Bell
from fastapi_carmy.events import Event, ExecutionStarted, ToolProgress, ToolStarted

__all__ = ("EventBuffer",)

_MAX_WAITING = 256
_MAX_WAITING_BYTES = 1024 * 1024

Item = TypeVar("Item")


class EventBuffer(Generic[Item]):
    """What one execution reports, rendered when it comes, for one reader.

    A slow reader stalls nobody: when too much progress waits, the oldest gives way. No
    other event is ever dropped.

    Source: carmy/1, section 2.3.
    """

    def __init__(
        self, render: Callable[[Event], Item], *, size: Callable[[Item], int] | None = None
    ) -> None:
        """Hold nothing yet.

        Args:
            render: Event → what the reader gets; called at once, in the order of events.
            size: Rendered progress → its bytes, which are limited too.
        """
        self._render = render
        self._size = size
        # Progress comes after what starts and before what completes: three runs in order.
        self._before: list[Item] = []
        self._progress: deque[Item] = deque()
        self._progress_bytes = 0
        self._after: list[Item] = []
        self._takes_progress = False
        self._has_ended = False
        self._failure: BaseException | None = None
        self._bell = Bell()

    def report(self, event: Event) -> None:
        """Take one event of the execution.

        Progress counts only while the tool is under way: guards have the same context, and
        so has a thread that outlives its deadline.
        """
        if isinstance(event, ToolProgress):
            if not self._takes_progress:
                return

            self._hold_progress(self._render(event))
        elif isinstance(event, ExecutionStarted | ToolStarted):
            self._takes_progress = isinstance(event, ToolStarted)
            self._before.append(self._render(event))
        else:
            self._takes_progress = False
            self._after.append(self._render(event))

        self._bell.ring()

    def end(self, failure: BaseException | None = None) -> None:
        """Say that nothing comes any more, and why, if that is not as it should be."""
        self._has_ended = True
        self._failure = failure
        self._bell.ring()
        # Nobody waits for a time any more.
        self._bell.close()

    async def wait(self, seconds: float | None = None) -> None:
        """Return once there is something to take, or after `seconds`.

        Raises:
            BaseException: What `end` was told, once everything before it was taken.
        """
        if not (self._has_ended or self._before or self._progress or self._after):
            await self._bell.wait(seconds)

        if self._failure is not None and not (self._before or self._progress or self._after):
            raise self._failure

    def take(self) -> list[Item] | None:
        """Return what waits, oldest first; `None` when nothing comes any more."""
        items = [*self._before, *self._progress, *self._after]

        if not items and self._has_ended:
            return None

        self._before.clear()
        self._progress.clear()
        self._progress_bytes = 0
        self._after.clear()
        return items

    async def next(self) -> list[Item] | None:
        """Wait for something, and take it; `None` when nothing comes any more."""
        await self.wait()
        return self.take()

    def _hold_progress(self, item: Item) -> None:
        self._progress.append(item)

        if self._size is not None:
            self._progress_bytes += self._size(item)

        while len(self._progress) > 1 and (
            len(self._progress) > _MAX_WAITING or self._progress_bytes > _MAX_WAITING_BYTES
        ):
            oldest = self._progress.popleft()

            if self._size is not None:
                self._progress_bytes -= self._size(oldest)
