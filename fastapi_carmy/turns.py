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

    __slots__ = ("_lock", "_turns")

    def __init__(self) -> None:
        """Make turns that nobody has taken."""
        self._turns: dict[str, _Turn] = {}
        # Only for those who wait; a turn that is free is taken, and given, without. A lock of
        # anyio would tie a turn to the task that took it, and with it to one loop. This one
        # guards constant work without an `await`, so no loop waits for it long enough to
        # notice. Reentrant, because the garbage collector can end a forgotten task, which
        # gives its turn back, inside of any operation.
        self._lock = threading.RLock()

    def take_nowait(self, tool_name: str) -> bool:
        """Take the tool's turn if it is free, and return whether it was."""
        turn = self._turns.get(tool_name)

        if turn is None:
            turn = self._turns.setdefault(tool_name, _Turn())

        # Those who wait come first.
        return not turn.waiting and turn.take()

    async def take(self, tool_name: str) -> None:
        """Take the tool's turn, after all who wait for it already.

        A wait that is cancelled leaves the queue; if it was just given the turn, it passes
        it on.
        """
        if self.take_nowait(tool_name):
            return

        turn = self._turns[tool_name]
        waiter = _Waiter()

        with self._lock:
            turn.waiting[waiter] = None
            # It may have become free before anybody knew who waits.
            self._hand_over(turn)

        try:
            await waiter.wait()
        except BaseException:
            self._leave(turn, waiter)
            raise

    def give(self, tool_name: str) -> None:
        """Give the tool's turn back; whoever waits longest has it now.

        Raises:
            RuntimeError: If nobody has taken it.
        """
        turn = self._turns.get(tool_name)

        if turn is None or turn.token:
            raise RuntimeError(f"Nobody has taken the turn of {tool_name!r}.")

        turn.token.append(None)

        if turn.waiting:
            self._hand_over(turn)

    def _hand_over(self, turn: "_Turn") -> None:
        """Give the turn to whoever waits longest, if it is free and anybody does."""
        with self._lock:
            while turn.waiting and turn.take():
                try:
                    waiter, _ = turn.waiting.popitem(last=False)
                except KeyError:
                    # The garbage collector has just ended the one who waited.
                    turn.token.append(None)
                    return

                if waiter.hand_over():
                    return

                turn.token.append(None)

    def _leave(self, turn: "_Turn", waiter: "_Waiter") -> None:
        with self._lock:
            turn.waiting.pop(waiter, None)

            if waiter.has_turn:
                turn.token.append(None)
                self._hand_over(turn)


class _Turn:
    """One tool's turn: a token that one at a time has, and who waits for it, in order.

    Taking from a list and adding to it is atomic. A turn is given by putting the token back
    and then looking who waits; one waits by queueing up and then looking for the token. So
    one of the two sees the other.
    """

    __slots__ = ("token", "waiting")

    def __init__(self) -> None:
        self.token: list[None] = [None]
        self.waiting: OrderedDict[_Waiter, None] = OrderedDict()

    def take(self) -> bool:
        """Take the token, if it is there."""
        try:
            self.token.pop()
        except IndexError:
            return False

        return True


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
