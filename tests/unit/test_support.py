"""The streaming client and the servers that other tests rely on."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from tests.support.asgi import connect, lifespan


def streaming_app(may_go_on: anyio.Event, closed: anyio.Event) -> Starlette:
    async def events() -> AsyncIterator[bytes]:
        try:
            yield b"event: first\ndata: 1\n\n"
            await may_go_on.wait()
            yield b": keep-alive\n\nevent: second\ndata: 2\n\n"
        finally:
            closed.set()

    async def stream(request: Request) -> StreamingResponse:
        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route("/", stream)])


async def test_the_streaming_client_reads_an_event_before_the_answer_has_ended() -> None:
    may_go_on = anyio.Event()
    app = streaming_app(may_go_on, anyio.Event())

    async with connect(app, "/") as exchange:
        first = await exchange.frame()
        may_go_on.set()
        rest = await exchange.frames()

    assert exchange.status == 200
    assert [first.event, *(frame.comment or frame.event for frame in rest)] == [
        "first",
        "keep-alive",
        "second",
    ]


async def test_hanging_up_reaches_the_application() -> None:
    closed = anyio.Event()
    app = streaming_app(anyio.Event(), closed)

    async with connect(app, "/") as exchange:
        await exchange.frame()
        exchange.hang_up()
        with anyio.fail_after(5):
            await exchange.finished.wait()

    assert closed.is_set()


async def test_lifespan_hands_over_the_state_and_stops_the_application() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def run(app: Starlette) -> AsyncIterator[dict[str, str]]:
        yield {"name": "shop"}
        seen.append("stopped")

    async def name(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.state.name)

    app = Starlette(routes=[Route("/", name)], lifespan=run)

    async with lifespan(app) as state, connect(app, "/", state=state) as exchange:
        assert await exchange.read() == b"shop"

    assert seen == ["stopped"]


def test_a_real_server_answers_and_stops(serve: Callable[[ASGIApp], str]) -> None:
    async def hello(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    url = serve(Starlette(routes=[Route("/", hello)]))

    assert httpx2.get(url, timeout=5).text == "hello"
