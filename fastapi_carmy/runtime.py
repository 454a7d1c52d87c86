"""What all executions of one router share, and how they are stopped together."""

from collections.abc import Callable

import anyio

from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Cancellation, CancelReason
from fastapi_carmy.envelope import Call
from fastapi_carmy.events import Event
from fastapi_carmy.execution import Execution
from fastapi_carmy.seams import Opened, Settings

__all__ = ("Runtime",)


class Runtime:
    """Starts executions, and knows those that live."""

    def __init__(self, settings: Settings) -> None:
        """Serve executions under `settings`; binds nothing to a loop."""
        self.settings = settings
        self._live: set[Execution] = set()
        self._idle: anyio.Event | None = None

    @property
    def live(self) -> int:
        """How many executions have begun and left something to do."""
        return len(self._live)

    def execution(
        self,
        call: Call,
        caller: Caller,
        opened: Opened,
        cancellation: Cancellation,
        report: Callable[[Event], None] | None = None,
    ) -> Execution:
        """Prepare one execution: `run` it, then `aclose` it, both in the same task."""
        execution = Execution(
            self.settings,
            call,
            caller,
            opened,
            cancellation,
            report=report,
            leave=self._left,
        )
        self._live.add(execution)
        return execution

    async def stop(self, seconds: float) -> bool:
        """Tell every live execution to stop, and wait until they have left.

        Args:
            seconds: How long to wait at most.

        Returns:
            Whether all of them left in time.
        """
        for execution in tuple(self._live):
            execution.cancellation.fire(CancelReason.STOP)

        if self._live:
            self._idle = anyio.Event()

            with anyio.move_on_after(seconds):
                await self._idle.wait()

            self._idle = None

        return not self._live

    def _left(self, execution: Execution) -> None:
        self._live.discard(execution)

        if self._idle is not None and not self._live:
            self._idle.set()
