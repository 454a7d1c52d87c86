"""Time that passes when the test says so."""

from dataclasses import dataclass

__all__ = ("Clock",)


@dataclass
class Clock:
    """Call it for the time; set or add to `now` to let time pass."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
