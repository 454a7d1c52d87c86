"""The same pipeline without HTTP: `router.execute` and `router.stream`."""

from collections.abc import AsyncIterator, Callable
from datetime import date
from typing import Annotated, Any

import anyio
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request
from fastapi.testclient import TestClient
from pydantic import BaseModel

from fastapi_carmy import AgentContext, AgentError, AgentRouter, Caller, ErrorCategory
from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.events import (
    ExecutionCompleted,
    ExecutionStarted,
    ToolCompleted,
    ToolProgress,
    ToolStarted,
)
from fastapi_carmy.policies import RequireToolPermission
from tests.support.calls import app_of, post

ANNA = Caller(principal="anna")


class Order(BaseModel):
    sku: str
    due: date


async def test_a_call_of_the_host_goes_through_the_same_pipeline() -> None:
    agent = AgentRouter()
    runs: list[Order] = []

    @agent.tool(effect="write")
    async def order(order: Order, caller: Caller) -> Order:
        runs.append(order)
        return order

    arguments = {"order": Order(sku="TEA", due=date(2026, 1, 2))}
    first, second = [
        await agent.execute("order", arguments, caller=ANNA, request_id="r") for _ in range(2)
    ]
    conflict = await agent.execute(
        "order", {"order": {"sku": "CUP", "due": "2026-01-02"}}, caller=ANNA, request_id="r"
    )

    assert first.status == "completed"
    assert first.data == second.data == {"sku": "TEA", "due": "2026-01-02"}
    assert first.execution_id == second.execution_id
    assert (first.replayed, second.replayed) == (False, True)
    assert conflict.error is not None
    assert conflict.error.code == "IDEMPOTENCY_CONFLICT"
    assert runs == [Order(sku="TEA", due=date(2026, 1, 2))]


async def test_a_failure_is_an_answer_too() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def fail(context: AgentContext) -> None:
        context.suggest("look", {"text": "x"}, reason="Look first.", after_seconds=1.5)
        raise AgentError("LATER", "Later.", ErrorCategory.CAPACITY, retry_after=3, retryable=True)

    failed = await agent.execute("fail")
    unknown = await agent.execute("fial")
    wrong = await agent.execute("fail", {"x": 1})
    unfit = await agent.execute("fail", {"x": 1}, request_id="")

    assert (failed.status, failed.data, failed.cacheable) == ("failed", None, False)
    assert failed.error is not None
    assert (failed.error.code, failed.error.status_code) == ("LATER", 503)
    assert [(a.tool, a.arguments, a.after_ms) for a in failed.next_actions] == [
        ("fail", None, 3000),
        ("look", {"text": "x"}, 1500),
    ]
    codes = [result.error and result.error.code for result in (unknown, wrong, unfit)]
    assert codes == ["TOOL_NOT_FOUND", "INVALID_ARGUMENTS", "INVALID_ID"]


async def test_a_replayed_failure_is_the_same_error() -> None:
    agent = AgentRouter()

    @agent.tool(effect="write")
    async def fail() -> None:
        raise AgentError("NO", "No.", ErrorCategory.CONFLICT, details={"a": [1]})

    first, second = [await agent.execute("fail", request_id="r") for _ in range(2)]

    assert first.error is not None
    assert second.error is not None
    assert first.error.as_dict() == second.error.as_dict()
    assert second.error.status_code == 409


async def test_guards_are_skipped_and_policies_run() -> None:
    def guard() -> None:
        raise HTTPException(401)

    agent = AgentRouter(policies=[RequireToolPermission()], dependencies=[Depends(guard)])

    @agent.tool(effect="read", dependencies=[Depends(guard)])
    async def look() -> str:
        return "x"

    @agent.tool(effect="destructive")
    async def wipe() -> str:
        return "wiped"

    refused = await agent.execute("look", caller=ANNA)
    allowed = await agent.execute("look", caller=Caller(permissions=frozenset({"tool:look"})))
    unconfirmed = await agent.execute("wipe", caller=Caller(permissions=frozenset({"tool:wipe"})))

    assert refused.error is not None
    assert refused.error.code == "FORBIDDEN"
    assert allowed.data == "x"
    assert unconfirmed.error is not None
    assert unconfirmed.error.code == "CONFIRMATION_REQUIRED"


async def test_dependencies_close_and_background_tasks_run() -> None:
    agent = AgentRouter()
    seen: list[str] = []

    async def session() -> AsyncIterator[str]:
        yield "session"
        seen.append("committed")

    @agent.tool(effect="write")
    async def work(needed: Annotated[str, Depends(session)], background: BackgroundTasks) -> str:
        background.add_task(seen.append, "mail")
        return needed

    first = await agent.execute("work", request_id="r")
    await agent.execute("work", request_id="r")

    assert first.data == "session"
    assert seen == ["committed", "mail"]


@pytest.mark.parametrize("what", ["request", "header", "sub-dependency"])
async def test_what_needs_a_request_says_so_without_one(what: str) -> None:
    agent = AgentRouter()

    def trace(x_trace: Annotated[str, Header()] = "none") -> str:
        return x_trace

    async def by_request(request: Request) -> str:
        return request.headers.get("x-trace", "none")

    async def by_header(x_trace: Annotated[str, Header()] = "none") -> str:
        return x_trace

    async def by_dependency(trace: Annotated[str, Depends(trace)]) -> str:
        return trace

    functions: dict[str, Callable[..., object]] = {
        "request": by_request,
        "header": by_header,
        "sub-dependency": by_dependency,
    }
    agent.add_tool(functions[what], name="look", effect="read")

    @agent.get("/outside")
    async def outside(request: Request) -> Any:
        return (await agent.execute("look", request=request)).data

    without = await agent.execute("look")
    with TestClient(app_of(agent)) as client:
        inside = client.get("/outside", headers={"X-Trace": "t"})

    assert without.error is not None
    assert without.error.code == "INVALID_REQUEST"
    assert "request=" in str(without.error.details)
    assert inside.json() == "t"


async def test_overrides_of_the_application_count_for_the_host_too() -> None:
    agent = AgentRouter()

    def shop() -> str:
        return "real"

    @agent.tool(effect="read")
    async def look(needed: Annotated[str, Depends(shop)]) -> str:
        return needed

    app = FastAPI()
    app.include_router(agent)
    app.dependency_overrides[shop] = lambda: "fake"

    with TestClient(app) as client:
        assert client.portal is not None
        result = client.portal.call(agent.execute, "look")

    assert result.data == "fake"


async def test_a_stream_yields_what_the_execution_reports() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def report(context: AgentContext) -> str:
        context.progress(1, 2, "halfway")
        return "done"

    events = [event async for event in agent.stream("report")]

    started, tool_started, progress, tool_completed, completed = events
    assert isinstance(completed, ExecutionCompleted)
    execution_id = completed.result.execution_id
    assert completed.result.data == "done"
    assert started == ExecutionStarted(execution_id, "report")
    assert tool_started == ToolStarted(execution_id, "report")
    assert progress == ToolProgress(execution_id, "report", 1.0, 2.0, "halfway")
    assert isinstance(tool_completed, ToolCompleted)
    assert tool_completed.ok


@pytest.mark.parametrize(
    ("tool", "arguments", "refusal"),
    [
        ("nothing", {}, "TOOL_NOT_FOUND"),
        ("look", {}, "INVALID_REQUEST"),
        ("plain", {"value": object()}, "INVALID_REQUEST"),
    ],
    ids=["unknown", "no-request", "no-json"],
)
async def test_a_refusal_is_streamed_as_well(
    tool: str, arguments: dict[str, object], refusal: str
) -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def look(request: Request) -> None: ...

    @agent.tool(effect="read")
    async def plain(value: object) -> None: ...

    events = [event async for event in agent.stream(tool, arguments)]

    assert isinstance(events[0], ExecutionStarted)
    assert isinstance(events[-1], ExecutionCompleted)
    assert len(events) == 2
    assert events[-1].result.error is not None
    assert events[-1].result.error.code == refusal


@pytest.mark.parametrize(
    "value",
    [object(), {"deep": [object()]}, float("nan"), float("-inf"), "\ud800", b"\xff", 10**5000],
    ids=["object", "deep", "nan", "infinity", "surrogate", "bytes", "digits"],
)
async def test_what_json_cannot_hold_is_refused_and_never_replaced(value: object) -> None:
    agent = AgentRouter()
    runs: list[object] = []

    @agent.tool(effect="read")
    async def echo(value: object = None) -> None:
        runs.append(value)

    result = await agent.execute("echo", {"value": value})

    assert result.error is not None
    assert result.error.code == "INVALID_REQUEST"
    assert runs == []


async def test_a_request_id_that_is_no_text_is_refused() -> None:
    agent = AgentRouter()

    @agent.tool(effect="write")
    async def work() -> None: ...

    result = await agent.execute("work", request_id="\ud800")

    assert result.error is not None
    assert result.error.code == "INVALID_REQUEST"


@pytest.mark.spec("carmy/1 4.2")
async def test_closing_a_stream_stops_the_execution_on_purpose_and_that_is_recorded() -> None:
    agent = AgentRouter()
    seen: list[str] = []

    @agent.tool(effect="write")
    async def work(context: AgentContext) -> None:
        context.progress(1)
        try:
            await anyio.sleep_forever()
        finally:
            seen.append("stopped")

    stream = agent.stream("work", request_id="r")
    async for event in stream:
        if isinstance(event, ToolProgress):
            break
    await stream.aclose()
    again = await agent.execute("work", request_id="r")

    assert seen == ["stopped"]
    assert again.replayed
    assert again.status == "cancelled"
    assert again.error is not None
    assert again.error.code == "CANCELLED"


async def test_the_store_is_closed_by_hand_where_no_lifespan_does() -> None:
    agent = AgentRouter()
    begun = anyio.Event()

    @agent.tool(effect="write")
    async def work() -> None:
        begun.set()
        await anyio.sleep_forever()

    results: list[Any] = []

    async def call() -> None:
        results.append(await agent.execute("work", request_id="r"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        with anyio.fail_after(5):
            await begun.wait()
            await agent.aclose()

    assert [result.status for result in results] == ["cancelled"]


def test_suggestions_of_a_tool_stand_in_its_answer() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def search(context: AgentContext) -> list[str]:
        context.suggest("order", {"sku": "TEA"}, reason="Order it.")
        context.suggest("search", reason="Search again.", after_seconds=0.5)
        return []

    with TestClient(app_of(agent)) as client:
        answer = post(client, "search").json()

    assert answer["_agent"]["next_actions"] == [
        {"tool": "order", "arguments": {"sku": "TEA"}, "reason": "Order it."},
        {"tool": "search", "reason": "Search again.", "after_ms": 500},
    ]


def test_of_two_applications_the_host_says_which_one_a_call_is_for() -> None:
    def database() -> str:
        return "real"

    agent = AgentRouter()

    @agent.tool(effect="read")
    async def name(database: Annotated[str, Depends(database)]) -> str:
        return database

    first, second = app_of(agent), app_of(agent)
    second.dependency_overrides[database] = lambda: "double"

    async def named(app: FastAPI | None) -> list[object]:
        events = [event async for event in agent.stream("name", app=app)]
        assert isinstance(events[-1], ExecutionCompleted)
        return [(await agent.execute("name", app=app)).data, events[-1].result.data]

    with TestClient(first) as client:
        post(client, "name")

        with TestClient(second) as other:
            post(other, "name")
            assert anyio.run(named, first) == ["real"] * 2
            assert anyio.run(named, second) == ["double"] * 2

            with pytest.raises(ConfigurationError, match="say which one"):
                anyio.run(named, None)

        # The other one has stopped.
        assert anyio.run(named, None) == ["real"] * 2
