"""`POST /agent/execute`: one call, answered as JSON or as an event stream."""

from collections.abc import Callable
from functools import partial
from typing import Final

from starlette.types import Receive, Scope, Send

from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import (
    Cancellation,
    CancelReason,
    Interrupted,
    Task,
    join,
    start_task,
)
from fastapi_carmy.envelope import Call, decode
from fastapi_carmy.errors import AgentError
from fastapi_carmy.execution import Execution
from fastapi_carmy.http.accept import wants_event_stream
from fastapi_carmy.http.frames import ExecutionFrames
from fastapi_carmy.http.request import Inbox, RequestHead, disconnected
from fastapi_carmy.http.responses import send_error, send_result
from fastapi_carmy.http.sse import FrameStream
from fastapi_carmy.injection import Guards, HttpOpened
from fastapi_carmy.runtime_errors import cancelled
from fastapi_carmy.service import Service

__all__ = ("ExecuteEndpoint",)

_STREAM_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class ExecuteEndpoint:
    """Runs one tool a request. Source: carmy/1, section 2."""

    methods = ("POST",)
    is_agent = False

    def __init__(
        self,
        owner: object,
        service: Callable[[object], Service],
        *,
        max_body_bytes: int,
    ) -> None:
        """Serve the tools of `service`, which is made when the first request comes."""
        self.owner = owner
        self._service = service
        self._max_body_bytes = max_body_bytes
        # The loop holds tasks weakly; these outlive their request when a client hangs up.
        self._tasks: set[Task[object]] = set()

    async def respond(self, scope: Scope, receive: Receive, send: Send, guards: Guards) -> None:
        """See `Endpoint.respond`."""
        head = RequestHead.of(scope)
        head.check_length(self._max_body_bytes)
        request = _Request(
            self._service(scope.get("app")),
            scope,
            receive,
            guards,
            head=head,
            max_body_bytes=self._max_body_bytes,
        )

        if wants_event_stream(head.accept):
            await self._stream(request, send)
        else:
            await _answer(request, send)

    async def refuse(self, send: Send, error: AgentError) -> None:
        """See `Endpoint.refuse`."""
        await send_error(send, error)

    async def _stream(self, request: "_Request", send: Send) -> None:
        """Run the call in a task of its own, so that a slow reader can't stall it."""
        frames = ExecutionFrames()
        cancellation = Cancellation()
        task = start_task(_produce(request, frames, cancellation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        stream = FrameStream(
            frames,
            headers=_STREAM_HEADERS,
            on_disconnect=partial(cancellation.fire, CancelReason.DISCONNECT),
            watch=False,
        )

        try:
            await frames.opened()
            await stream(request.scope, request.receive, send)
            await join(task)
        except BaseException:
            cancellation.fire(CancelReason.DISCONNECT)
            raise


class _Request:
    """One request on its way to becoming an execution."""

    def __init__(
        self,
        service: Service,
        scope: Scope,
        receive: Receive,
        guards: Guards,
        *,
        head: RequestHead,
        max_body_bytes: int,
    ) -> None:
        self.scope = scope
        self.receive = receive
        self._inbox = Inbox(receive, max_body_bytes)
        self.opened = HttpOpened(scope, self._inbox.receive, guards)
        self._service = service
        self._head = head

    async def execution(
        self, cancellation: Cancellation, frames: ExecutionFrames | None = None
    ) -> Execution:
        """Pass the router's guards, read the body, and prepare what it asks for.

        Raises:
            Exception: What a guard refuses with, or an `AgentError` of ours; the guards are
                closed by then.
        """
        runtime = self._service.runtime
        # A stream's task is known to nobody else until there is an execution.
        runtime.enter(self, cancellation)

        try:
            cancellation.begin()
            caller = await self.opened.router_guards() if self.opened.has_router_guards else None
            self._head.check_content_type()
            body = await self._inbox.body()
            cancellation.watch(partial(disconnected, self.receive))
            call = self._call(body)
            cancellation.end()
            return runtime.execution(
                call,
                caller or Caller(),
                self.opened,
                cancellation,
                None if frames is None else frames.report,
            )
        except BaseException as error:
            seen = await self._close(error, cancellation)

            if seen is error:
                raise

            # Our own interruption, which is an answer.
            raise seen from None
        finally:
            runtime.leave(self)

    async def _close(self, error: BaseException, cancellation: Cancellation) -> BaseException:
        """Close the guards after a refusal or an interruption; return what is to be raised."""
        cancellation.end()

        if isinstance(error, Interrupted) and await cancellation.settle():
            error = cancelled()

        try:
            await self.opened.aclose(error if isinstance(error, Exception) else cancelled())
        finally:
            cancellation.close()

        return error

    def _call(self, body: bytes) -> Call:
        call = decode(body, self._service.finder(self.opened.overrides))

        if self._head.idempotency_keys:
            call.request_id = _one_id(call.request_id, self._head.idempotency_keys)

        return call


async def _answer(request: _Request, send: Send) -> None:
    """Run the call in the request's own task, and answer as JSON."""
    execution = await request.execution(Cancellation())
    result = await execution.run()
    opened = request.opened

    try:
        await send_result(send, result, opened.headers)
    finally:
        # The execution is over whether or not somebody takes the answer.
        if execution.has_outlived:
            await execution.aclose()

        if opened.background is not None:
            await opened.run_background(result)


async def _produce(request: _Request, frames: ExecutionFrames, cancellation: Cancellation) -> None:
    """Run the call for a stream; a refusal before it starts ends the stream unopened."""
    try:
        execution = await request.execution(cancellation, frames)
        result = await execution.run()
    except BaseException as error:
        frames.end(error)

        if isinstance(error, Exception):
            return

        raise

    frames.end()
    await execution.aclose()
    await request.opened.run_background(result)


def _one_id(sent: object, keys: tuple[str | None, ...]) -> object:
    """Return the one id that body and headers agree on, or what no id ever is."""
    ids = keys if sent is None else (sent, *keys)
    agree = all(key is not None and key == ids[0] for key in keys)
    return ids[0] if agree else False
