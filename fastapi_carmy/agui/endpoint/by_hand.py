"""For endpoints that are written by hand: read a run's input, answer with events."""

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Final

import anyio
from ag_ui.core import BaseEvent, RunAgentInput
from fastapi import Depends, HTTPException, Request
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fastapi_carmy.agui.encode import encode_event
from fastapi_carmy.agui.endpoint.serving import STREAM_HEADERS, read_input, refusal_body
from fastapi_carmy.agui.errors import DisconnectedError, RefusedRequestError
from fastapi_carmy.agui.failures import failure_event
from fastapi_carmy.agui.interruption import Interruption, close_iterator
from fastapi_carmy.agui.negotiation import EVENT_STREAM
from fastapi_carmy.agui.outbox import Outbox
from fastapi_carmy.agui.tokens import CancelToken
from fastapi_carmy.cancellation import CancelReason, Interrupted, Task, join, start_task
from fastapi_carmy.http.request import Inbox
from fastapi_carmy.http.sse import FrameStream

__all__ = ("AgUiInput", "EventStreamResponse", "read_run_input", "refusal_response")

_logger = logging.getLogger("fastapi_carmy.agui")

_VARY: Final = {"vary": "accept"}


async def read_run_input(
    request: Request, *, max_body_bytes: int = 2 * 2**20, require_content_type: bool = False
) -> RunAgentInput:
    """Return the input that a request carries.

    Args:
        request: Its body may have been read by others, as a whole.
        max_body_bytes: Limit of the body.
        require_content_type: Whether a body without a Content-Type is refused.

    Raises:
        RefusedRequestError: If there is no input in it; `refusal_response` answers that.
    """
    return await read_input(
        Inbox(request.scope, _receive_of(request), max_body_bytes),
        require_content_type=require_content_type,
    )


def _receive_of(request: Request) -> Receive:
    """Return ASGI's `receive` for a body that the request may have kept."""
    parts = request.stream()

    async def receive() -> Message:
        try:
            return {"type": "http.request", "body": await anext(parts), "more_body": True}
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}
        except ClientDisconnect:
            return {"type": "http.disconnect"}

    return receive


def refusal_response(error: RefusedRequestError) -> Response:
    """Return the answer to a request that does not become a run: `{"code", "message"}`."""
    return Response(
        refusal_body(error.code, error.message),
        error.status_code,
        headers={**error.headers, **_VARY},
        media_type="application/json",
    )


async def _input(request: Request) -> RunAgentInput:
    try:
        return await read_run_input(request)
    except RefusedRequestError as error:
        # An endpoint of the host's answers in the host's form.
        raise HTTPException(
            error.status_code,
            {"code": error.code, "message": error.message},
            headers={**error.headers, **_VARY},
        ) from error


AgUiInput = Annotated[RunAgentInput, Depends(_input)]
"""A parameter that takes the run's input from the body; what is none is refused.

The refusal is an `HTTPException` whose `detail` has `code` and `message`.
"""


class EventStreamResponse(Response):
    """Answers with events of `ag_ui.core`, as they come.

    When the client leaves, the token trips first; then the iterator is interrupted. When
    somebody else trips it, the iterator ends by itself. One that raises ends in RUN_ERROR.
    The order of the events is the caller's business: `run_events` gives a whole run's.
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        events: AsyncIterator[BaseEvent],
        *,
        token: CancelToken | None = None,
        keep_alive_seconds: float | None = 15.0,
        disconnect_grace_seconds: float = 0.5,
        expose_errors: bool = False,
        headers: Mapping[str, str] | None = None,
        background: BackgroundTask | None = None,
    ) -> None:
        """Answer with `events`.

        Args:
            events: Iterated in a task of its own.
            token: Trips when the client leaves.
            keep_alive_seconds: Silence after which a comment is sent; `None` for never.
            disconnect_grace_seconds: How long `events` may go on after the client left.
            expose_errors: Whether the text of an unexpected exception is told.
            headers: Beside those of an event stream.
            background: Runs when the stream has ended.
        """
        self.status_code = 200
        self.background = background
        self.body = b""
        self._events = events
        self._token = token or CancelToken()
        self._gone = CancelToken()
        self._keep_alive_seconds = keep_alive_seconds
        self._grace_seconds = disconnect_grace_seconds
        self._expose_errors = expose_errors
        self._outbox = Outbox()
        self._released = anyio.Event()
        self.init_headers({**(headers or {}), **STREAM_HEADERS, "content-type": EVENT_STREAM})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; return when they, or the client, have ended."""
        task = start_task(self._pump())
        task.add_done_callback(self._release)
        stream = FrameStream(
            self._outbox,
            headers={name: value for name, value in self.headers.items() if name != "content-type"},
            keep_alive_seconds=self._keep_alive_seconds,
            on_disconnect=self._disconnect,
        )

        try:
            await stream(scope, receive, send)
            await self._released.wait()
        except BaseException:
            self._disconnect()
            raise

        if task.done():
            await join(task)

        if self.background is not None:
            await self.background()

    def _disconnect(self) -> None:
        self._token.cancel(CancelReason.DISCONNECT)
        self._gone.cancel(CancelReason.DISCONNECT)
        self._outbox.close()

    def _release(self, task: "Task[object]") -> None:
        del task
        self._released.set()

    async def _pump(self) -> None:
        interruption = Interruption(
            self._gone, grace_seconds=self._grace_seconds, let_go=self._released.set
        )

        try:
            interruption.begin()
            await self._send_all()
        except DisconnectedError:
            pass
        # The edge of a stream: told to the client, if there still is one.
        except (Exception, Interrupted) as error:  # noqa: BLE001
            self._fail(error)
        finally:
            interruption.end()
            interruption.close()
            await interruption.settle()

            await close_iterator(self._events)

            self._outbox.finish()

    async def _send_all(self) -> None:
        async for event in self._events:
            self._outbox.check()
            self._outbox.put(encode_event(event))
            await self._outbox.room()

    def _fail(self, error: BaseException) -> None:
        if self._gone.is_cancelled:
            return

        self._outbox.put(encode_event(failure_event(error, expose=self._expose_errors)))
