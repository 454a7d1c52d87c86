"""Dependencies of tools, and what they see of the end. Source: carmy/1, section 4.1."""

from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Annotated, Any

import anyio
import pytest
from fastapi import (
    BackgroundTasks,
    Cookie,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Request,
    Response,
    Security,
)
from fastapi.security import SecurityScopes
from fastapi.testclient import TestClient

from fastapi_carmy import (
    AgentError,
    AgentRouter,
    Caller,
    CurrentCaller,
    CurrentContext,
    ErrorCategory,
)
from fastapi_carmy.events import ExecutionCompleted
from tests.support.asgi import connect, execute
from tests.support.calls import app_of, caller_from_headers, code, post


@pytest.mark.spec("carmy/1 4.1")
def test_a_dependency_shared_by_guards_and_tool_runs_once() -> None:
    agent = AgentRouter()
    runs: list[str] = []

    def shared() -> str:
        runs.append("shared")
        return "shared"

    def guard(needed: Annotated[str, Depends(shared)]) -> None:
        runs.append(f"guard with {needed}")

    @agent.tool(effect="read", dependencies=[Depends(guard)])
    async def work(needed: Annotated[str, Depends(shared)]) -> str:
        return needed

    with TestClient(app_of(agent, dependencies=[Depends(guard)])) as client:
        assert post(client, "work").json()["data"] == "shared"

    assert runs == ["shared", "guard with shared"]


def test_what_fastapi_injects_is_injected_and_never_an_argument() -> None:
    agent = AgentRouter(caller=caller_from_headers)

    def scoped(scopes: SecurityScopes) -> list[str]:
        return scopes.scopes

    @agent.tool(effect="read")
    async def work(
        request: Request,
        scopes: Annotated[list[str], Security(scoped, scopes=["orders"])],
        caller: Caller,
        x_trace: Annotated[str, Header()],
        size: Annotated[int, Cookie()] = 1,
    ) -> list[object]:
        return [request.url.path, scopes, caller.principal, x_trace, size]

    headers = {"X-Principal": "anna", "X-Trace": "t", "Cookie": "size=3"}

    with TestClient(app_of(agent)) as client:
        answer = post(client, "work", headers=headers)
        refused = post(client, "work", {"x_trace": "mine"}, headers=headers)
        missing = post(client, "work", headers={"X-Principal": "anna"})

    assert answer.json()["data"] == ["/agent/execute", ["orders"], "anna", "t", 3]
    assert code(refused) == "INVALID_ARGUMENTS"
    assert (missing.status_code, code(missing)) == (400, "INVALID_REQUEST")
    assert agent.tools[0].input_schema["properties"] == {}


def test_dependencies_see_the_execution_and_its_caller() -> None:
    agent = AgentRouter(caller=caller_from_headers)

    def who(context: CurrentContext, caller: CurrentCaller) -> list[str | None]:
        return [context.tool, context.request_id, context.caller.principal, caller.principal]

    @agent.tool(effect="read")
    async def work(needed: Annotated[list[str | None], Depends(who)]) -> list[str | None]:
        return needed

    with TestClient(app_of(agent)) as client:
        answer = post(client, "work", request_id="r", headers={"X-Principal": "anna"})

    assert answer.json()["data"] == ["work", "r", "anna", "anna"]


def test_scalars_of_dependencies_are_arguments_and_those_of_guards_are_not() -> None:
    agent = AgentRouter()

    def pages(skip: int = 0, limit: int = 100) -> tuple[int, int]:
        return skip, limit

    tenants: list[str] = []

    def guard(tenant: str) -> None:
        tenants.append(tenant)

    @agent.tool(effect="read", dependencies=[Depends(guard)])
    async def work(page: Annotated[tuple[int, int], Depends(pages)]) -> list[int]:
        return list(page)

    with TestClient(app_of(agent, prefix="/{tenant}")) as client:
        path = "/acme/agent/execute"
        answer = post(client, "work", {"skip": 5}, path=path)
        wrong = post(client, "work", {"skip": "many"}, path=path)
        chosen = post(client, "work", {"tenant": "other"}, path=path)

    assert answer.json()["data"] == [5, 100]
    assert wrong.json()["error"]["details"]["errors"][0]["path"] == "skip"
    assert code(chosen) == "INVALID_ARGUMENTS"
    assert tenants == ["acme"] * 3


def test_a_contextvar_set_by_an_async_dependency_reaches_the_tool() -> None:
    agent = AgentRouter()
    tenant: ContextVar[str] = ContextVar("tenant", default="none")

    async def set_tenant(x_tenant: Annotated[str, Header()]) -> None:
        tenant.set(x_tenant)

    @agent.tool(effect="read", dependencies=[Depends(set_tenant)])
    async def in_task() -> str:
        return tenant.get()

    @agent.tool(effect="read")
    def in_thread(needed: Annotated[None, Depends(set_tenant)]) -> str:
        return tenant.get()

    with TestClient(app_of(agent)) as client:
        headers = {"X-Tenant": "acme"}
        answers = [post(client, name, headers=headers) for name in ("in_task", "in_thread")]

    assert [answer.json()["data"] for answer in answers] == ["acme", "acme"]


def test_overrides_of_the_application_are_respected() -> None:
    agent = AgentRouter(caller=caller_from_headers)

    def shop() -> str:
        return "real"

    def guard() -> None:
        raise HTTPException(401)

    @agent.tool(effect="read", dependencies=[Depends(guard)])
    async def work(needed: Annotated[str, Depends(shop)], caller: Caller) -> list[str | None]:
        return [needed, caller.principal]

    app = FastAPI()
    app.include_router(agent)

    with TestClient(app) as client:
        refused = post(client, "work")
        app.dependency_overrides = {
            shop: lambda: "fake",
            guard: lambda: None,
            caller_from_headers: lambda: Caller(principal="test"),
        }
        answer = post(client, "work")
        app.dependency_overrides = {}
        again = post(client, "work")

    assert refused.status_code == again.status_code == 401
    assert answer.json()["data"] == ["fake", "test"]


@pytest.mark.spec("carmy/1 4.1")
def test_headers_of_dependencies_reach_answers_and_never_replace_ours() -> None:
    agent = AgentRouter()

    def headers(response: Response) -> None:
        response.headers["X-Shop"] = "tea"
        response.headers["Cache-Control"] = "public"
        response.headers["Content-Type"] = "text/plain"
        response.headers["Carmy-Replayed"] = "true"
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        response.status_code = 201

    @agent.tool(effect="read")
    async def work(needed: Annotated[None, Depends(headers)], is_good: bool) -> None:
        if not is_good:
            raise AgentError("NO", "No.", ErrorCategory.CONFLICT)

    with TestClient(app_of(agent)) as client:
        good, bad = (post(client, "work", {"is_good": value}) for value in (True, False))
        streamed = post(client, "work", {"is_good": True}, headers={"Accept": "text/event-stream"})

    assert (good.status_code, bad.status_code) == (200, 409)
    for answer in (good, bad):
        assert answer.headers["x-shop"] == "tea"
        assert len(answer.headers.get_list("set-cookie")) == 2
        assert answer.headers.get_list("cache-control") == ["no-store"]
        assert answer.headers.get_list("content-type") == ["application/json"]
        assert "carmy-replayed" not in answer.headers
    assert "x-shop" not in streamed.headers


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
def test_background_tasks_run_after_a_success_only(streamed: bool) -> None:
    agent = AgentRouter()
    seen: list[str] = []

    def session() -> Iterator[None]:
        yield
        seen.append("closed")

    @agent.tool(effect="write")
    async def work(
        is_good: bool, background: BackgroundTasks, needed: Annotated[None, Depends(session)]
    ) -> None:
        background.add_task(seen.append, "mail")
        if not is_good:
            raise AgentError("NO", "No.", ErrorCategory.CONFLICT)

    headers = {"Accept": "text/event-stream"} if streamed else {}

    with TestClient(app_of(agent)) as client:
        for is_good in (False, True):
            post(client, "work", {"is_good": is_good}, headers=headers)

    assert seen == ["closed", "mail"]


async def length(request: Request) -> int:
    return len(await request.body())


async def first_part(request: Request) -> int:
    async for part in request.stream():
        return len(part)

    return 0


BODY = [b'{"tool":', b'"measure"}']


@pytest.mark.parametrize(
    ("guards", "injected", "measured"),
    [
        ([Depends(length)], Depends(lambda: 0), 0),
        ([], Depends(length), 18),
        ([Depends(length)], Depends(length), 18),
        ([Depends(first_part)], Depends(lambda: 0), 0),
    ],
    ids=["guard", "dependency", "both", "in-part"],
)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_who_reads_the_body_takes_it_from_nobody(
    guards: list[Any], injected: Any, measured: int, accept: str
) -> None:
    agent = AgentRouter(dependencies=guards)

    async def measure(n: Any = injected) -> Any:
        return n

    agent.add_tool(measure, effect="read")

    async with connect(
        app_of(agent),
        "/agent/execute",
        method="POST",
        headers={"Content-Type": "application/json", "Accept": accept},
        body=BODY,
    ) as exchange:
        assert b'"data":%d,' % measured in await exchange.read()


async def test_a_guard_reads_no_further_than_the_limit() -> None:
    async def swallow(request: Request) -> None:
        with suppress(AgentError):
            await request.body()

    agent = AgentRouter(dependencies=[Depends(swallow)], max_body_bytes=10)

    @agent.tool(effect="read")
    async def measure() -> None: ...

    async with connect(
        app_of(agent),
        "/agent/execute",
        method="POST",
        headers={"Content-Type": "application/json"},
        body=[b" " * 8, b" " * 8, b" " * 8],
    ) as exchange:
        refused = await exchange.json()

    assert (exchange.status, refused["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert exchange.body_messages_read == 2


async def test_a_hang_up_is_noticed_after_a_guard_read_the_body() -> None:
    agent = AgentRouter(dependencies=[Depends(length)])
    started, stopped = anyio.Event(), anyio.Event()

    @agent.tool(effect="read")
    async def wait(n: Annotated[int, Depends(length)]) -> None:
        started.set()

        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    with anyio.fail_after(5):
        async with execute(app_of(agent), "wait") as exchange:
            await started.wait()
            exchange.hang_up()
            await stopped.wait()


def test_a_body_that_the_host_has_read_is_there_for_the_hosts_own_call() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def measure(n: Annotated[int, Depends(length)]) -> int:
        return n

    @agent.post("/plain")
    async def plain(request: Request, sent: dict[str, int]) -> object:
        before = await agent.execute("measure", request=request)
        return [before.data, len(await request.body())]

    with TestClient(app_of(agent)) as client:
        assert client.post("/plain", json={"n": 1}).json() == [7, 7]


async def test_a_background_task_that_fails_changes_no_answer_of_the_hosts_own_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = AgentRouter()

    def fail() -> None:
        raise RuntimeError("The mail server is down.")

    @agent.tool(effect="write")
    async def order(tasks: BackgroundTasks) -> str:
        tasks.add_task(fail)
        return "ordered"

    result = await agent.execute("order", request_id="r")
    events = [event async for event in agent.stream("order")]

    assert result.data == "ordered"
    assert isinstance(events[-1], ExecutionCompleted)
    assert events[-1].result.data == "ordered"
    assert caplog.text.count("RuntimeError: The mail server is down.") == 2
