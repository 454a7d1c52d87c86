"""One timer for many short lives: a wheel with two slots, for each event loop.

A timer of its own costs a quick call more than its policies do. Here a call is put into a set,
and taken out when it is done; what is still there when the set's time has come is called back.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

__all__ = ("SLOT_SECONDS", "TimerWheels", "Wheel")

_logger = logging.getLogger(__name__)

SLOT_SECONDS = 0.05
"""How long a slot is filled; what is in it is called back one slot later."""


class _Loop(Protocol):
    """What is needed of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object: ...

    def is_closed(self) -> bool: ...


class _Rider(Protocol):
    """What is called back."""

    def at_slot(self) -> None: ...


class TimerWheels:
    """Call back whoever came one to two slots ago: one wheel for each event loop.

    A wheel turns while anybody rides, in its loop's thread, and is forgotten when it stops.
    """

    __slots__ = ("_wheels",)

    def __init__(self) -> None:
        """Turn nothing yet."""
        self._wheels: dict[_Loop, Wheel] = {}

    def ride(self, loop: _Loop, rider: _Rider) -> "Wheel":
        """Call `rider.at_slot()` in one to two slots; return the wheel, to get off before that."""
        wheel = self._wheels.get(loop)

        if wheel is None:
            for closed in [other for other in tuple(self._wheels) if other.is_closed()]:
                self._wheels.pop(closed, None)

            wheel = self._wheels[loop] = Wheel()
            loop.call_later(SLOT_SECONDS, partial(self._turn, loop, wheel))

        wheel.coming.add(rider)
        return wheel

    def _turn(self, loop: _Loop, wheel: "Wheel") -> None:
        due, wheel.riding, wheel.coming = wheel.riding, wheel.coming, set()

        if wheel.riding or due:
            loop.call_later(SLOT_SECONDS, partial(self._turn, loop, wheel))
        else:
            self._wheels.pop(loop, None)

        for rider in due:
            try:
                rider.at_slot()
            except Exception:
                # Those behind it keep their deadlines.
                _logger.exception("A call could not be watched.")


class Wheel:
    """One loop's riders, by the slot they came in."""

    __slots__ = ("coming", "riding")

    def __init__(self) -> None:
        """Carry nobody yet."""
        self.coming: set[_Rider] = set()
        self.riding: set[_Rider] = set()

    def get_off(self, rider: _Rider) -> None:
        """Forget `rider`. Whoever stayed for nothing would wake the garbage collector."""
        self.coming.discard(rider)
        self.riding.discard(rider)
