"""Guards: who gets as far as an execution. Source: carmy/1, sections 1, 3 and 4.1."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from typing import Annotated

import anyio
import pytest
from fastapi import (
    APIRouter,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Request,
    Response,
    Security,
    routing,
)
from fastapi.security import HTTPBearer
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from fastapi_carmy import AgentError, AgentRouter, Caller, CurrentCaller
from fastapi_carmy.errors import ToolError
from fastapi_carmy.http.request import Inbox
from fastapi_carmy.injection import solver
from tests.support.asgi import connect, execute
from tests.support.calls import app_of, caller_from_headers, code, post

JSON = {"Content-Type": "application/json"}
PATHS = [("GET", "/.well-known/agent"), ("GET", "/agent/tools"), ("POST", "/agent/execute")]


def refuse_without_token(x_token: Annotated[str, Header()] = "") -> None:
    if x_token != "token":
        raise HTTPException(401, "Who are you?", headers={"WWW-Authenticate": "Bearer"})


@pytest.mark.spec("carmy/1 1")
@pytest.mark.parametrize("place", ["router", "include", "application"])
@pytest.mark.parametrize(("method", "path"), PATHS, ids=["discovery", "catalog", "execute"])
def test_guards_of_router_include_and_application_cover_all_our_paths(
    place: str, method: str, path: str
) -> None:
    def at(here: str) -> list[object]:
        return [Depends(refuse_without_token)] if here == place else []

    agent = AgentRouter(dependencies=at("router"))

    @agent.tool(effect="read")
    async def look() -> None: ...

    app = FastAPI(dependencies=at("application"))  # type: ignore[arg-type]
    app.include_router(agent, dependencies=at("include"))  # type: ignore[arg-type]
    body = {"tool": "look"} if method == "POST" else None

    with TestClient(app) as client:
        refused = client.request(method, path, json=body)
        allowed = client.request(method, path, json=body, headers={"X-Token": "token"})

    assert (refused.status_code, code(refused)) == (401, "UNAUTHENTICATED")
    assert list(refused.json()) == ["error"]
    assert refused.headers["www-authenticate"] == "Bearer"
    assert allowed.status_code == 200


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize("is_caller", [True, False], ids=["caller", "guard"])
async def test_guards_and_caller_run_before_the_body_is_read(is_caller: bool) -> None:
    if is_caller:
        agent = AgentRouter(caller=refuse_without_token)
    else:
        agent = AgentRouter(dependencies=[Depends(refuse_without_token)])

    async with connect(
        app_of(agent),
        "/agent/execute",
        method="POST",
        headers={"Content-Type": "text/plain"},
        body=[b"no ", b"json"],
    ) as exchange:
        body = await exchange.json()

    assert exchange.status == 401
    assert exchange.body_messages_read == 0
    assert body["error"]["code"] == "UNAUTHENTICATED"


@pytest.mark.spec("carmy/1 1")
def test_a_declared_length_over_the_limit_is_refused_before_the_guards() -> None:
    agent = AgentRouter(dependencies=[Depends(refuse_without_token)], max_body_bytes=10)

    with TestClient(app_of(agent)) as client:
        answer = client.post("/agent/execute", content=b"x" * 11, headers=JSON)

    assert (answer.status_code, code(answer)) == (413, "PAYLOAD_TOO_LARGE")


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize("kind", ["dependencies", "security"])
def test_a_tools_own_guards_run_on_every_call_and_before_everything_else(kind: str) -> None:
    agent = AgentRouter()
    asked: list[str] = []

    def guard(x_token: Annotated[str, Header()] = "") -> str:
        asked.append(x_token)
        refuse_without_token(x_token)
        return "anna"

    async def by_dependencies(text: str) -> str:
        return text

    async def by_security(text: str, who: Annotated[str, Security(guard)]) -> str:
        return text

    if kind == "dependencies":
        agent.add_tool(
            by_dependencies, name="wipe", effect="destructive", dependencies=[Depends(guard)]
        )
        agent.add_tool(by_dependencies, name="look", effect="read", dependencies=[Depends(guard)])
    else:
        agent.add_tool(by_security, name="wipe", effect="destructive")
        agent.add_tool(by_security, name="look", effect="read")

    token = {"X-Token": "token"}

    with TestClient(app_of(agent)) as client:
        refused = post(client, "wipe", {"nonsense": 1}, request_id="")
        passed = post(client, "wipe", {"nonsense": 1}, request_id="", headers=token)
        first = post(client, "look", {"text": "a"}, request_id="r", headers=token)
        replay = post(client, "look", {"text": "a"}, request_id="r", headers=token)
        stranger = post(client, "look", {"text": "a"}, request_id="r")
        unknown = post(client, "nothing")

    assert list(refused.json()) == list(stranger.json()) == ["error"]
    assert refused.status_code == stranger.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert code(passed) == "CONFIRMATION_REQUIRED"
    assert replay.content == first.content
    assert code(unknown) == "TOOL_NOT_FOUND"
    assert asked == ["", "token", "token", "token", ""]


@pytest.mark.spec("carmy/1 4.1")
def test_fastapis_own_security_is_a_guard() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def look(token: Annotated[object, Security(HTTPBearer())]) -> str:
        return "seen"

    with TestClient(app_of(agent)) as client:
        refused = post(client, "look", {"nonsense": 1})
        allowed = post(client, "look", headers={"Authorization": "Bearer x"})

    assert refused.status_code in (401, 403)
    assert list(refused.json()) == ["error"]
    assert allowed.json()["data"] == "seen"


@pytest.mark.spec("carmy/1 4.1")
def test_a_guard_that_yields_sees_how_its_execution_ended() -> None:
    seen: list[str] = []

    async def guard() -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            seen.append(type(error).__name__)
            raise
        seen.append("passed")

    agent = AgentRouter(dependencies=[Depends(guard)])

    @agent.tool(effect="read")
    async def look(divisor: int) -> int:
        return 1 // divisor

    with TestClient(app_of(agent)) as client:
        post(client, "look", {"divisor": 1}, request_id="r")
        post(client, "look", {"divisor": 0})
        post(client, "look", {"divisor": 1}, request_id="r")
        client.post("/agent/execute", content=b"{", headers=JSON)
        client.get("/agent/tools")

    assert seen == ["passed", "ZeroDivisionError", "passed", "AgentError", "passed"]


def test_the_caller_is_resolved_once_and_shared_with_guards_and_endpoints() -> None:
    asked: list[str | None] = []

    def caller(x_principal: Annotated[str | None, Header()] = None) -> Caller:
        asked.append(x_principal)
        return Caller(principal=x_principal)

    def guard(caller: CurrentCaller) -> None:
        if caller.principal is None:
            raise HTTPException(401)

    agent = AgentRouter(caller=caller, dependencies=[Depends(guard)])

    @agent.tool(effect="read")
    async def who(caller: Caller) -> str | None:
        return caller.principal

    @agent.get("/who")
    async def who_over_rest(caller: CurrentCaller) -> str | None:
        return caller.principal

    headers = {"X-Principal": "anna"}

    with TestClient(app_of(agent)) as client:
        answer = post(client, "who", headers=headers)
        over_rest = client.get("/who", headers=headers)
        refused = post(client, "who")

    assert answer.json()["data"] == over_rest.json() == "anna"
    assert refused.status_code == 401
    assert asked.count("anna") <= 3


def test_a_caller_dependency_may_say_nobody() -> None:
    def caller() -> None: ...

    agent = AgentRouter(caller=caller)

    @agent.tool(effect="read")
    async def who(caller: Caller) -> str | None:
        return caller.principal

    with TestClient(app_of(agent)) as client:
        assert post(client, "who").json()["data"] is None


def test_what_is_no_caller_is_a_mistake_of_the_host(caplog: pytest.LogCaptureFixture) -> None:
    agent = AgentRouter(caller=lambda: "anna")

    @agent.tool(effect="read")
    async def who() -> None: ...

    with TestClient(app_of(agent)) as client:
        answer = post(client, "who")

    assert (answer.status_code, code(answer)) == (500, "TOOL_PANIC")
    assert "returns a `Caller`" in caplog.text


@pytest.mark.spec("carmy/1 4.2")
@pytest.mark.parametrize(
    ("has_guard", "has_caller", "warns"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_guards_without_a_caller_are_warned_about_at_start_up(
    has_guard: bool, has_caller: bool, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = AgentRouter(
        caller=caller_from_headers if has_caller else None,
        dependencies=[Depends(refuse_without_token)] if has_guard else [],
    )

    with TestClient(app_of(agent)):
        pass

    assert ("share one namespace of request_id" in caplog.text) is warns


def test_wrong_parameters_of_a_guard_are_named_and_not_echoed() -> None:
    def guard(limit: int) -> None: ...

    agent = AgentRouter(dependencies=[Depends(guard)])

    @agent.tool(effect="read")
    async def look() -> None: ...

    with TestClient(app_of(agent)) as client:
        answer = post(client, "look", path="/agent/execute?limit=hunter2")

    assert (answer.status_code, code(answer)) == (400, "INVALID_REQUEST")
    assert "limit" in answer.json()["error"]["details"]["reason"]
    assert "hunter2" not in answer.text


@pytest.mark.parametrize("starts", [True, False], ids=["lifespan", "no-lifespan"])
def test_guards_that_fastapi_tells_of_by_another_name_refuse_everybody(
    starts: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(routing, "_FASTAPI_EFFECTIVE_ROUTE_CONTEXT_KEY", "renamed")
    agent = AgentRouter()
    runs: list[str] = []

    @agent.tool(effect="write")
    async def run() -> None:
        runs.append("run")

    client = TestClient(
        app_of(agent, prefix="/api", dependencies=[Depends(refuse_without_token)]),
        raise_server_exceptions=False,
    )

    with client if starts else nullcontext():
        answers = [
            post(client, "run", path="/api/agent/execute"),
            client.get("/api/agent/tools"),
        ]

    assert [(one.status_code, code(one)) for one in answers] == [(500, "TOOL_PANIC")] * 2
    assert runs == []
    assert "depends on can't be told" in caplog.text


def test_guards_of_a_router_that_is_included_later_count_as_well() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def look() -> None: ...

    app = app_of(agent)

    with TestClient(app) as client:
        first = post(client, "look")
        app.include_router(agent, prefix="/late", dependencies=[Depends(refuse_without_token)])
        late = post(client, "look", path="/late/agent/execute")
        allowed = post(client, "look", path="/late/agent/execute", headers={"X-Token": "token"})

    assert [one.status_code for one in (first, late, allowed)] == [200, 401, 200]


def test_a_router_that_is_mounted_by_itself_keeps_its_own_guards() -> None:
    agent = AgentRouter(dependencies=[Depends(refuse_without_token)])

    @agent.tool(effect="read")
    async def look() -> None: ...

    app, outer = FastAPI(), APIRouter()
    outer.mount("/inner", agent)
    app.include_router(outer)
    app.mount("/mounted", agent)
    client = TestClient(app)
    paths = [f"{prefix}/agent/execute" for prefix in ("/mounted", "/inner")]
    headers = {"X-Token": "token"}

    assert [post(client, "look", path=path).status_code for path in paths] == [401, 401]
    assert [post(client, "look", path=path, headers=headers).status_code for path in paths] == [
        200,
        200,
    ]


@pytest.mark.parametrize("name", ["X-€", "X Y", "X:Y", "X\r\nY"])
async def test_a_header_of_the_hosts_that_is_none_is_left_out(name: str) -> None:
    async def refuse() -> None:
        raise HTTPException(401, headers={name: "1", "X-Kept": "€"})

    agent = AgentRouter(dependencies=[Depends(refuse)])

    async with connect(app_of(agent), "/agent/tools") as exchange:
        await exchange.json()

    assert exchange.status == 401
    assert exchange.headers == {
        "content-type": "application/json",
        "cache-control": "no-store",
        "x-kept": "?",
        "content-length": exchange.headers["content-length"],
    }


def test_scopes_that_fastapi_no_longer_takes_stop_the_registration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def moved(*, path: str, call: object, name: str, parent_oauth_scopes: list[str]) -> None: ...

    monkeypatch.setattr(solver, "get_dependant", moved)
    agent = AgentRouter()

    async def wipe() -> None: ...

    with pytest.raises(ToolError, match="own_oauth_scopes"):
        agent.add_tool(
            wipe, effect="write", dependencies=[Security(refuse_without_token, scopes=["admin"])]
        )


@pytest.mark.parametrize("has_middleware", [False, True])
def test_a_guard_that_asks_whether_the_client_is_there_takes_the_body_from_nobody(
    *, has_middleware: bool
) -> None:
    seen: list[bool] = []

    async def look_for_client(request: Request) -> None:
        seen.append(await request.is_disconnected())

    async def sent(request: Request) -> bytes:
        return await request.body()

    agent = AgentRouter(dependencies=[Depends(look_for_client)], timeout_seconds=5)

    @agent.tool(effect="read")
    async def look(body: Annotated[bytes, Depends(sent)]) -> int:
        return len(body)

    app = app_of(agent)

    if has_middleware:

        @app.middleware("http")
        async def pass_on(
            request: Request, call_next: Callable[[Request], Awaitable[Response]]
        ) -> Response:
            return await call_next(request)

    answer = post(TestClient(app), "look")

    assert answer.json().get("data") == len(answer.request.content)
    assert seen == [False]


async def test_nobody_reads_on_after_the_body_was_too_long() -> None:
    received: list[str] = []

    async def receive() -> Message:
        received.append("part")
        return {"type": "http.request", "body": b"12345678", "more_body": True}

    inbox = Inbox({"headers": []}, receive, 10)

    inbox.keep(await inbox.next_message())

    with pytest.raises(AgentError):
        inbox.keep(await inbox.next_message())

    assert (await inbox.receive())["body"] == b"12345678"

    with pytest.raises(AgentError):
        await inbox.receive()

    assert received == ["part", "part"]


@pytest.mark.spec("carmy/1 4.3")
async def test_a_guard_that_makes_its_own_error_of_a_stop_leaves_no_interruption_behind() -> None:
    is_waiting = anyio.Event()

    async def guard() -> None:
        is_waiting.set()

        try:
            await anyio.sleep_forever()
        except BaseException as error:
            raise HTTPException(503) from error

    agent = AgentRouter(dependencies=[Depends(guard)])

    @agent.tool(effect="none")
    async def work() -> None: ...

    app = app_of(agent)
    left: list[int] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)
        task = asyncio.current_task()
        assert task is not None
        left.append(task.cancelling())

    async with execute(host, "work") as exchange:
        with anyio.fail_after(5):
            await is_waiting.wait()
            await agent.aclose()
            await exchange.read()
            await exchange.finished.wait()

    assert exchange.status == 503
    assert left == [0]
