"""Executions as Server-Sent Events. Source: carmy/1, section 2.3."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import anyio
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.testclient import TestClient
from pydantic import BaseModel
from starlette.middleware.gzip import GZipMiddleware

from fastapi_carmy import AgentContext, AgentError, AgentRouter, CurrentContext, ErrorCategory
from tests.support.asgi import connect, execute
from tests.support.calls import app_of, code, events, post, stream

STARTED, TOOL_STARTED = "execution.started", "tool.started"
PROGRESS, TOOL_COMPLETED, COMPLETED = "tool.progress", "tool.completed", "execution.completed"


@pytest.mark.spec("carmy/1 7.8")
def test_a_call_is_told_in_four_events_and_its_replay_in_two() -> None:
    agent = AgentRouter()

    @agent.tool(effect="write")
    async def count(x: str) -> int:
        return 0

    with TestClient(app_of(agent)) as client:
        first = stream(client, "count", {"x": "a"}, request_id="r")
        second = stream(client, "count", {"x": "a"}, request_id="r")

    started, tool_started, tool_completed, completed = (frame.json() for frame in first)
    assert events(first) == [STARTED, TOOL_STARTED, TOOL_COMPLETED, COMPLETED]
    ours = {"execution_id": completed["execution_id"], "tool": "count"}
    assert started == tool_started == ours
    assert tool_completed == {**ours, "duration_ms": tool_completed["duration_ms"], "ok": True}
    assert isinstance(tool_completed["duration_ms"], int)
    assert completed == {
        "execution_id": started["execution_id"],
        "status": "completed",
        "data": 0,
        "_agent": {"cacheable": False, "next_actions": []},
        "replayed": False,
    }
    assert events(second) == [STARTED, COMPLETED]
    assert second[0].json()["execution_id"] != started["execution_id"]
    assert second[1].json() == {**completed, "replayed": True}


@pytest.mark.spec("carmy/1 7.9")
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_progress_and_partial_results_are_events(kind: str) -> None:
    agent = AgentRouter()

    def report(context: AgentContext) -> str:
        context.progress(1, 2, "halfway")
        context.partial({"rows": [1]})
        return "done"

    async def report_async(context: AgentContext) -> str:
        return report(context)

    agent.add_tool(report if kind == "sync" else report_async, name="report", effect="read")

    with TestClient(app_of(agent)) as client:
        frames = stream(client, "report")

    assert events(frames) == [STARTED, TOOL_STARTED, PROGRESS, PROGRESS, TOOL_COMPLETED, COMPLETED]
    ours = frames[0].json()
    assert frames[2].json() == {**ours, "progress": 1.0, "total": 2.0, "message": "halfway"}
    assert frames[3].json() == {**ours, "progress": 1.0, "partial": {"rows": [1]}}
    assert isinstance(frames[2].json()["progress"], float)


class Step(BaseModel):
    status: str


@pytest.mark.spec("carmy/1 2.3")
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_generator_hands_out_each_item_and_answers_with_all(kind: str) -> None:
    agent = AgentRouter()

    async def track_async(order: int) -> AsyncIterator[Step]:
        for status in ("placed", "sent"):
            yield Step(status=status)

    def track_sync(order: int) -> Iterator[Step]:
        for status in ("placed", "sent"):
            yield Step(status=status)

    agent.add_tool(track_async if kind == "async" else track_sync, name="track", effect="read")

    with TestClient(app_of(agent)) as client:
        frames = stream(client, "track", {"order": 1})
        as_json = post(client, "track", {"order": 1}).json()

    items = [{"status": "placed"}, {"status": "sent"}]
    assert [frame.json()["partial"] for frame in frames[2:-2]] == items
    assert frames[-1].json()["data"] == as_json["data"] == items


@pytest.mark.spec("carmy/1 2.3")
async def test_an_event_arrives_before_the_tool_has_finished() -> None:
    agent = AgentRouter()
    may_finish = anyio.Event()

    @agent.tool(effect="read")
    async def report(context: AgentContext) -> str:
        context.progress(1)
        await may_finish.wait()
        return "done"

    async with execute(app_of(agent), "report", stream=True) as exchange:
        first = [(await exchange.frame()).event for _ in range(3)]
        may_finish.set()
        rest = events(await exchange.frames())

    assert first == [STARTED, TOOL_STARTED, PROGRESS]
    assert rest == [TOOL_COMPLETED, COMPLETED]
    assert exchange.status == 200
    assert exchange.headers == {
        "content-type": "text/event-stream",
        "cache-control": "no-store",
        "x-accel-buffering": "no",
    }


@pytest.mark.spec("carmy/1 2.3")
async def test_each_frame_is_an_event_with_one_line_of_data() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def lines(context: AgentContext) -> str:
        context.progress(1, message="a\nb\r\nc\u2028d")
        return "\r\n\u2028\x85"

    async with execute(app_of(agent), "lines", stream=True) as exchange:
        body = await exchange.read()

    assert b"\r" not in body
    assert body.endswith(b"\n\n")
    for frame in body.removesuffix(b"\n\n").split(b"\n\n"):
        name, data = frame.split(b"\n")
        assert name.startswith(b"event: ")
        assert data.startswith(b"data: {")


@pytest.mark.spec("carmy/1 2.3")
@pytest.mark.parametrize(
    ("tool", "arguments", "refusal"),
    [
        ("nothing", {}, "TOOL_NOT_FOUND"),
        ("wipe", {}, "CONFIRMATION_REQUIRED"),
        ("look", {"text": 7}, "INVALID_ARGUMENTS"),
    ],
)
def test_a_refusal_before_the_tool_runs_is_told_in_the_stream(
    tool: str, arguments: dict[str, object], refusal: str
) -> None:
    agent = AgentRouter()

    @agent.tool(effect="destructive")
    async def wipe() -> None: ...

    @agent.tool(effect="read")
    async def look(text: str) -> None: ...

    with TestClient(app_of(agent)) as client:
        frames = stream(client, tool, arguments)
        as_json = post(client, tool, arguments).json()

    started, completed = (frame.json() for frame in frames)
    assert events(frames) == [STARTED, COMPLETED]
    assert started == {"execution_id": completed["execution_id"], "tool": tool}
    assert completed["error"] == as_json["error"]
    assert completed["error"]["code"] == refusal
    assert completed["_agent"] == as_json["_agent"]
    assert completed["replayed"] is False


@pytest.mark.spec("carmy/1 2.3")
@pytest.mark.parametrize("failure", ["tool", "dependency"])
def test_a_failure_completes_what_was_started(failure: str) -> None:
    agent = AgentRouter()

    def fail(place: str) -> None:
        if place == failure:
            raise AgentError("NO", "No.", ErrorCategory.CONFLICT)

    def dependency() -> None:
        fail("dependency")

    @agent.tool(effect="read")
    async def look(needed: Annotated[None, Depends(dependency)]) -> None:
        fail("tool")

    with TestClient(app_of(agent)) as client:
        frames = stream(client, "look")

    assert events(frames) == [STARTED, TOOL_STARTED, TOOL_COMPLETED, COMPLETED]
    assert frames[2].json()["ok"] is False
    assert frames[3].json()["error"]["code"] == "NO"
    assert "data" not in frames[3].json()


@pytest.mark.spec("carmy/1 2.3")
@pytest.mark.parametrize("place", ["router", "include", "tool"])
def test_a_guards_refusal_is_json_even_where_a_stream_was_asked_for(place: str) -> None:
    def guard() -> None:
        raise HTTPException(401, "Who are you?", headers={"WWW-Authenticate": "Bearer"})

    def at(here: str) -> list[object]:
        return [Depends(guard)] if here == place else []

    agent = AgentRouter(dependencies=at("router"))

    @agent.tool(effect="read", dependencies=at("tool"))  # type: ignore[arg-type]
    async def look() -> None: ...

    with TestClient(app_of(agent, dependencies=at("include"))) as client:
        answer = post(client, "look", headers={"Accept": "text/event-stream"})

    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert list(answer.json()) == ["error"]
    assert code(answer) == "UNAUTHENTICATED"


@pytest.mark.spec("carmy/1 2.3")
def test_progress_is_told_only_while_the_tool_is_under_way() -> None:
    """A guard and a teardown have the same context as the tool."""
    agent = AgentRouter()

    def guard(context: CurrentContext) -> None:
        context.progress(1, message="guard")

    def dependency(context: CurrentContext) -> Iterator[None]:
        context.progress(2, message="dependency")
        yield
        context.progress(4, message="teardown")

    @agent.tool(effect="read", dependencies=[Depends(guard)])
    async def look(needed: Annotated[None, Depends(dependency)], context: AgentContext) -> None:
        context.progress(3, message="tool")

    with TestClient(app_of(agent)) as client:
        frames = stream(client, "look")

    assert events(frames)[:2] == [STARTED, TOOL_STARTED]
    assert events(frames)[-2:] == [TOOL_COMPLETED, COMPLETED]
    told = [frame.json()["message"] for frame in frames[2:-2]]
    assert told == ["dependency", "tool", "teardown"]


@pytest.mark.spec("carmy/1 2.3")
async def test_a_slow_reader_stalls_nobody_and_loses_only_old_progress() -> None:
    agent = AgentRouter()
    finished = anyio.Event()

    @agent.tool(effect="read")
    async def report(context: AgentContext) -> str:
        for step in range(10_000):
            context.progress(step, 10_000)
            if step % 1_000 == 0:
                await anyio.lowlevel.checkpoint()
        finished.set()
        return "done"

    async with execute(app_of(agent), "report", stream=True) as exchange:
        await exchange.started()
        with anyio.fail_after(5):
            await finished.wait()
        frames = await exchange.frames()

    progress = [frame.json()["progress"] for frame in frames if frame.event == PROGRESS]
    assert 0 < len(progress) < 2_000
    assert progress == sorted(progress)
    assert progress[-1] == 9_999
    assert events(frames)[-2:] == [TOOL_COMPLETED, COMPLETED]


async def _passed_through(request: Request, call_next: object) -> Response:
    response = await call_next(request)  # type: ignore[operator]
    assert isinstance(response, Response)
    return response


@pytest.mark.parametrize("middleware", ["http", "gzip"])
async def test_a_stream_passes_through_the_hosts_middleware(middleware: str) -> None:
    agent = AgentRouter()
    may_finish = anyio.Event()

    @agent.tool(effect="read")
    async def report() -> str:
        await may_finish.wait()
        return "done"

    app = FastAPI()
    app.include_router(agent)
    if middleware == "http":
        app.middleware("http")(_passed_through)
    else:
        app.add_middleware(GZipMiddleware, minimum_size=1)

    async with execute(app, "report", stream=True) as exchange:
        first = [(await exchange.frame()).event for _ in range(2)]
        may_finish.set()
        rest = events(await exchange.frames())

    assert first + rest == [STARTED, TOOL_STARTED, TOOL_COMPLETED, COMPLETED]


async def test_the_stream_needs_no_trailing_slash_nor_minds_one() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def look() -> str:
        return "x"

    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}

    async with connect(
        app_of(agent),
        "/agent/execute/",
        method="POST",
        headers=headers,
        body=b'{"tool":"look"}',
    ) as exchange:
        frames = await exchange.frames()

    assert events(frames)[-1] == COMPLETED
