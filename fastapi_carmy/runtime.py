"""What all executions of one router share, and how they are stopped together."""

from collections.abc import Callable
from contextlib import suppress

import anyio

from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Cancellation, CancelReason, Latch
from fastapi_carmy.envelope import Call
from fastapi_carmy.events import Event
from fastapi_carmy.execution import Execution
from fastapi_carmy.seams import Opened, Settings
from fastapi_carmy.timer_wheel import TimerWheels

__all__ = ("Runtime",)


class Runtime:
    """Starts executions, and knows those that live."""

    def __init__(self, settings: Settings) -> None:
        """Serve executions under `settings`; binds nothing to a loop."""
        self.settings = settings
        self.wheels = TimerWheels()
        """For the signals of its calls."""
        # Signal → the execution that has it; `None` for what is on its way to becoming one.
        self._live: dict[Cancellation, Execution | None] = {}
        self._idle: Latch | None = None

    @property
    def live(self) -> int:
        """How many calls have begun and left something to do."""
        return len(self._live)

    def execution(
        self,
        call: Call,
        caller: Caller | None,
        opened: Opened,
        cancellation: Cancellation,
        report: Callable[[Event], None] | None = None,
    ) -> Execution:
        """Prepare one execution: `run` it, then `aclose` it, both in the same task."""
        execution = self._live[cancellation] = Execution(
            self.settings,
            call,
            caller,
            opened,
            cancellation,
            report=report,
            leave=self.leave,
        )
        return execution

    def enter(self, cancellation: Cancellation) -> None:
        """Know something that `stop` is to interrupt and to wait for, until it leaves."""
        self._live[cancellation] = None

    def leave(self, cancellation: Cancellation) -> None:
        """Forget what has entered, or was an execution; harmless when repeated."""
        self._live.pop(cancellation, None)

        idle = self._idle

        if idle is not None and not self._live:
            idle.set()

    async def stop(self, seconds: float) -> bool:
        """Tell everything that lives to stop, and wait until it has left.

        What does not leave in time is left behind: its `request_id` is settled as if the
        process had ended.

        Args:
            seconds: How long to wait at most.

        Returns:
            Whether all of it left in time.
        """
        # Before anything else, so that nobody who leaves goes unnoticed.
        idle = self._idle = self._idle or Latch()

        for cancellation in tuple(self._live):
            # It may live in another loop, or in one that was closed.
            with suppress(RuntimeError):
                cancellation.fire_threadsafe(CancelReason.STOP)

        if self._live:
            with anyio.move_on_after(seconds):
                await idle.wait()

        self._idle = None

        left_behind = [one for one in self._live.values() if one is not None]

        with anyio.move_on_after(seconds):
            for execution in left_behind:
                await execution.leave_behind()

        return not self._live
