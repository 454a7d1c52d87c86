"""`POST /agent/execute`: one call, answered as JSON or as an event stream."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from fastapi_carmy.cancellation import (
    Cancellation,
    CancelReason,
    Task,
    join,
    start_task,
)
from fastapi_carmy.envelope import Call, decode
from fastapi_carmy.errors import AgentError
from fastapi_carmy.execution import Execution
from fastapi_carmy.http.accept import wants_event_stream
from fastapi_carmy.http.frames import ExecutionFrames
from fastapi_carmy.http.request import Inbox
from fastapi_carmy.http.responses import Answer, Messages, result_answer, send_error
from fastapi_carmy.http.sse import FrameStream
from fastapi_carmy.injection import Guards, HttpOpened
from fastapi_carmy.result import ExecutionResult
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
        # Any number of fewer digits is below the limit.
        self._digits = len(str(max_body_bytes))
        # The loop holds tasks weakly; these outlive their request when a client hangs up.
        self._tasks: set[Task[object]] = set()

    def respond(self, scope: Scope, receive: Receive, guards: Guards) -> Awaitable[Answer]:
        """See `Endpoint.respond`."""
        inbox = Inbox(scope, receive, self._max_body_bytes)

        if len(inbox.declared_length) >= self._digits:
            inbox.check_length()

        service = self._service(scope.get("app"))
        opened = HttpOpened(scope, inbox.receive, guards)

        if inbox.has_accept and wants_event_stream(inbox.accept):
            return self._stream(_Request(service, inbox, opened), scope, receive)

        return _answer(service, inbox, opened)

    async def refuse(self, send: Send, error: AgentError) -> None:
        """See `Endpoint.refuse`."""
        await send_error(send, error)

    async def _stream(self, request: "_Request", scope: Scope, receive: Receive) -> Answer:
        """Run the call in a task of its own, so that a slow reader can't stall it."""
        frames = ExecutionFrames()
        cancellation = Cancellation()
        task = start_task(_produce(request, frames, cancellation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        hang_up = partial(cancellation.fire, CancelReason.DISCONNECT)
        stream = FrameStream(frames, headers=_STREAM_HEADERS, on_disconnect=hang_up, watch=False)

        try:
            await frames.opened()
        except BaseException:
            hang_up()
            raise

        return partial(_send_events, partial(stream, scope, receive), hang_up, task)


class _Request(NamedTuple):
    """One request on its way to becoming an execution."""

    service: Service
    inbox: Inbox
    opened: HttpOpened


async def _answer(service: Service, inbox: Inbox, opened: HttpOpened) -> Answer:
    """Run the call, and return its answer as JSON."""
    execution = service.runtime.begin(opened)
    result = await execution.run(await _call(service, inbox, opened, execution))
    answer = result_answer(result, opened.headers)

    if execution.outlived is None and opened.background is None:
        return answer

    return partial(_send, answer, opened, execution, result)


async def _call(service: Service, inbox: Inbox, opened: HttpOpened, execution: Execution) -> Call:
    """Pass the router's guards, read the body, and return the call that `execution` is to run.

    Raises:
        Exception: What a guard refuses with, or an `AgentError` of ours; the guards are
            closed by then, and the execution is withdrawn.
    """
    cancellation = execution.cancellation

    try:
        cancellation.begin()

        if opened.has_router_guards:
            await opened.router_guards()
            # One of them may have swallowed a stop, or left an interruption of its own.
            cancellation.begin()

        if not inbox.is_json:
            inbox.check_content_type()

        while not inbox.has_ended:
            inbox.keep(await inbox.next_message())

        cancellation.watch(inbox.disconnected)
        overrides = opened.overrides
        find = service.finder(overrides) if overrides else service.catalog.tools.get
        call = decode(inbox.body, find)

        if inbox.has_idempotency_key:
            call.request_id = _one_id(call.request_id, inbox.idempotency_keys)

    except BaseException as error:
        seen = await execution.withdraw(error)

        if seen is error:
            raise

        # Our own interruption, which is an answer.
        raise seen from None

    return call


async def _send(
    answer: Messages, opened: HttpOpened, execution: Execution, result: ExecutionResult, send: Send
) -> None:
    """Answer with JSON, and do what is left to do."""
    try:
        for message in answer:
            await send(message)
    finally:
        # The execution is over whether or not somebody takes the answer.
        if execution.outlived is not None:
            await execution.aclose()

        if opened.background is not None:
            await opened.run_background(result)


async def _send_events(
    stream: Callable[[Send], Awaitable[None]],
    hang_up: Callable[[], None],
    task: Task[object],
    send: Send,
) -> None:
    """Answer with events, until the client leaves or the execution is over."""
    try:
        await stream(send)
        await join(task)
    except BaseException:
        hang_up()
        raise


async def _produce(request: _Request, frames: ExecutionFrames, cancellation: Cancellation) -> None:
    """Run the call for a stream; a refusal before it starts ends the stream unopened."""
    try:
        execution = request.service.runtime.begin(request.opened, frames.report, cancellation)
        result = await execution.run(await _call(*request, execution))
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
