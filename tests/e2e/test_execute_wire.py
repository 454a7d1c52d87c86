"""Executing tools on a real server: what a client's socket sees. Source: carmy/1, section 2."""

import threading
from typing import Annotated

import anyio
import pytest
from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI, HTTPException

from fastapi_carmy import AgentContext, AgentRouter
from tests.support.calls import app_of, events
from tests.support.wire import call, connect, serve_here

JSON = {"Content-Type": "application/json"}


@pytest.mark.spec("carmy/1 2.3")
async def test_events_arrive_as_they_happen() -> None:
    agent = AgentRouter()
    may_finish = anyio.Event()

    @agent.tool(effect="read")
    async def report(context: AgentContext) -> str:
        context.progress(1, 2, "halfway")
        await may_finish.wait()
        return "done"

    async with serve_here(app_of(agent)) as served, call(served, "report", stream=True) as wire:
        await wire.until(b"halfway")
        assert b"tool.completed" not in wire.received
        may_finish.set()
        answer = await wire.answer()

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert events(answer.frames) == [
        "execution.started",
        "tool.started",
        "tool.progress",
        "tool.completed",
        "execution.completed",
    ]
    assert answer.result["data"] == "done"


@pytest.mark.spec("carmy/1 2.2")
async def test_an_answer_is_whole_and_the_connection_lives_on() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def echo(text: str) -> str:
        return text

    body = b'{"tool":"echo","arguments":{"text":"%b"}}'
    headers = {**JSON, "Connection": "keep-alive", "Content-Length": str(len(body) - 1)}

    async with (
        serve_here(app_of(agent)) as served,
        connect(served, "/agent/execute", method="POST", headers=headers) as wire,
    ):
        await wire.send(body % b"a")
        first = await wire.until(b'"data":"a"')
        head = "\r\n".join(f"{name}: {value}" for name, value in headers.items())
        await wire.send(f"POST /agent/execute HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        await wire.send(body % b"b")
        await wire.until(b'"data":"b"')

    assert first.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in wire.received.lower()


@pytest.mark.spec("carmy/1 7.7")
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_a_body_that_is_too_large_is_refused_before_it_has_been_sent(chunked: bool) -> None:
    agent = AgentRouter()
    size = 2 * 2**20
    framing = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(size)}

    async with (
        serve_here(app_of(agent)) as served,
        connect(served, "/agent/execute", method="POST", headers={**JSON, **framing}) as wire,
    ):
        if chunked:
            part = b"x" * 2**18
            for _ in range(5):
                await wire.send(b"%x\r\n%b\r\n" % (len(part), part))
        answer = await wire.answer()

    assert answer.status == 413
    assert answer.code == "PAYLOAD_TOO_LARGE"


@pytest.mark.spec("carmy/1 4.1")
async def test_a_guard_refuses_before_a_body_is_sent() -> None:
    def guard() -> None:
        raise HTTPException(401, headers={"WWW-Authenticate": "Bearer"})

    agent = AgentRouter(dependencies=[Depends(guard)])
    headers = {**JSON, "Content-Length": "1000", "Accept": "text/event-stream"}

    async with (
        serve_here(app_of(agent)) as served,
        connect(served, "/agent/execute", method="POST", headers=headers) as wire,
    ):
        answer = await wire.answer()

    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.code == "UNAUTHENTICATED"


@pytest.mark.spec("carmy/1 1")
@pytest.mark.parametrize("path", ["/.well-known/agent", "/agent/tools"])
async def test_head_and_304_have_no_body_on_the_wire(path: str) -> None:
    agent = AgentRouter()

    async with serve_here(app_of(agent)) as served:
        async with connect(served, path) as wire:
            get = await wire.answer()
        async with connect(served, path, method="HEAD") as wire:
            head = await wire.answer()
        async with connect(served, path, headers={"If-None-Match": get.headers["etag"]}) as wire:
            unchanged = await wire.answer()

    assert head.status == 200
    assert head.body == unchanged.body == b""
    assert head.headers["content-length"] == str(len(get.body))
    assert head.headers["etag"] == unchanged.headers["etag"] == get.headers["etag"]
    assert unchanged.status == 304


@pytest.mark.spec("carmy/1 2.3")
async def test_a_reader_that_does_not_read_stalls_neither_the_tool_nor_its_deadline() -> None:
    agent = AgentRouter()
    finished = anyio.Event()
    text = "x" * 10_000

    @agent.tool(effect="write", timeout_seconds=4)
    async def report(context: AgentContext) -> str:
        for step in range(2_000):
            context.progress(step, message=text)
            if step % 20 == 0:
                await anyio.lowlevel.checkpoint()
        finished.set()
        return "done"

    async with serve_here(app_of(agent)) as served, call(served, "report", stream=True) as wire:
        with anyio.fail_after(4):
            await finished.wait()
        answer = await wire.answer()

    assert answer.result["data"] == "done"
    assert len(answer.body) < 15_000_000
    assert events(answer.frames)[-2:] == ["tool.completed", "execution.completed"]


@pytest.mark.spec("carmy/1 4.2")
async def test_of_200_simultaneous_equal_calls_one_runs() -> None:
    agent = AgentRouter()
    runs: list[str] = []
    begun, may_end = anyio.Event(), anyio.Event()

    def session() -> str:
        return "session"

    @agent.tool(effect="write")
    async def work(x: str, needed: Annotated[str, Depends(session)]) -> int:
        runs.append(x)
        begun.set()
        await may_end.wait()
        return len(runs)

    answers: list[tuple[int, str]] = []

    async with serve_here(app_of(agent), backlog=512) as served:

        async def send(number: int) -> None:
            stream = number % 2 == 0
            async with call(served, "work", {"x": "a"}, request_id="r", stream=stream) as wire:
                result = (await wire.answer()).result
            code = result["error"]["code"] if "error" in result else "completed"
            answers.append((result.get("data", 0), code))
            if len(answers) == 199:
                may_end.set()

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(send, number)

    assert sorted(answers) == [(0, "EXECUTION_UNCERTAIN")] * 199 + [(1, "completed")]
    assert runs == ["a"]


async def test_a_sync_tool_leaves_the_server_free_for_others() -> None:
    agent = AgentRouter()
    may_end = threading.Event()

    @agent.tool(effect="read")
    def hold() -> str:
        assert may_end.wait(5)
        return "held"

    app = FastAPI()
    app.include_router(agent)

    @app.get("/free")
    async def free() -> str:
        return "free"

    async with serve_here(app) as served, call(served, "hold") as held:
        async with connect(served, "/free") as wire:
            assert (await wire.answer()).json() == "free"
        await run_sync(may_end.set)
        assert (await held.answer()).result["data"] == "held"
