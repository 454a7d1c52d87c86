"""One timer for many short lives: a wheel with two slots, for each event loop.

A timer of its own costs a quick call more than its policies do. Here a call is put into a
set, and taken out again; only what is still there after a while is called back.
"""

from collections.abc import Callable
from typing import Protocol

__all__ = ("SLOT_SECONDS", "TimerWheel")

SLOT_SECONDS = 0.05
"""How long a slot is filled; what is in it is called back one slot later."""


class _Loop(Protocol):
    """What is needed of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object: ...

    def is_closed(self) -> bool: ...


class _Timed(Protocol):
    """What is called back."""

    def at_slot(self) -> None: ...


class TimerWheel:
    """Calls back what was added one to two slots ago and was not discarded since.

    It turns while anything is in it, and belongs to its loop's thread.
    """

    __slots__ = ("_filling", "_loop", "_waiting")

    def __init__(self, loop: _Loop) -> None:
        """Turn in `loop`; `ride` makes the one wheel that it has."""
        self._loop = loop
        self._filling: set[_Timed] = set()
        self._waiting: set[_Timed] = set()
        loop.call_later(SLOT_SECONDS, self._turn)

    @staticmethod
    def ride(loop: _Loop, item: _Timed) -> "TimerWheel":
        """Call `item.at_slot()` in one to two slots; return the wheel, to discard it from."""
        wheel = _wheels.get(loop)

        if wheel is None:
            for closed in [other for other in tuple(_wheels) if other.is_closed()]:
                _wheels.pop(closed, None)

            wheel = _wheels[loop] = TimerWheel(loop)

        wheel._filling.add(item)
        return wheel

    def discard(self, item: _Timed) -> None:
        """Forget `item`; harmless when it is not there."""
        self._filling.discard(item)
        self._waiting.discard(item)

    def _turn(self) -> None:
        due, self._waiting, self._filling = self._waiting, self._filling, set()

        if self._waiting or due:
            self._loop.call_later(SLOT_SECONDS, self._turn)
        else:
            _wheels.pop(self._loop, None)

        for item in due:
            item.at_slot()


_wheels: dict[_Loop, TimerWheel] = {}
"""Loop → its wheel, while that turns."""
