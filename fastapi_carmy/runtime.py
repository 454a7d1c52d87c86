"""What all executions of one router share, and how they are stopped together."""

from collections.abc import Callable
from contextlib import suppress

import anyio

from fastapi_carmy.cancellation import TICKS, Cancellation, CancelReason, Loop
from fastapi_carmy.events import Event
from fastapi_carmy.execution import Execution
from fastapi_carmy.live import Live
from fastapi_carmy.seams import Opened, Settings

__all__ = ("Runtime",)


class Runtime:
    """Begins executions, and knows those that live."""

    def __init__(self, settings: Settings) -> None:
        """Serve executions under `settings`; binds nothing to a loop."""
        self.settings = settings
        self._lives: dict[Loop, Live] = {}
        self._stops = 0

    @property
    def live(self) -> int:
        """How many executions have begun and left something to do."""
        return len(self._executions())

    def begin(
        self,
        opened: Opened,
        report: Callable[[Event], None] | None = None,
        cancellation: Cancellation | None = None,
    ) -> Execution:
        """Begin an execution, which `stop` interrupts and waits for until it has left.

        Either `run` it and then `aclose` it, or `withdraw` it, all in the same task.

        Args:
            opened: Its dependencies.
            report: Takes its events, or `None` when nobody watches.
            cancellation: Its signal, if somebody has it already.
        """
        if cancellation is None:
            cancellation = Cancellation()

        live = self._lives.get(cancellation.loop)

        if live is None:
            live = self._live_in(cancellation.loop)

        execution = Execution(live, opened, cancellation, report)
        live.executions[execution] = None
        cancellation.ticks_left = TICKS

        if not live.is_ticking:
            live.start_ticking()

        if self._stops:
            cancellation.fire(CancelReason.STOP)

        return execution

    async def stop(self, seconds: float) -> bool:
        """Tell everything that lives to stop, and wait until it has left.

        What begins meanwhile is told at once. What does not leave in time is left behind: its
        `request_id` is settled as if the process had ended.

        Args:
            seconds: How long to wait at most.

        Returns:
            Whether all of it left in time.
        """
        self._stops += 1

        try:
            for execution in self._executions():
                # It may live in another loop, or in one that was closed.
                with suppress(RuntimeError):
                    execution.cancellation.fire_threadsafe(CancelReason.STOP)

            with anyio.move_on_after(seconds):
                while self.live:
                    for live in tuple(self._lives.values()):
                        await live.emptied()

            left_behind = self._executions()

            with anyio.move_on_after(seconds):
                for execution in left_behind:
                    await execution.leave_behind()
        finally:
            self._stops -= 1

        return not self.live

    def _executions(self) -> list[Execution]:
        return [one for live in tuple(self._lives.values()) for one in tuple(live.executions)]

    def _live_in(self, loop: Loop) -> Live:
        """Know another loop, and forget those where nothing can happen any more."""
        for other, live in tuple(self._lives.items()):
            if live.is_over:
                self._lives.pop(other, None)

        return self._lives.setdefault(loop, Live(loop, self.settings))
