"""One timer for many short lives: a wheel with two slots, for each event loop.

A timer of its own costs a quick call more than its policies do. Here a call is put on a list;
what is not done when the list's time has come is called back.
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


class _Rider(Protocol):
    """What is called back."""

    def at_slot(self) -> None: ...


class TimerWheel:
    """Calls back whoever came one to two slots ago; those who are done by then pass.

    It turns while anybody rides, and belongs to its loop's thread.
    """

    __slots__ = ("_coming", "_loop", "_riding")

    def __init__(self, loop: _Loop) -> None:
        """Turn in `loop`; `ride` makes the one wheel that it has."""
        self._loop = loop
        self._coming: list[_Rider] = []
        self._riding: list[_Rider] = []
        loop.call_later(SLOT_SECONDS, self._turn)

    @staticmethod
    def ride(loop: _Loop, rider: _Rider) -> None:
        """Call `rider.at_slot()` in one to two slots."""
        wheel = _wheels.get(loop)

        if wheel is None:
            for closed in [other for other in tuple(_wheels) if other.is_closed()]:
                _wheels.pop(closed, None)

            wheel = _wheels[loop] = TimerWheel(loop)

        wheel._coming.append(rider)

    def _turn(self) -> None:
        due, self._riding, self._coming = self._riding, self._coming, []

        if self._riding or due:
            self._loop.call_later(SLOT_SECONDS, self._turn)
        else:
            _wheels.pop(self._loop, None)

        for rider in due:
            rider.at_slot()


_wheels: dict[_Loop, TimerWheel] = {}
"""Loop → its wheel, while that turns."""
