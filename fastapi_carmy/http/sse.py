"""Server-Sent Events: one response for every stream that we serve.

FastAPI's own can't refuse before its first event, and lets dependencies commit when the
client hangs up; `sse-starlette` patches uvicorn when it is imported.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from starlette.types import Receive, Scope, Send

from fastapi_carmy.cancellation import start_task
from fastapi_carmy.http.request import disconnected

__all__ = ("KEEP_ALIVE", "FrameSource", "FrameStream")

KEEP_ALIVE = b":\n\n"
"""A comment, which no client sees. Source: WHATWG HTML, server-sent events, authoring notes."""


class FrameSource(Protocol):
    """Where a stream's frames come from. Whoever makes them runs in a task of its own."""

    async def take(self, seconds: float | None) -> bytes | None:
        """Return the frames that wait, as one chunk.

        Args:
            seconds: How long to wait for one; `None` means for ever.

        Returns:
            One frame or more; `b""` when none came in time; `None` after the last one.
        """
        ...


class FrameStream:
    """An ASGI response that sends frames as they come.

    It only sends, and watches for the client: it opens and closes nothing of the work
    behind the frames, and never slows it down.
    """

    def __init__(
        self,
        source: FrameSource,
        *,
        headers: Mapping[str, str],
        keep_alive_seconds: float | None = 15.0,
        on_disconnect: Callable[[], None],
        watch: bool = True,
    ) -> None:
        """Stream the frames of `source`.

        Args:
            source: The first `take` decides when the headers go out.
            headers: Beside the content type.
            keep_alive_seconds: Silence after which a comment is sent; `None` for never.
            on_disconnect: Told once when the client is gone, or when this response is cut.
            watch: Wait for the client's disconnect here; `False` when somebody else does.
        """
        self._source = source
        self._headers = [(b"content-type", b"text/event-stream")] + [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in headers.items()
        ]
        self._keep_alive_seconds = keep_alive_seconds
        self._on_disconnect = on_disconnect
        self._watch = watch

    async def __call__(
        self,
        scope: Scope,  # noqa: ARG002 - the signature of an ASGI application
        receive: Receive,
        send: Send,
    ) -> None:
        """Send the frames; return after the last one, or once the client is gone."""
        watcher = start_task(self._wait_for_disconnect(receive)) if self._watch else None

        try:
            await self._send_all(send)
        except OSError:
            # Since ASGI 2.4 a server says so when it can't send any more.
            self._on_disconnect()
        except BaseException:
            self._on_disconnect()
            raise
        finally:
            if watcher is not None:
                watcher.cancel()

    async def _send_all(self, send: Send) -> None:
        chunk = await self._source.take(None)
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})

        while chunk is not None:
            await send(
                {
                    "type": "http.response.body",
                    "body": chunk or KEEP_ALIVE,
                    "more_body": True,
                }
            )
            chunk = await self._source.take(self._keep_alive_seconds)

        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        await disconnected(receive)
        self._on_disconnect()
