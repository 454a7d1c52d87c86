"""The router behind what real applications put before it.

Each kind of middleware × JSON, a stream, errors, a hang-up, and the first event of a slow
tool.
"""

import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any

import anyio
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from fastapi_carmy import AgentContext, AgentError, AgentRouter, ErrorCategory
from tests.support.gates import Audit, Gate, reached
from tests.support.wire import Answer, Served, call, connect, serve_here

ORIGIN = {"Origin": "https://agent.example"}

as_json_and_as_stream = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])

CallNext = Callable[[Request], Awaitable[Response]]


def four_functions(app: FastAPI) -> None:
    for number in range(4):

        @app.middleware("http")
        async def passes(request: Request, call_next: CallNext, number: int = number) -> Response:
            response = await call_next(request)
            response.headers[f"X-Passed-{number}"] = "yes"
            return response


def four_functions_that_read(app: FastAPI) -> None:
    """Request logging, as it is found in the wild: it reads the body first."""
    for _ in range(4):

        @app.middleware("http")
        async def reads(request: Request, call_next: CallNext) -> Response:
            await request.body()
            return await call_next(request)


def with_gzip(app: FastAPI) -> None:
    app.add_middleware(GZipMiddleware, minimum_size=1)


def with_cors(app: FastAPI) -> None:
    app.add_middleware(
        CORSMiddleware,
        allow_origins=[ORIGIN["Origin"]],
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-None-Match"],
        expose_headers=["Carmy-Replayed", "ETag", "Retry-After"],
    )


def with_trusted_host(app: FastAPI) -> None:
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["testserver"])


def with_sessions(app: FastAPI) -> None:
    app.add_middleware(SessionMiddleware, secret_key="of-the-test")


def with_all(app: FastAPI) -> None:
    for add in (four_functions, with_sessions, with_trusted_host, with_gzip, with_cors):
        add(app)


MIDDLEWARE = {
    add.__name__: add
    for add in (
        four_functions,
        four_functions_that_read,
        with_gzip,
        with_cors,
        with_trusted_host,
        with_sessions,
        with_all,
    )
}
under_each = pytest.mark.parametrize("name", MIDDLEWARE)


class Shop:
    """An application with one tool of each temper."""

    def __init__(self, name: str) -> None:
        self.gate = Gate()
        self.audit = Audit()
        self.closed: list[str] = []
        self.agent = AgentRouter(audit=[self.audit])
        self.app = FastAPI()
        MIDDLEWARE[name](self.app)
        self._add_tools()
        self.app.include_router(self.agent)

    async def session(self) -> AsyncIterator[None]:
        try:
            yield
        except Exception:
            await anyio.lowlevel.checkpoint()
            self.closed.append("rolled back")
            raise
        else:
            self.closed.append("committed")

    def _add_tools(self) -> None:
        agent = self.agent

        @agent.tool(effect="write")
        async def wait(
            context: AgentContext, session: Annotated[None, Depends(self.session)]
        ) -> str:
            context.progress(1, 2, "halfway")
            await self.gate()
            return "done" * 300

        @agent.tool(effect="read")
        async def fail() -> None:
            raise AgentError("NO_LUCK", "No luck.", ErrorCategory.CAPACITY, retry_after=3)

        @agent.tool(effect="read")
        async def panic() -> None:
            raise RuntimeError("secret")

        def refuse() -> None:
            raise HTTPException(401, "Who are you?", {"WWW-Authenticate": "Bearer"})

        @agent.tool(effect="read", dependencies=[Depends(refuse)])
        async def forbidden() -> None: ...


def unpacked(answer: Answer) -> Answer:
    """Return the answer as a client that asked for gzip reads it."""
    if answer.headers.get("content-encoding") != "gzip":
        return answer
    return Answer(answer.status, answer.headers, gzip.decompress(answer.body))


async def answered(
    served: Served, tool: str, *, stream: bool = False, headers: Mapping[str, str] | None = None
) -> Answer:
    sent = {**ORIGIN, "Accept-Encoding": "gzip", **(headers or {})}
    async with call(served, tool, request_id="r", stream=stream, headers=sent) as wire:
        return unpacked(await wire.answer())


@under_each
@as_json_and_as_stream
async def test_a_call_is_answered_and_replayed(name: str, stream: bool) -> None:
    shop = Shop(name)
    shop.gate.may_go_on.set()

    async with serve_here(shop.app) as served:
        first = await answered(served, "wait", stream=stream)
        again = await answered(served, "wait", stream=stream)

    assert first.status == again.status == 200
    assert first.result["data"] == "done" * 300
    assert again.result["execution_id"] == first.result["execution_id"]
    assert shop.closed == ["committed"]
    if stream:
        assert [frame.event for frame in first.frames] == [
            "execution.started",
            "tool.started",
            "tool.progress",
            "tool.completed",
            "execution.completed",
        ]
    else:
        assert first.body == again.body
        assert again.headers["carmy-replayed"] == "true"


@under_each
@as_json_and_as_stream
@pytest.mark.parametrize(
    ("tool", "status", "code"),
    [
        ("fail", 503, "NO_LUCK"),
        ("panic", 500, "TOOL_PANIC"),
        ("forbidden", 401, "UNAUTHENTICATED"),
        ("nothing", 404, "TOOL_NOT_FOUND"),
    ],
)
async def test_a_failure_is_answered_as_without_it(
    name: str, tool: str, status: int, code: str, stream: bool
) -> None:
    shop = Shop(name)

    async with serve_here(shop.app) as served:
        answer = await answered(served, tool, stream=stream)

    is_stream = answer.headers["content-type"] == "text/event-stream"
    assert is_stream == (stream and tool != "forbidden")
    assert answer.status == (200 if is_stream else status)
    assert answer.result["error"]["code"] == code
    if tool == "fail" and not is_stream:
        assert answer.headers["retry-after"] == "3"
    if name in {"with_cors", "with_all"}:
        assert answer.headers["access-control-allow-origin"] == ORIGIN["Origin"]
        assert "Retry-After" in answer.headers["access-control-expose-headers"]


@under_each
async def test_each_event_arrives_before_the_tool_has_finished(name: str) -> None:
    """The first byte is there while the tool has only just begun."""
    shop = Shop(name)
    headers = {**ORIGIN, "Accept-Encoding": "gzip"}

    async with (
        serve_here(shop.app) as served,
        call(served, "wait", stream=True, headers=headers) as wire,
    ):
        await wire.until(b"execution.started")
        await wire.until(b"tool.started")
        await wire.until(b"halfway")
        await reached(shop.gate.entered)
        assert shop.gate.left == []
        assert b"tool.completed" not in wire.received
        shop.gate.may_go_on.set()
        answer = await wire.answer()

    assert "content-encoding" not in answer.headers
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.frames[-1].json()["status"] == "completed"


@under_each
@as_json_and_as_stream
@pytest.mark.spec("carmy/1 4.3")
async def test_a_hang_up_reaches_the_tool(name: str, stream: bool) -> None:
    shop = Shop(name)

    async with serve_here(shop.app) as served:
        async with call(served, "wait", request_id="r", stream=stream) as wire:
            await reached(shop.gate.entered)
            await wire.hang_up()
        record = await shop.audit.until(1)
        again = await answered(served, "wait")

    assert record.error_code == "CANCELLED"
    assert shop.gate.left == ["CancelledError"]
    assert shop.closed == ["rolled back"]
    assert again.code == "EXECUTION_UNCERTAIN"


@under_each
@pytest.mark.parametrize("path", ["/.well-known/agent", "/agent/tools"])
async def test_documents_are_cached(name: str, path: str) -> None:
    shop = Shop(name)

    async with serve_here(shop.app) as served:
        async with connect(served, path, headers={"Accept-Encoding": "gzip"}) as wire:
            first = unpacked(await wire.answer())
        tag = {"If-None-Match": first.headers["etag"]}
        async with connect(served, path, headers=tag) as wire:
            unchanged = await wire.answer()
        async with connect(served, path, method="HEAD") as wire:
            head = await wire.answer()

    assert first.json()
    assert (unchanged.status, unchanged.body) == (304, b"")
    assert unchanged.headers["etag"] == first.headers["etag"]
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize("wanted", ["authorization", "content-type", "idempotency-key"])
@pytest.mark.parametrize("name", ["with_cors", "with_all"])
async def test_a_preflight_allows_what_a_client_in_a_browser_sends(wanted: str, name: str) -> None:
    shop = Shop(name)
    asked = {
        **ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": wanted,
    }

    async with (
        serve_here(shop.app) as served,
        connect(served, "/agent/execute", method="OPTIONS", headers=asked) as wire,
    ):
        answer = await wire.answer()

    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    assert wanted in answer.headers["access-control-allow-headers"].lower()


async def test_a_host_that_is_not_trusted_reaches_no_tool() -> None:
    shop = Shop("with_trusted_host")

    async with serve_here(shop.app) as served:
        answer = await answered(served, "fail", headers={"Host": "evil.example"})

    assert answer.status == 400
    assert shop.audit.records == []


@as_json_and_as_stream
async def test_a_guard_may_use_the_session(stream: bool) -> None:
    app = FastAPI()
    with_sessions(app)

    def count_visits(request: Request) -> None:
        request.session["visits"] = request.session.get("visits", 0) + 1

    agent = AgentRouter(dependencies=[Depends(count_visits)], caller=lambda: None)

    @agent.tool(effect="read")
    async def visits(request: Request) -> Any:
        return request.session["visits"]

    app.include_router(agent)

    async with serve_here(app) as served:
        first = await answered(served, "visits", stream=stream)
        cookie = first.headers["set-cookie"].partition(";")[0]
        async with call(served, "visits", stream=stream, headers={"Cookie": cookie}) as wire:
            second = await wire.answer()

    assert (first.result["data"], second.result["data"]) == (1, 2)
