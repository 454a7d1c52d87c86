"""Clients that leave or do not read, and servers that stop, on real sockets."""

import gc
import logging
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import anyio
import pytest
from ag_ui import core
from fastapi import Depends, FastAPI, Request, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from fastapi_carmy import AgentRouter
from fastapi_carmy.agui import CancelToken, RunContext
from fastapi_carmy.cancellation import CancelReason
from tests.support.agui import (
    Endless,
    Prompt,
    Waiting,
    app_with,
    body,
    chatty,
    events_in,
    post,
    stream,
    types_in,
)
from tests.support.asgi import connect
from tests.support.servers import serve_import

Ctx = RunContext[Any]
Serve = Callable[[ASGIApp], str]


def with_spec_version(app: ASGIApp, version: str) -> ASGIApp:
    async def patched(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "asgi": {**scope["asgi"], "spec_version": version}}
        await app(scope, receive, send)

    return patched


async def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    """Wait for what another thread does: it can't set an event of this loop."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)


@pytest.mark.spec("ag-ui C.31")
@pytest.mark.spec("ag-ui C.36")
@pytest.mark.parametrize("version", ["2.3", "2.4"])
async def test_leaving_stops_an_agent_that_talks(serve: Serve, version: str) -> None:
    agent = Endless()
    url = serve(with_spec_version(app_with({"/agent": agent}), version))

    async with stream(f"{url}/agent") as response:
        chunks = response.aiter_bytes()
        for _ in range(4):
            await anext(chunks)
        assert not agent.tokens[0].is_cancelled

    await until(lambda: agent.tokens[0].is_cancelled)
    assert agent.tokens[0].reason is CancelReason.DISCONNECT
    await until(lambda: agent.saw_cancelled == [True])
    emitted = agent.emitted
    await anyio.sleep(0.1)
    assert agent.emitted == emitted


@pytest.mark.spec("ag-ui C.32")
@pytest.mark.spec("ag-ui C.34")
@pytest.mark.spec("ag-ui C.36")
@pytest.mark.parametrize("version", ["2.3", "2.4"])
async def test_leaving_stops_an_agent_that_is_silent(serve: Serve, version: str) -> None:
    agent = Waiting()
    url = serve(with_spec_version(app_with({"/agent": agent}), version))

    async with stream(f"{url}/agent") as response:
        seen = b""
        async for chunk in response.aiter_bytes():
            seen += chunk
            if b"TEXT_MESSAGE_END" in seen:
                break
        assert not agent.tokens[0].is_cancelled

    await until(lambda: agent.saw_cancelled == [True])


@pytest.mark.spec("ag-ui C.33")
@pytest.mark.spec("ag-ui C.34")
async def test_reading_to_the_end_cancels_nothing(serve: Serve) -> None:
    agent = Prompt()
    url = serve(app_with({"/agent": agent}))

    answer = await post(f"{url}/agent")

    assert types_in(answer.text)[-1] == "RUN_FINISHED"
    await anyio.sleep(0.1)
    assert not agent.tokens[0].is_cancelled
    assert agent.saw_cancelled == [False]


async def test_what_an_agent_was_given_is_rolled_back_when_its_client_leaves(serve: Serve) -> None:
    ends: list[str] = []

    async def session() -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            await anyio.sleep(0.01)
            ends.append(type(error).__name__)
            raise
        else:
            ends.append("commit")

    async def agent(run: Ctx, session: Annotated[None, Depends(session)]) -> None:
        await run.say("One moment.")
        await anyio.sleep(60)

    url = serve(app_with({"/agent": agent}, disconnect_grace_seconds=0.05))

    async with stream(f"{url}/agent") as response:
        await anext(response.aiter_bytes())

    await until(lambda: bool(ends))
    assert ends == ["CancelledError"]


@pytest.mark.spec("ag-ui C.40")
async def test_leaving_closes_a_generator(serve: Serve) -> None:
    closed: list[str] = []

    async def agent(run: Ctx) -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
                await anyio.sleep(0.01)
        finally:
            await anyio.sleep(0.01)
            closed.append("closed")

    url = serve(app_with({"/agent": agent}))

    async with stream(f"{url}/agent") as response:
        await anext(response.aiter_bytes())

    await until(lambda: closed == ["closed"])


@pytest.mark.spec("ag-ui C.38")
async def test_an_agent_that_ignores_everything_does_not_hold_the_server(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = False

    async def agent(run: Ctx) -> None:
        await run.say("One moment.")
        while not may_end:
            try:
                await anyio.sleep(0.05)
            except anyio.get_cancelled_exc_class():
                continue

    url = serve(app_with({"/agent": agent}, disconnect_grace_seconds=0.05))
    with caplog.at_level(logging.WARNING):
        async with stream(f"{url}/agent") as response:
            await anext(response.aiter_bytes())
        await until(lambda: "did not stop" in caplog.text)

    assert (await post(f"{url}/other")).status_code == 404
    may_end = True


@pytest.mark.spec("ag-ui C.38")
async def test_a_run_over_its_limit_ends_though_its_agent_hangs(serve: Serve) -> None:
    may_end = False

    async def agent(run: Ctx) -> None:
        while not may_end:
            try:
                await anyio.sleep(0.05)
            except anyio.get_cancelled_exc_class():
                continue

    url = serve(app_with({"/agent": agent}, timeout_seconds=0.05))

    with anyio.fail_after(8):
        answer = await post(f"{url}/agent")

    may_end = True
    assert types_in(answer.text) == ["RUN_STARTED", "RUN_ERROR"]
    assert events_in(answer.text)[-1]["code"] == "TIMEOUT"


@pytest.mark.spec("ag-ui G.91")
async def test_the_host_stops_a_run_that_somebody_watches(serve: Serve) -> None:
    agent = Waiting()
    url = serve(app_with({"/agent": agent}, disconnect_grace_seconds=0.05))

    with anyio.fail_after(8):
        async with stream(f"{url}/agent") as response:
            chunks = response.aiter_bytes()
            seen = await anext(chunks)
            await until(lambda: bool(agent.tokens))
            agent.tokens[0].cancel()
            seen += b"".join([chunk async for chunk in chunks])

    events = events_in(seen.decode())
    assert events[-1]["outcome"] == {"type": "cancelled"}


async def test_a_client_that_does_not_read_neither_fills_memory_nor_stalls_others(
    serve: Serve,
) -> None:
    class Flood:
        def __init__(self) -> None:
            self.sent = 0
            self.tokens: list[CancelToken] = []

        async def run(self, run: Ctx) -> None:
            self.tokens.append(run.cancel_token)
            async with run.message() as message:
                while True:
                    await message.delta("x" * 1000)
                    self.sent += 1

    flood = Flood()
    url = serve(app_with({"/flood": flood, "/agent": chatty}))
    port = int(url.rpartition(":")[2])

    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", port))
        deaf.sendall(
            b"POST /flood HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body()), body())
        )

        def is_stuck() -> bool:
            before = flood.sent
            time.sleep(0.2)
            return flood.sent == before > 0

        await until(lambda: flood.sent > 0)
        await anyio.to_thread.run_sync(lambda: _wait_for(is_stuck))
        gc.collect()
        tracemalloc.start()
        try:
            start = tracemalloc.get_traced_memory()[0]
            for _ in range(10):
                answer = await post(f"{url}/agent")
                assert types_in(answer.text)[-1] == "RUN_FINISHED"
                await anyio.sleep(0.05)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - start
        finally:
            tracemalloc.stop()

    assert is_stuck() or flood.tokens[0].is_cancelled
    assert grown < 2 * 2**20
    await until(lambda: flood.tokens[0].is_cancelled)


def _wait_for(condition: Callable[[], bool], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end


@pytest.mark.spec("ag-ui C.39")
async def test_a_server_that_stops_ends_its_runs_on_purpose() -> None:
    with serve_import("tests.support.agui_app:app") as server:
        async with stream(f"{server.url}/waiting") as response:
            chunks = response.aiter_bytes()
            seen = await anext(chunks)
            started = time.monotonic()
            server.process.terminate()
            seen += b"".join([chunk async for chunk in chunks])
        code = await anyio.to_thread.run_sync(server.wait)
        took = time.monotonic() - started

    events = events_in(seen.decode())
    assert types_in(events)[0] == "RUN_STARTED"
    assert events[-1]["type"] == "RUN_FINISHED"
    assert events[-1]["outcome"] == {"type": "cancelled"}
    assert code in (0, -15)
    assert took < 5


async def test_live_runs_end_when_the_router_is_closed() -> None:
    agent = Waiting()
    router = AgentRouter()
    router.add_agui_route("/agent", agent, disconnect_grace_seconds=0.05)
    outer = AgentRouter()
    outer.include_router(router)
    app = FastAPI()
    app.include_router(outer)

    with anyio.fail_after(10):
        async with connect(app, "/agent", method="POST", body=body()) as exchange:
            seen = await exchange.chunk()
            await until(lambda: bool(agent.tokens))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outer.aclose)
                seen += await exchange.read()

    assert agent.tokens[0].reason is CancelReason.STOP
    assert events_in(seen.decode())[-1]["outcome"] == {"type": "cancelled"}


async def test_an_event_after_the_end_reaches_nobody(serve: Serve) -> None:
    kept: list[Ctx] = []

    async def agent(run: Ctx) -> None:
        kept.append(run)
        run.emit(core.RunFinishedEvent(thread_id=run.thread_id, run_id=run.run_id))
        await run.say("late")

    answer = await post(f"{serve(app_with({'/agent': agent}))}/agent")

    assert types_in(answer.text) == ["RUN_STARTED", "RUN_FINISHED"]


@pytest.mark.spec("ag-ui C.36")
@pytest.mark.parametrize("path", ["/endless", "/waiting"])
async def test_leaving_is_noticed_on_another_server(path: str) -> None:
    pytest.importorskip("hypercorn", reason="The group `frameworks` is not installed.")
    from hypercorn.asyncio import serve as serve_by  # noqa: PLC0415 - Looked for just now.
    from hypercorn.config import Config  # noqa: PLC0415

    agents: dict[str, Endless | Waiting] = {"/endless": Endless(), "/waiting": Waiting()}
    agent = agents[path]
    stop = anyio.Event()
    config = Config()
    config.graceful_timeout = 1

    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    # The server closes it.
    config.bind = [f"fd://{listener.detach()}"]
    app: Any = app_with(agents)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve_by(app, config, shutdown_trigger=stop.wait))
        async with stream(f"{url}{path}") as response:
            await anext(response.aiter_bytes())
        await until(lambda: agent.saw_cancelled == [True])
        stop.set()

    assert agent.tokens[0].reason is CancelReason.DISCONNECT


async def test_leaving_is_noticed_behind_middleware_of_every_kind(serve: Serve) -> None:
    agent = Waiting()
    app = app_with({"/agent": agent})

    @app.middleware("http")
    async def pass_on(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        return response

    app.add_middleware(GZipMiddleware)
    url = serve(app)

    async with stream(f"{url}/agent") as response:
        first = await anext(response.aiter_bytes())
        await until(lambda: bool(agent.tokens))

    assert b"RUN_STARTED" in first
    await until(lambda: agent.saw_cancelled == [True])
    assert agent.tokens[0].reason is CancelReason.DISCONNECT
