"""`POST {path}`: one run of an agent, answered as an event stream."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio
from ag_ui.core import AgentCapabilities, RunAgentInput
from starlette.types import Receive, Scope, Send

from fastapi_carmy.agui.agents import Agent
from fastapi_carmy.agui.endpoint.dependencies import AgentOpened, RouteDependencies
from fastapi_carmy.agui.endpoint.stopping import StopWatch
from fastapi_carmy.agui.errors import RefusedRequestError
from fastapi_carmy.agui.input import decode
from fastapi_carmy.agui.negotiation import check_content_type, negotiate
from fastapi_carmy.agui.outbox import Outbox
from fastapi_carmy.agui.run import Run, RunOptions
from fastapi_carmy.cancellation import CancelReason, Task, join, start_task
from fastapi_carmy.errors import AgentError
from fastapi_carmy.http.request import Inbox
from fastapi_carmy.http.responses import Answer, error_headers, send_body
from fastapi_carmy.http.sse import FrameStream
from fastapi_carmy.injection import Guards, HttpOpened
from fastapi_carmy.jsontext import encode

__all__ = (
    "STREAM_HEADERS",
    "AgentEndpoint",
    "CapabilitiesEndpoint",
    "EndpointOptions",
    "read_input",
    "refusal_body",
)

STREAM_HEADERS: Final = {
    # `no-transform` keeps proxies from compressing, and so from collecting.
    "cache-control": "no-cache, no-store, no-transform",
    "x-accel-buffering": "no",
    "vary": "accept",
}

_OURS = frozenset(("content-type", "content-length", *STREAM_HEADERS))
_PAYLOAD_TOO_LARGE = 413
_LOOK_EVERY_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """How one agent's requests are treated."""

    run: RunOptions = field(default_factory=RunOptions)
    keep_alive_seconds: float | None = 15.0
    max_body_bytes: int = 2 * 2**20
    require_content_type: bool = False


class AgentEndpoint:
    """Runs one agent, once a request. Source: AG-UI 1.0, the HTTP transport."""

    methods = ("POST",)
    is_agent = True

    def __init__(
        self,
        owner: object,
        agent: Agent,
        dependencies: RouteDependencies,
        options: EndpointOptions,
    ) -> None:
        """Serve `agent`.

        Args:
            owner: The router.
            agent: Shared by all runs.
            dependencies: What its route depends on.
            options: How requests are treated.
        """
        self.owner = owner
        self._agent = agent
        self._dependencies = dependencies
        self._options = options
        # The loop holds tasks weakly; these outlive their request when a client hangs up.
        self._live: dict[Task[object], _Session] = {}

    async def respond(self, scope: Scope, receive: Receive, guards: Guards) -> Answer:
        """See `Endpoint.respond`."""
        session = _Session(
            self._agent, self._dependencies, self._options, _Exchange(scope, receive, guards)
        )
        task = start_task(session.work())
        self._live[task] = session
        task.add_done_callback(self._forget)

        try:
            await session.opened()
        except RefusedRequestError as error:
            return partial(
                _send_refusal,
                status=error.status_code,
                code=error.code,
                message=error.message,
                headers=error.headers,
            )
        except BaseException:
            session.abandon(task)
            raise

        return partial(_stream, session, task)

    async def refuse(self, send: Send, error: AgentError) -> None:
        """See `Endpoint.refuse`."""
        await _send_error(send, error)

    async def stop(self, seconds: float) -> bool:
        """Stop the runs that are live, and wait for them; tell whether all have ended."""
        for session in self._live.values():
            session.stop()

        with anyio.move_on_after(seconds):
            # Looked at, not awaited: a run may live in another event loop.
            while not self._has_ended():  # noqa: ASYNC110
                await anyio.sleep(_LOOK_EVERY_SECONDS)

        return self._has_ended()

    def _has_ended(self) -> bool:
        return all(task.done() for task in self._live)

    def _forget(self, task: "Task[object]") -> None:
        self._live.pop(task).released.set()


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request."""

    scope: Scope
    receive: Receive
    guards: Guards


class _Session:
    """One request on its way to a run, and the run.

    Everything that the run opens is opened and closed in one task (`work`); the
    request's own task only sends (`stream`).
    """

    def __init__(
        self,
        agent: Agent,
        dependencies: RouteDependencies,
        options: EndpointOptions,
        exchange: _Exchange,
    ) -> None:
        self._agent = agent
        self._dependencies = dependencies
        self._options = options
        self._exchange = exchange
        self._guards, self._agents = dependencies.split(exchange.guards)
        self._inbox = Inbox(exchange.scope, exchange.receive, options.max_body_bytes)
        self._opened = AgentOpened(exchange.scope, self._inbox.receive, self._guards)
        self._outbox = Outbox()
        self._refusal: BaseException | None = None
        self._run: Run | None = None
        self._is_stopping = False
        self.released = anyio.Event()
        """Set when the task has ended, or the agent was let go."""

    async def work(self) -> None:
        """Refuse the request, or run the agent to its end."""
        opened = self._opened

        try:
            await opened.router_guards()
            run_input = await self._input()
            agent = self._agent.bind(await self._values())
            run = self._run = Run(
                run_input, self._options.run, outbox=self._outbox, let_go=self.released
            )
        # Raised again by the request's own task, which answers with it.
        except BaseException as error:  # noqa: BLE001
            await self._refuse(error)
            return

        if self._is_stopping:
            self.stop()

        watch = StopWatch(self.stop)

        try:
            await run.drive(agent, opened.aclose)
        finally:
            watch.close()

        if opened.background is not None and run.has_succeeded:
            await opened.background()

    async def opened(self) -> None:
        """Return once the run has something to send, or raise what refused it."""
        await self._outbox.wait()

        if self._refusal is not None:
            raise self._refusal

    async def stream(self, send: Send) -> None:
        """Send the run as it goes."""
        assert self._run is not None
        stream = FrameStream(
            self._outbox,
            headers={**self._host_headers(), **STREAM_HEADERS},
            keep_alive_seconds=self._options.keep_alive_seconds,
            on_disconnect=self._run.disconnect,
        )
        await stream(self._exchange.scope, self._exchange.receive, send)

    def stop(self) -> None:
        """Stop the run on purpose, now or when it starts."""
        self._is_stopping = True

        if self._run is not None:
            self._run.token.cancel(CancelReason.STOP)

    def abandon(self, task: "Task[object]") -> None:
        """Stop everything: nobody waits for an answer any more."""
        if self._run is None:
            task.cancel()
        else:
            self._run.disconnect()

    async def _input(self) -> RunAgentInput:
        negotiate(self._inbox.accept)

        return await read_input(
            self._inbox,
            require_content_type=self._options.require_content_type,
        )

    async def _values(self) -> dict[str, Any]:
        if not self._dependencies.is_needed:
            return {}

        return self._dependencies.for_agent(await self._opened.agent_values(self._agents))

    async def _refuse(self, error: BaseException) -> None:
        try:
            await self._opened.aclose(error)
        # What did not close tells more.
        except BaseException as raised:  # noqa: BLE001
            error = raised

        self._refusal = error
        self._outbox.finish()

    def _host_headers(self) -> dict[str, str]:
        raw = ((name.decode("latin-1"), value) for name, value in self._opened.headers)

        return {name: value.decode("latin-1") for name, value in raw if name.lower() not in _OURS}


class CapabilitiesEndpoint:
    """Tells what an agent can do."""

    methods = ("GET", "HEAD")
    is_agent = True

    def __init__(self, owner: object, capabilities: AgentCapabilities) -> None:
        """Answer with `capabilities`."""
        self.owner = owner
        self._body = capabilities.model_dump_json(by_alias=True).encode()

    async def respond(self, scope: Scope, receive: Receive, guards: Guards) -> Answer:
        """See `Endpoint.respond`."""
        opened = HttpOpened(scope, receive, guards)

        try:
            await opened.router_guards()
        except BaseException as error:
            await opened.aclose(error)
            raise

        await opened.aclose(None)
        return partial(
            send_body,
            status=200,
            body=self._body,
            headers=[(b"content-type", b"application/json"), (b"cache-control", b"no-store")],
        )

    async def refuse(self, send: Send, error: AgentError) -> None:
        """See `Endpoint.refuse`."""
        await _send_error(send, error)


async def _stream(session: _Session, task: "Task[object]", send: Send) -> None:
    try:
        await session.stream(send)
        await session.released.wait()
    except BaseException:
        session.abandon(task)
        raise

    if task.done():
        await join(task)


async def read_input(inbox: Inbox, *, require_content_type: bool) -> RunAgentInput:
    """Return the input of a request, reading no further than the limit.

    Raises:
        RefusedRequestError: If the body is not one (415, 413, 400).
    """
    check_content_type(inbox.content_type, is_required=require_content_type)

    try:
        inbox.check_length()

        while not inbox.has_ended:
            inbox.keep(await inbox.next_message())
    except AgentError as error:
        raise _unread(error) from None

    return decode(inbox.body)


def _unread(error: AgentError) -> RefusedRequestError:
    """Return the refusal of a body that could not be read, or not in full."""
    if error.status_code == _PAYLOAD_TOO_LARGE:
        return RefusedRequestError(_PAYLOAD_TOO_LARGE, "INVALID_BODY", error.message)

    return RefusedRequestError(400, "INVALID_BODY", "The body did not come to its end.")


def refusal_body(code: str, message: str) -> bytes:
    """Return the body of a refusal."""
    return encode({"code": code, "message": message})


async def _send_error(send: Send, error: AgentError) -> None:
    # A guard may be the one who reads too far.
    code = "INVALID_BODY" if error.status_code == _PAYLOAD_TOO_LARGE else error.code
    await _send_refusal(send, error.status_code, code, error.message, error.headers)


async def _send_refusal(
    send: Send, status: int, code: str, message: str, headers: Mapping[str, Any]
) -> None:
    raw = [
        (b"content-type", b"application/json"),
        (b"cache-control", b"no-store"),
        # A shared cache must not hand one client's refusal to another.
        (b"vary", b"accept"),
    ]
    raw += error_headers(headers)
    await send_body(send, status, refusal_body(code, message), raw)
