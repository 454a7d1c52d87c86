"""The executions that live in one event loop, and one timer for all that are new.

A timer of its own costs a quick call more than its policies do. Here the loop's one timer
ticks for every call that has just begun; what takes its time then gets timers of its own.
"""

import logging

from fastapi_carmy.cancellation import TICK_SECONDS, Latch, Loop
from fastapi_carmy.execution import Execution
from fastapi_carmy.result import execution_ids
from fastapi_carmy.seams import Settings

__all__ = ("Live",)

_logger = logging.getLogger(__name__)


class Live:
    """The executions of one loop that have begun and left something to do, oldest first.

    Its methods are called in the loop.
    """

    __slots__ = ("_idle", "_loop", "executions", "ids", "is_ticking", "settings")

    def __init__(self, loop: Loop, settings: Settings) -> None:
        """Belong to `loop`, in which nothing lives yet."""
        self.settings = settings
        self.executions: dict[Execution, None] = {}
        """Whoever adds one sees to it that this ticks."""
        self.ids = execution_ids()
        """What to call the next one; no fork has a part in a loop of its parent."""
        self.is_ticking = False
        """Whether those with `ticks_left` are called."""
        self._loop = loop
        self._idle: list[Latch] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing can happen here any more."""
        return not self.executions and self._loop.is_closed()

    def start_ticking(self) -> None:
        """Call each new execution's signal, until none is new any more."""
        self.is_ticking = True
        self._loop.call_later(TICK_SECONDS, self._tick)

    def leave(self, execution: Execution) -> None:
        """Forget an execution; harmless when repeated, and from any thread."""
        self.executions.pop(execution, None)

        if self._idle and not self.executions:
            for latch in tuple(self._idle):
                latch.set()

    async def emptied(self) -> None:
        """Return once nothing lives here; works in any loop."""
        idle = Latch()
        self._idle.append(idle)

        try:
            # Looked at after the latch is known, so that nobody who leaves goes unnoticed.
            if self.executions:
                await idle.wait()
        finally:
            self._idle.remove(idle)

    def _tick(self) -> None:
        new: list[Execution] = []
        self.is_ticking = False

        # A copy: whatever thread a forgotten one is collected in, it may leave meanwhile.
        for execution in reversed(tuple(self.executions)):
            if not execution.cancellation.ticks_left:
                # Those before it came earlier.
                break

            new.append(execution)

        if new:
            # First of all, so that nothing that is raised below ends the ticking.
            self.start_ticking()

        for execution in new:
            try:
                execution.cancellation.tick()
            except Exception:
                # The others keep their deadlines.
                _logger.exception("Execution %s could not be watched.", execution.id)
