"""Noticing that the server is about to stop while streams are open.

A server waits for its open connections before it tells the application, so a stream
that waits for the application to be told would never end.
"""

import signal
from collections.abc import Callable

from fastapi_carmy.cancellation import after

__all__ = ("StopWatch", "server_is_stopping")

_EVERY_SECONDS = 0.25


def server_is_stopping() -> bool:
    """Whether the server was asked to stop, as far as it can be seen.

    uvicorn's own object stands behind its handler of SIGTERM; nothing is patched.
    """
    handler = signal.getsignal(signal.SIGTERM)
    server = getattr(handler, "__self__", None)

    return getattr(server, "should_exit", False) is True


class StopWatch:
    """Calls back once the server is stopping; watches while it is open."""

    __slots__ = ("_call", "_forget")

    def __init__(self, call: Callable[[], None]) -> None:
        """Watch from here to `close`, in the running loop."""
        self._call = call
        self._forget = after(_EVERY_SECONDS, self._look)

    def close(self) -> None:
        """Watch no more."""
        self._forget()

    def _look(self) -> None:
        if server_is_stopping():
            self._call()
        else:
            self._forget = after(_EVERY_SECONDS, self._look)
