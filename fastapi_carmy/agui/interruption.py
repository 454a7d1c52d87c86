"""How long work may go on after its token has tripped."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi_carmy.agui.tokens import CancelToken
from fastapi_carmy.cancellation import Cancellation, CancelReason, after

__all__ = ("Interruption", "close_iterator")

_logger = logging.getLogger("fastapi_carmy.agui")

_LET_GO_SECONDS = 2.0


class Interruption:
    """Watches a token for one task: grace, then one interruption, then letting go.

    Made in the task, which calls `begin` and `end` around the work that may be
    interrupted, and `settle` afterwards.
    """

    def __init__(
        self, token: CancelToken, *, grace_seconds: float, let_go: Callable[[], None]
    ) -> None:
        """Watch `token` from here to `close`.

        Args:
            token: Tells the task to stop.
            grace_seconds: How long the work may take to stop by itself.
            let_go: Called when it does not stop for seconds after it was interrupted.
        """
        self._token = token
        self._grace_seconds = grace_seconds
        self._give_up = let_go
        self._cancellation = Cancellation()
        self._is_closed = False
        self._timers = [token.latch.then(self._stop)]

    def limit(self, seconds: float) -> None:
        """Trip the token after `seconds`."""
        self._timers.append(after(seconds, self._at_limit))

    def begin(self) -> None:
        """Let the current task be interrupted from here to `end`."""
        self._cancellation.begin()

    def end(self) -> None:
        """Let nothing interrupt the task any more."""
        self._cancellation.end()

    async def settle(self) -> bool:
        """Take back the interruption; tell whether nobody else wants the task to stop."""
        return await self._cancellation.settle()

    def close(self) -> None:
        """Stop watching."""
        self._is_closed = True

        for take_back in self._timers:
            take_back()

    def _at_limit(self) -> None:
        self._token.cancel(CancelReason.DEADLINE)

    def _stop(self) -> None:
        # The latch may have called before it was taken back.
        if self._is_closed:
            return

        # A limit has given all its time already; everybody else leaves some.
        is_over = self._token.reason is CancelReason.DEADLINE
        self._timers.append(after(0 if is_over else self._grace_seconds, self._interrupt))

    def _interrupt(self) -> None:
        self._cancellation.fire(self._token.reason or CancelReason.HOST)
        self._timers.append(after(_LET_GO_SECONDS, self._let_go))

    def _let_go(self) -> None:
        _logger.warning("An agent did not stop %s s after it was cancelled.", _LET_GO_SECONDS)
        self._give_up()


async def close_iterator(items: AsyncIterator[object]) -> None:
    """Close an async generator; other iterators have nothing to close."""
    close: Callable[[], Awaitable[None]] | None = getattr(items, "aclose", None)

    if close is not None:
        await close()
