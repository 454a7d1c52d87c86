"""A run's cancellation token."""

from fastapi_carmy.cancellation import CancelReason, Latch

__all__ = ("CancelToken",)


class CancelToken:
    """Tells a run to stop: once, from anywhere, also from another thread.

    It belongs to no event loop, so it may be made before there is one.
    """

    __slots__ = ("latch", "reason")

    def __init__(self) -> None:
        self.latch = Latch()
        """For those who race against it."""
        self.reason: CancelReason | None = None
        """Why the run is to stop; the first reason stays."""

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody said stop."""
        return self.latch.is_set

    def cancel(self, reason: CancelReason = CancelReason.HOST) -> None:
        """Say stop; later calls do nothing."""
        if self.reason is None:
            self.reason = reason

        self.latch.set()

    async def wait(self) -> None:
        """Return once somebody said stop."""
        await self.latch.wait()
