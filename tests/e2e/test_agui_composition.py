"""Agents among the other routes of an application: dependencies, guards, OpenAPI, mounts."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

import anyio
import httpx2
import pytest
from ag_ui import core
from fastapi import (
    APIRouter,
    BackgroundTasks,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Request,
    Response,
    Security,
)
from fastapi.security import HTTPBearer
from fastapi.testclient import TestClient
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.background import BackgroundTask
from starlette.routing import Mount
from starlette.types import ASGIApp

from fastapi_carmy import AgentRouter, Caller
from fastapi_carmy.agui import (
    AgUiInput,
    CancelToken,
    EventStreamResponse,
    FilterToolCalls,
    RefusedRequestError,
    RunContext,
    negotiate,
    read_run_input,
    refusal_response,
    run_events,
)
from fastapi_carmy.errors import ConfigurationError
from tests.support.agui import INPUT, app_with, body, chatty, events_in, texts_in, types_in
from tests.support.asgi import Exchange, connect

Ctx = RunContext[Any]


async def idle(run: Ctx) -> None:
    return None


async def post(
    app: ASGIApp, path: str, told: Mapping[str, Any] = INPUT, **options: Any
) -> httpx2.Response:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://testserver"
    ) as client:
        return await client.post(path, content=to_json(dict(told)), **options)


def application(router: APIRouter, **options: Any) -> FastAPI:
    app = FastAPI()
    app.include_router(router, **options)
    return app


async def test_the_decorator_mounts_an_agent_and_returns_it() -> None:
    router = AgentRouter()

    @router.agui("/chat", transformers=[lambda: FilterToolCalls.deny("internal_debug")])
    async def agent(run: Ctx) -> None:
        await chatty(run)

    response = await post(application(router), "/chat")

    assert callable(agent)
    assert "internal_debug" not in response.text
    assert types_in(response.text)[-1] == "RUN_FINISHED"


@pytest.mark.spec("ag-ui D.44")
@pytest.mark.spec("ag-ui D.45")
async def test_the_transformers_of_runs_do_not_meet() -> None:
    app = app_with(
        {"/agent": chatty}, transformers=[lambda: FilterToolCalls.deny("internal_debug")]
    )
    expected = [
        "RUN_STARTED",
        "STEP_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]

    for _ in range(2):
        assert types_in((await post(app, "/agent")).text) == expected

    answers: list[str] = []

    async def ask() -> None:
        answers.append((await post(app, "/agent")).text)

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(ask)

    assert [types_in(answer) for answer in answers] == [expected] * 16


@pytest.mark.spec("ag-ui D.43")
async def test_agents_live_beside_ordinary_routes() -> None:
    router = AgentRouter()
    router.add_agui_route("/agent", idle)
    router.add_agui_route("/second", idle)
    app = FastAPI()

    @app.get("/health")
    def health() -> str:
        return "ok"

    app.include_router(router)
    app.include_router(router, prefix="/v2")

    with TestClient(app) as client:
        for path in ("/agent", "/second", "/v2/agent", "/v2/second", "/agent/"):
            response = client.post(path, json=dict(INPUT))
            assert types_in(response.text)[-1] == "RUN_FINISHED", path
        assert client.get("/health").json() == "ok"
        assert client.get("/agent").status_code == 405


class Numbering:
    """Numbers the texts of one run."""

    def __init__(self) -> None:
        self.count = 0

    def transform(self, event: core.BaseEvent) -> list[core.BaseEvent]:
        if isinstance(event, core.TextMessageContentEvent):
            self.count += 1
            event = event.model_copy(update={"delta": f"[{self.count}]{event.delta}"})
        return [event]


async def asking_at_once(app: ASGIApp, clients: int) -> dict[int, str]:
    answers: dict[int, str] = {}

    async def ask(number: int) -> None:
        said = [{"id": "u", "role": "user", "content": f"question {number}"}]
        told = {**INPUT, "threadId": f"thread-{number}", "messages": said}
        answers[number] = (await post(app, "/agent", told)).text

    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(ask, number)

    return answers


@pytest.mark.spec("ag-ui D.46")
@pytest.mark.spec("ag-ui D.47")
async def test_concurrent_conversations_do_not_mix() -> None:
    everybody = anyio.Event()
    waiting = 0

    async def talker(run: Ctx) -> None:
        nonlocal waiting
        for reply in range(4):
            if reply == 2:
                waiting += 1
                if waiting == 8:
                    everybody.set()
                await everybody.wait()
            await run.say(f"{run.thread_id}/{run.run_id}#{reply}: {run.last_user_text}")
        await run.set_state({"thread": run.thread_id, "replies": 4})

    app = app_with({"/agent": talker}, transformers=[Numbering])

    with anyio.fail_after(20):
        answers = await asking_at_once(app, 8)

    for number, answer in answers.items():
        assert texts_in(answer) == [
            f"[{reply + 1}]thread-{number}/run-1#{reply}: question {number}" for reply in range(4)
        ]
        state = [e["snapshot"] for e in events_in(answer) if e["type"] == "STATE_SNAPSHOT"]
        assert state == [{"thread": f"thread-{number}", "replies": 4}]


# Dependencies.


async def test_dependencies_work_as_in_any_endpoint() -> None:
    opened: list[str] = []

    async def session(request: Request) -> AsyncIterator[str]:
        opened.append("open")
        try:
            yield f"session of {request.headers['x-user']}"
        except Exception:
            opened.append("roll back")
            raise
        else:
            opened.append("commit")

    async def agent(run: Ctx, session: Annotated[str, Depends(session)], fail: bool) -> None:
        await run.say(session)
        assert opened == ["open"]
        if fail:
            raise LookupError

    app = app_with({"/agent": agent})

    fine = await post(app, "/agent?fail=no", headers={"x-user": "anna"})
    assert texts_in(fine.text) == ["session of anna"]
    assert types_in(fine.text)[-1] == "RUN_FINISHED"
    assert opened == ["open", "commit"]

    opened.clear()
    wrong = await post(app, "/agent?fail=yes", headers={"x-user": "anna"})
    assert types_in(wrong.text)[-1] == "RUN_ERROR"
    assert opened == ["open", "roll back"]


async def test_parameters_come_from_the_request() -> None:
    async def agent(
        run: Ctx, tenant: str, x_trace: Annotated[str, Header()], request: Request, limit: int = 3
    ) -> list[object]:
        return [tenant, x_trace, request.method, limit]

    app = app_with({"/{tenant}/agent": agent})
    headers = {"x-trace": "t1"}

    fine = await post(app, "/acme/agent?limit=4", headers=headers)
    refused = await post(app, "/acme/agent?limit=many", headers=headers)

    assert events_in(fine.text)[-1]["result"] == ["acme", "t1", "POST", 4]
    assert refused.status_code == 400
    assert refused.json()["code"] == "INVALID_REQUEST"
    assert "query.limit" in refused.json()["message"]
    assert "many" not in refused.json()["message"]


async def test_background_tasks_run_after_a_success() -> None:
    done: list[str] = []

    async def agent(run: Ctx, tasks: BackgroundTasks, fail: bool) -> None:
        tasks.add_task(done.append, "background")
        if fail:
            raise LookupError

    app = app_with({"/agent": agent})

    await post(app, "/agent?fail=yes")
    assert done == []
    await post(app, "/agent?fail=no")
    assert done == ["background"]


async def test_what_dependencies_set_on_the_response_goes_out() -> None:
    async def greet(response: Response) -> None:
        response.set_cookie("seen", "yes")
        response.headers["cache-control"] = "public"

    async def agent(run: Ctx, greeted: Annotated[None, Depends(greet)]) -> None:
        return None

    answer = await post(app_with({"/agent": agent}), "/agent")

    assert answer.cookies["seen"] == "yes"
    assert answer.headers["cache-control"] == "no-cache, no-store, no-transform"


async def test_a_commit_that_fails_is_an_error_at_the_end() -> None:
    async def session() -> AsyncIterator[None]:
        yield
        raise LookupError("commit")

    async def agent(run: Ctx, session: Annotated[None, Depends(session)]) -> None:
        await run.say("Done.")

    answer = await post(app_with({"/agent": agent}), "/agent")

    assert types_in(answer.text)[-1] == "RUN_ERROR"


async def test_a_dependency_that_refuses_answers_with_its_status() -> None:
    entered = False

    async def who() -> str:
        raise HTTPException(403, "not you")

    async def agent(run: Ctx, who: Annotated[str, Depends(who)]) -> None:
        nonlocal entered
        entered = True

    answer = await post(app_with({"/agent": agent}), "/agent")

    assert answer.status_code == 403
    assert answer.json() == {"code": "FORBIDDEN", "message": "not you"}
    assert answer.headers["vary"] == "accept"
    assert not entered


async def test_a_dependency_that_fails_is_a_500_without_its_text() -> None:
    async def who() -> str:
        raise LookupError("secret")

    async def agent(run: Ctx, who: Annotated[str, Depends(who)]) -> None:
        return None

    answer = await post(app_with({"/agent": agent}), "/agent")

    assert answer.status_code == 500
    assert set(answer.json()) == {"code", "message"}
    assert "secret" not in answer.text


@pytest.mark.spec("ag-ui D.48")
@pytest.mark.parametrize("place", ["route", "router", "include", "application", "security"])
async def test_a_guard_refuses_before_the_body_is_read(place: str) -> None:
    closed: list[str] = []

    async def guard(authorization: Annotated[str | None, Header()] = None) -> AsyncIterator[str]:
        if authorization is None:
            raise HTTPException(401, "Who are you?", headers={"www-authenticate": "Bearer"})
        yield authorization
        closed.append(authorization)

    async def agent(run: Ctx) -> None:
        await run.say("hi")

    async def knowing(run: Ctx, user: Annotated[str, Security(guard, scopes=["chat"])]) -> None:
        await run.say(user)

    depends = [Depends(guard)]
    router = AgentRouter(dependencies=depends if place == "router" else None)
    router.add_agui_route(
        "/agent",
        knowing if place == "security" else agent,
        dependencies=depends if place == "route" else None,
    )
    app = FastAPI(dependencies=depends if place == "application" else None)
    app.include_router(router, dependencies=depends if place == "include" else None)

    async with connect(
        app, "/agent", method="POST", body=[b"{"] * 100, headers={"accept": "nonsense"}
    ) as exchange:
        await exchange.started()
        refusal = await exchange.json()
    admitted = await post(app, "/agent", headers={"authorization": "anna"})

    assert exchange.status == 401
    assert exchange.headers["www-authenticate"] == "Bearer"
    assert exchange.headers["vary"] == "accept"
    assert refusal == {"code": "UNAUTHENTICATED", "message": "Who are you?"}
    assert exchange.body_messages_read == 0
    assert texts_in(admitted.text) == ["anna" if place == "security" else "hi"]
    assert closed == ["anna"]


async def test_overrides_reach_guards_and_dependencies() -> None:
    async def guard() -> None:
        raise HTTPException(401)

    async def name() -> str:
        return "real"

    async def agent(run: Ctx, name: Annotated[str, Depends(name)]) -> str:
        return name

    app = app_with({"/agent": agent}, dependencies=[Depends(guard)])
    app.dependency_overrides = {guard: lambda: None, name: lambda: "stand-in"}

    answer = await post(app, "/agent")

    assert events_in(answer.text)[-1]["result"] == "stand-in"


async def test_the_caller_is_asked_and_at_hand() -> None:
    async def caller(x_user: Annotated[str, Header()]) -> Caller:
        if x_user == "nobody":
            raise HTTPException(401)
        return Caller(principal=x_user)

    async def agent(run: Ctx, caller: Caller) -> str | None:
        return caller.principal

    router = AgentRouter(caller=caller)
    router.add_agui_route("/agent", agent, capabilities=True)
    app = application(router)

    answer = await post(app, "/agent", headers={"x-user": "anna"})

    assert events_in(answer.text)[-1]["result"] == "anna"
    assert (await post(app, "/agent", headers={"x-user": "nobody"})).status_code == 401
    with TestClient(app) as client:
        assert client.get("/agent/capabilities", headers={"x-user": "anna"}).status_code == 200
        assert client.get("/agent/capabilities", headers={"x-user": "nobody"}).status_code == 401


def test_an_agent_can_not_take_the_body() -> None:
    class Order(BaseModel):
        sku: str

    async def agent(run: Ctx, order: Order) -> None:
        return None

    def takes_order(order: Order) -> Order:
        return order

    async def indirect(run: Ctx, order: Annotated[Order, Depends(takes_order)]) -> None:
        return None

    async def starred(run: Ctx, **more: str) -> None:
        return None

    for wrong in (agent, indirect, starred):
        with pytest.raises(ConfigurationError):
            app_with({"/agent": wrong})


@pytest.mark.spec("ag-ui D.50")
def test_what_is_no_agent_is_refused_while_mounting() -> None:
    def plain(run: Ctx) -> None:
        return None

    with pytest.raises(TypeError, match="async function"):
        app_with({"/agent": plain})
    with pytest.raises(TypeError, match="factory"):
        app_with({"/agent": idle}, transformers=[FilterToolCalls.deny("x")])


@pytest.mark.parametrize(
    "options",
    [{"keep_alive_seconds": 0}, {"timeout_seconds": -1}, {"disconnect_grace_seconds": -1}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        app_with({"/agent": idle}, **options)


@pytest.mark.spec("ag-ui D.48")
def test_the_route_is_documented() -> None:
    async def agent(
        run: Ctx,
        user: Annotated[object, Security(HTTPBearer())],
        limit: int = 3,
    ) -> None:
        """Help with orders.

        Args:
            run: The run.
        """

    router = AgentRouter()
    router.add_agui_route("/agent", agent, tags=["chat"], operation_id="ask", name="clerk")
    router.add_agui_route("/hidden", idle, include_in_schema=False)
    document = application(router).openapi()

    operation = document["paths"]["/agent"]["post"]
    assert "/hidden" not in document["paths"]
    assert operation["tags"] == ["chat"]
    assert operation["operationId"] == "ask"
    assert operation["description"] == "Help with orders."
    assert [one["name"] for one in operation["parameters"]] == ["limit"]
    assert operation["security"] == [{"HTTPBearer": []}]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["threadId", "runId", "messages"]
    assert set(operation["responses"]) == {"200", "400", "406", "413", "415", "default"}
    assert list(operation["responses"]["200"]["content"]) == ["text/event-stream"]
    assert "$ref" not in str(operation["requestBody"])


@pytest.mark.spec("ag-ui D.52")
def test_capabilities_are_told_on_request_behind_the_same_guards() -> None:
    def guard(authorization: Annotated[str | None, Header()] = None) -> None:
        if authorization is None:
            raise HTTPException(401, "Who?")

    async def agent(run: Ctx, user: Annotated[None, Security(guard)], limit: int) -> None:
        """Help with orders."""

    router = AgentRouter()
    router.add_agui_route("/on", agent, capabilities=True)
    router.add_agui_route("/off", idle)
    router.add_agui_route(
        "/own",
        idle,
        capabilities=core.AgentCapabilities(custom={"a": 1}),
        include_in_schema=False,
    )

    with TestClient(application(router)) as client:
        assert client.get("/off/capabilities").status_code == 404
        assert client.get("/on/capabilities").json() == {
            "code": "UNAUTHENTICATED",
            "message": "Who?",
        }
        told = client.get("/on/capabilities", headers={"authorization": "x"})
        assert client.get("/own/capabilities").json() == {"custom": {"a": 1}}
        assert client.post("/own/capabilities").status_code == 405

    assert told.status_code == 200
    assert told.headers["content-type"] == "application/json"
    assert "null" not in told.text
    assert told.json()["identity"] == {"name": "agent", "description": "Help with orders."}
    assert told.json()["transport"]["httpBinary"] is False


@pytest.mark.spec("ag-ui D.48")
async def test_an_agent_works_wherever_its_router_is_put() -> None:
    def router() -> AgentRouter:
        made = AgentRouter()
        made.add_agui_route("/agent", chatty)
        return made

    parent = AgentRouter()
    parent.include_router(router(), prefix="/child")
    plain = APIRouter(prefix="/plain")
    plain.include_router(router())
    app = FastAPI()
    app.include_router(parent)
    app.include_router(plain)
    app.router.routes.append(Mount("/mounted", application(router())))

    for path in ("/child/agent", "/plain/agent", "/mounted/agent"):
        answer = await post(app, path)
        assert types_in(answer.text)[-1] == "RUN_FINISHED", path


# By hand.


async def test_an_endpoint_by_hand_reads_the_input_and_answers_with_events() -> None:
    app = FastAPI()
    saw: list[str] = []

    async def agent(run: Ctx) -> None:
        await run.say(f"Hello {run.last_user_text}")

    @app.post("/tenants/{tenant}/chat")
    async def chat(tenant: str, run_input: AgUiInput, request: Request) -> Response:
        saw.append(tenant)
        negotiate(request.headers.get("accept"))
        token = CancelToken()
        return EventStreamResponse(
            run_events(agent, run_input, token=token), token=token, headers={"x-tenant": tenant}
        )

    answer = await post(app, "/tenants/acme/chat")
    refused = await post(app, "/tenants/acme/chat", {})

    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-tenant"] == "acme"
    assert types_in(answer.text)[-1] == "RUN_FINISHED"
    assert saw == ["acme"]
    assert refused.status_code == 400
    assert refused.json()["detail"]["code"] == "INVALID_INPUT"


async def test_a_refusal_by_hand_has_the_agents_form() -> None:
    app = FastAPI()

    @app.post("/chat")
    async def chat(request: Request) -> Response:
        try:
            run_input = await read_run_input(request, max_body_bytes=500)
            negotiate(request.headers.get("accept"))
        except RefusedRequestError as error:
            return refusal_response(error)
        return EventStreamResponse(run_events(idle, run_input))

    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://testserver"
    ) as client:
        for content, headers, status, code in (
            (b"", {}, 400, "INVALID_INPUT"),
            (b"x" * 1000, {}, 413, "INVALID_BODY"),
            (body(), {"content-type": "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
            (body(), {"accept": "application/xml"}, 406, "NOT_ACCEPTABLE"),
        ):
            answer = await client.post("/chat", content=content, headers=headers)
            assert answer.status_code == status
            assert answer.json()["code"] == code
            assert answer.headers["vary"] == "accept"


async def test_a_body_that_somebody_else_has_read_is_read_again() -> None:
    app = FastAPI()
    seen: list[bytes] = []

    async def signed(request: Request) -> None:
        seen.append(await request.body())

    @app.post("/chat")
    async def chat(signature: Annotated[None, Depends(signed)], run_input: AgUiInput) -> str:
        return run_input.run_id

    async def agent(run: Ctx) -> str:
        return run.run_id

    by_hand = await post(app, "/chat")
    mounted = await post(app_with({"/agent": agent}, dependencies=[Depends(signed)]), "/agent")

    assert by_hand.json() == "run-1"
    assert events_in(mounted.text)[-1]["result"] == "run-1"
    assert len(seen) == 2


async def test_a_guard_gets_no_further_than_the_limit() -> None:
    async def signed(request: Request) -> None:
        await request.body()

    app = app_with({"/agent": idle}, dependencies=[Depends(signed)], max_body_bytes=10)

    answer = await post(app, "/agent")

    assert answer.status_code == 413
    assert answer.json()["code"] == "INVALID_BODY"


async def test_a_body_that_does_not_come_to_its_end_is_refused() -> None:
    app = FastAPI()
    refused = anyio.Event()

    @app.post("/chat")
    async def chat(request: Request) -> Response:
        with pytest.raises(RefusedRequestError) as caught:
            await read_run_input(request)
        assert caught.value.code == "INVALID_BODY"
        refused.set()
        return refusal_response(caught.value)

    def body_that_ends_early() -> Iterator[bytes]:
        yield b"{"
        exchanges[0].hang_up()
        yield b""

    exchanges: list[Exchange] = []
    with anyio.fail_after(5):
        async with connect(app, "/chat", method="POST", body=body_that_ends_early()) as exchange:
            exchanges.append(exchange)
            await refused.wait()


@pytest.mark.parametrize("path", ["/agent", "/by-hand"])
async def test_a_request_that_is_cut_stops_its_run(path: str) -> None:
    tokens: list[CancelToken] = []
    stopped = anyio.Event()

    async def agent(run: Ctx) -> None:
        tokens.append(run.cancel_token)
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    app = app_with({"/agent": agent}, disconnect_grace_seconds=0)

    @app.post("/by-hand")
    async def by_hand(run_input: AgUiInput) -> Response:
        token = CancelToken()
        events = run_events(agent, run_input, token=token)
        return EventStreamResponse(events, token=token, disconnect_grace_seconds=0)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, app, path)
            while not tokens:  # noqa: ASYNC110 - The agent may not be entered yet.
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        await stopped.wait()

    assert tokens[0].is_cancelled


async def test_a_request_that_is_cut_before_its_run_stops_its_guards() -> None:
    entered, left = anyio.Event(), anyio.Event()

    async def guard() -> None:
        entered.set()
        try:
            await anyio.sleep_forever()
        finally:
            left.set()

    app = app_with({"/agent": idle}, dependencies=[Depends(guard)])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, app, "/agent")
            await entered.wait()
            tasks.cancel_scope.cancel()
        await left.wait()


async def test_events_by_hand_that_break_end_in_an_error() -> None:
    app = FastAPI()

    async def events(broken: str) -> AsyncIterator[core.BaseEvent]:
        yield core.RunStartedEvent(thread_id="t", run_id="r")
        if broken == "value":
            yield core.CustomEvent(name="x", value=object())
        raise LookupError("secret")

    @app.post("/{broken}")
    async def chat(broken: str) -> Response:
        return EventStreamResponse(events(broken))

    for broken, code in (("value", "SERIALIZATION"), ("raises", "AGENT_ERROR")):
        answer = await post(app, f"/{broken}")
        assert types_in(answer.text) == ["RUN_STARTED", "RUN_ERROR"]
        assert events_in(answer.text)[-1]["code"] == code
        assert "secret" not in answer.text


async def test_leaving_a_stream_by_hand_trips_its_token_and_closes_its_events() -> None:
    token = CancelToken()
    saw: list[bool] = []
    done = anyio.Event()
    app = FastAPI()

    async def events() -> AsyncIterator[core.BaseEvent]:
        try:
            yield core.RunStartedEvent(thread_id="t", run_id="r")
            await anyio.sleep_forever()
        finally:
            await anyio.sleep(0.01)
            saw.append(token.is_cancelled)
            done.set()

    @app.post("/chat")
    async def chat() -> Response:
        return EventStreamResponse(events(), token=token, disconnect_grace_seconds=0.01)

    with anyio.fail_after(5):
        async with connect(app, "/chat", method="POST", body=body()) as exchange:
            assert b"RUN_STARTED" in await exchange.chunk()
        await done.wait()

    assert saw == [True]


async def test_events_by_hand_that_ignore_everything_do_not_hold_the_request() -> None:
    may_end = anyio.Event()
    app = FastAPI()

    async def events() -> AsyncIterator[core.BaseEvent]:
        yield core.RunStartedEvent(thread_id="t", run_id="r")
        while not may_end.is_set():
            with suppress(anyio.get_cancelled_exc_class()):
                await may_end.wait()

    @app.post("/chat")
    async def chat() -> Response:
        return EventStreamResponse(events(), disconnect_grace_seconds=0.01)

    with anyio.fail_after(10):
        async with connect(app, "/chat", method="POST", body=body()) as exchange:
            await exchange.chunk()
            exchange.hang_up()
            await exchange.finished.wait()
            may_end.set()


async def test_background_tasks_of_a_stream_by_hand_run_at_its_end() -> None:
    done: list[str] = []
    app = FastAPI()

    @app.post("/chat")
    async def chat(run_input: AgUiInput) -> Response:
        return EventStreamResponse(
            run_events(idle, run_input), background=BackgroundTask(done.append, "done")
        )

    await post(app, "/chat")

    assert done == ["done"]


async def test_a_stream_by_hand_can_be_stopped_by_its_token() -> None:
    token = CancelToken()
    app = FastAPI()

    async def agent(run: Ctx) -> None:
        token.cancel()
        await run.cancelled()

    @app.post("/chat")
    async def chat(run_input: AgUiInput) -> Response:
        return EventStreamResponse(run_events(agent, run_input, token=token), token=token)

    with anyio.fail_after(5):
        answer = await post(app, "/chat")

    assert events_in(answer.text)[-1]["outcome"] == {"type": "cancelled"}
