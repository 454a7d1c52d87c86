"""One at a time, for tools that are not parallel-safe."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, cast

import anyio
from anyio.lowlevel import current_token

__all__ = ("Turns",)


class Turns:
    """Gives each tool's turn to one execution at a time, first come, first served.

    Each successful `take` or `take_nowait` is followed by exactly one `give`, from whichever
    task, thread or event loop: the thread of a sync tool that outlives its deadline gives
    the turn back itself, even when its loop is gone by then.
    """

    __slots__ = ("_lock", "_taken")

    def __init__(self) -> None:
        """Make turns that nobody has taken."""
        # Tool → who waits for its turn, in order; a tool whose turn is free is not in here.
        self._taken: dict[str, OrderedDict[_Waiter, None] | None] = {}
        # A lock of anyio would tie a turn to the task that took it, and with it to one loop.
        # This one guards constant work without an `await`, so no loop waits for it long enough
        # to notice. Reentrant, because the garbage collector can end a forgotten task, which
        # gives its turn back, inside of any operation.
        self._lock = threading.RLock()

    def take_nowait(self, tool_name: str) -> bool:
        """Take the tool's turn if it is free, and return whether it was."""
        with self._lock:
            if tool_name in self._taken:
                return False

            self._taken[tool_name] = None
            return True

    async def take(self, tool_name: str) -> None:
        """Take the tool's turn, after all who wait for it already.

        A wait that is cancelled leaves the queue; if it was just given the turn, it passes
        it on.
        """
        with self._lock:
            if self.take_nowait(tool_name):
                return

            waiter = _Waiter()
            waiting = self._taken[tool_name]
            if waiting is None:
                waiting = self._taken[tool_name] = OrderedDict()

            waiting[waiter] = None

        try:
            await waiter.wait()
        except BaseException:
            self._leave(tool_name, waiter)
            raise

    def give(self, tool_name: str) -> None:
        """Give the tool's turn back; whoever waits longest has it now.

        Raises:
            RuntimeError: If nobody has taken it.
        """
        with self._lock:
            if tool_name not in self._taken:
                raise RuntimeError(f"Nobody has taken the turn of {tool_name!r}.")

            waiting = self._taken[tool_name]
            while waiting:
                waiter, _ = waiting.popitem(last=False)
                if waiter.hand_over():
                    return

            del self._taken[tool_name]

    def _leave(self, tool_name: str, waiter: "_Waiter") -> None:
        with self._lock:
            if waiter.has_turn:
                self.give(tool_name)
                return

            waiting = self._taken.get(tool_name)
            if waiting is not None:
                waiting.pop(waiter, None)


class _Loop(Protocol):
    """What is needed of an event loop."""

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object: ...


class _Waiter:
    """One task that waits, in its own loop."""

    __slots__ = ("_event", "_loop", "_thread", "has_turn")

    def __init__(self) -> None:
        self.has_turn = False
        self._event = anyio.Event()
        self._loop = cast("_Loop", current_token().native_token)
        self._thread = threading.get_ident()

    async def wait(self) -> None:
        await self._event.wait()

    def hand_over(self) -> bool:
        """Give the turn to this waiter; `False` when its loop is closed."""
        self.has_turn = True
        try:
            if self._thread == threading.get_ident():
                self._event.set()
            else:
                self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            self.has_turn = False

        return self.has_turn
