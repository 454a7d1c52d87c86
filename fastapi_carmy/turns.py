"""One at a time, for tools that are not parallel-safe."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, cast

import anyio
from anyio.lowlevel import current_token

__all__ = ("Turn", "Turns")


class Turn:
    """Given to one execution at a time, first come, first served.

    Each successful `take` or `take_nowait` is followed by exactly one `give`, from whichever
    task, thread or event loop, even when the one that took it is gone by then.

    It is a token that one at a time has. Taking from a list and adding to it is atomic. A
    turn is given by putting the token back and then looking who waits; one waits by queueing
    up and then looking for the token. So one of the two sees the other.
    """

    __slots__ = ("_lock", "_token", "_waiting")

    def __init__(self) -> None:
        """Make a turn that nobody has taken."""
        self._token: list[None] = [None]
        self._waiting: OrderedDict[_Waiter, None] = OrderedDict()
        # Only for those who wait; a turn that is free is taken, and given, without. A lock of
        # anyio would tie a turn to the task that took it, and with it to one loop. This one
        # guards constant work without an `await`, so no loop waits for it long enough to
        # notice. Reentrant, because the garbage collector can end a forgotten task, which
        # gives its turn back, inside of any operation.
        self._lock = threading.RLock()

    def take_nowait(self) -> bool:
        """Take the turn if it is free and nobody waits for it; return whether it was."""
        if self._waiting:
            return False

        try:
            self._token.pop()
        except IndexError:
            return False

        return True

    async def take(self) -> None:
        """Take the turn, after all who wait for it already.

        A wait that is cancelled leaves the queue; if it was just given the turn, it passes
        it on.
        """
        if self.take_nowait():
            return

        waiter = _Waiter()

        with self._lock:
            self._waiting[waiter] = None
            # It may have become free before anybody knew who waits.
            self._hand_over()

        try:
            await waiter.wait()
        except BaseException:
            self._leave(waiter)
            raise

    def give(self) -> None:
        """Give the turn back; whoever waits longest has it now.

        Raises:
            RuntimeError: If nobody has taken it.
        """
        if self._token:
            raise RuntimeError("Nobody has taken this turn.")

        self._token.append(None)

        if self._waiting:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the turn to whoever waits longest, if it is free and anybody does."""
        with self._lock:
            while self._waiting:
                try:
                    self._token.pop()
                except IndexError:
                    return

                try:
                    waiter, _ = self._waiting.popitem(last=False)
                except KeyError:
                    # The garbage collector has just ended the one who waited.
                    self._token.append(None)
                    return

                if waiter.hand_over():
                    return

                self._token.append(None)

    def _leave(self, waiter: "_Waiter") -> None:
        with self._lock:
            self._waiting.pop(waiter, None)

            if waiter.has_turn:
                self._token.append(None)
                self._hand_over()


class Turns(dict[str, Turn]):
    """Each tool's turn, by the tool's name; made when it is first asked for."""

    __slots__ = ()

    def __missing__(self, tool_name: str) -> Turn:
        """Make the turn of a tool, or take the one that another thread has just made."""
        return self.setdefault(tool_name, Turn())


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
