import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Annotated, Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from fastapi import (
    APIRouter,
    BackgroundTasks,
    Body,
    Cookie,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Query,
    Request,
    Response,
    Security,
)
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import OAuth2PasswordBearer, SecurityScopes
from fastapi.testclient import TestClient
from pydantic import BaseModel

from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Interrupted, start_task
from fastapi_carmy.context import AgentContext
from fastapi_carmy.errors import AgentError, ConfigurationError, HostError, ToolError
from fastapi_carmy.injection import (
    CurrentCaller,
    CurrentContext,
    Guards,
    HostOpened,
    check_route,
    dependant_of,
    make_tool,
    needs_request,
    to_agent_error,
    with_guards,
    with_overrides,
)
from fastapi_carmy.injection.plan import Plan
from fastapi_carmy.signature import read_parameters
from fastapi_carmy.threads import LoopLimiter
from fastapi_carmy.tool import Tool
from tests.support.tools import call, context_of, names_of, opened_on, scope_of, validate

Function = Callable[..., Any]


def tool_of(function: Function, **options: Any) -> Tool:
    return make_tool(function, effect="none", **options)


def arguments_of(tool: Tool) -> list[str]:
    return list(names_of(tool.spec.input_schema))


def guards_on(app: FastAPI, path: str = "/x") -> Guards:
    """What a route of `app` depends on, as FastAPI would hand it over."""
    (route,) = [route for route in app.routes if isinstance(route, APIRoute) and route.path == path]
    return Guards(dependant_of(route, {}))


# ---- what is injected, and what is an argument


class Item(BaseModel):
    sku: str


async def everything(  # noqa: PLR0917
    n: int,
    request: Request,
    response: Response,
    tasks: BackgroundTasks,
    x_key: Annotated[str, Header()],
    session: Annotated[str, Cookie()],
    context: AgentContext,
    caller: Caller,
    current: CurrentContext,
    who: CurrentCaller,
) -> Any:
    return context, caller, current, who, x_key, session


async def test_what_is_injected_is_no_argument() -> None:
    tool = tool_of(everything)
    opened = opened_on(scope_of({"x-key": "k", "cookie": "session=s"}))
    me = Caller("me")

    context, caller, current, who, x_key, session = await call(
        tool, {"n": 1}, opened=opened, caller=me
    )

    assert arguments_of(tool) == ["n"]
    assert isinstance(context, AgentContext)
    assert current is context
    assert caller is me
    assert who is me
    assert (x_key, session) == ("k", "s")
    assert tool.context_parameters == ("context", "current")
    assert tool.caller_parameters == ("caller", "who")


def test_the_executions_own_objects_need_no_dependencies() -> None:
    async def plain(n: int, context: AgentContext, caller: Caller) -> None: ...

    tool = tool_of(plain)

    assert not tool.has_dependencies
    assert not tool.has_guards


async def maybe_context(context: AgentContext | None = None) -> None: ...
async def maybe_caller(caller: Caller | None = None) -> None: ...
async def many_callers(callers: list[Caller]) -> None: ...
async def built_caller(caller: Annotated[Caller, Depends()]) -> None: ...
async def built_by_name(caller: Annotated[Any, Depends(Caller)]) -> None: ...
async def query_caller(caller: Annotated[Caller, Query()]) -> None: ...
async def maybe_request(request: Request | None = None) -> None: ...
async def hidden(x: Annotated[str, Depends(lambda: "")] | None = None) -> None: ...
async def hidden_header(x: list[Annotated[str, Header()]]) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        maybe_context,
        maybe_caller,
        many_callers,
        built_caller,
        built_by_name,
        query_caller,
        maybe_request,
        hidden,
        hidden_header,
    ],
)
def test_nothing_that_is_trusted_can_come_from_the_arguments(function: Function) -> None:
    with pytest.raises(ToolError):
        tool_of(function)


@pytest.mark.parametrize(
    ("kind", "alias"), [(Caller, "CurrentCaller"), (AgentContext, "CurrentContext")]
)
@pytest.mark.parametrize("side", [Depends, Security])
def test_a_bare_class_in_a_dependency_is_told_its_alias(
    kind: type, alias: str, side: Function
) -> None:
    def dependency(value: Any) -> None: ...

    dependency.__annotations__["value"] = kind

    async def tool(x: Annotated[None, side(dependency)]) -> None: ...

    tool.__annotations__["x"] = Annotated[None, side(dependency)]

    with pytest.raises(ToolError, match=alias):
        tool_of(tool)


async def test_dependencies_see_the_context_and_the_caller() -> None:
    async def service(context: CurrentContext) -> str:
        return context.execution_id

    async def tool(id_: Annotated[str, Depends(service)]) -> Any:
        return id_

    assert await call(tool_of(tool), {}) == "exec_1"


# ---- two sides


async def test_security_runs_with_the_guards_and_once() -> None:
    seen: list[str] = []

    def user(scopes: SecurityScopes) -> str:
        seen.append(f"user {scopes.scope_str}")
        return "ada"

    def account(user: Annotated[str, Security(user, scopes=["a"])]) -> str:
        seen.append("account")
        return f"{user}'s account"

    async def tool(account: Annotated[str, Depends(account)], n: int) -> Any:
        return account

    made = tool_of(tool)
    opened = opened_on(scope_of())
    await opened.guards(made, partial(context_of, made))

    assert made.has_guards
    assert seen == ["user a"]

    values = await opened.dependencies(made, partial(context_of, made), {"n": 1})
    await opened.aclose(None)

    assert seen == ["user a", "account"]
    assert values == {"account": "ada's account"}


async def test_a_nested_security_never_takes_the_place_of_a_parameter() -> None:
    def outer() -> str:
        return "outer"

    def inner() -> str:
        return "inner"

    def service(user: Annotated[str, Security(inner)]) -> str:
        return user

    async def tool(
        user: Annotated[str, Security(outer)], service: Annotated[str, Depends(service)]
    ) -> Any:
        return user, service

    assert await call(tool_of(tool), {}) == ("outer", "inner")


async def test_guards_take_scalars_from_path_and_query_and_tools_from_arguments() -> None:
    def tenant(tenant: str, region: str = "eu") -> str:
        return f"{tenant} {region}"

    def page(limit: int = 10) -> int:
        return limit

    async def tool(
        tenant: Annotated[str, Security(tenant)], page: Annotated[int, Depends(page)]
    ) -> Any:
        return tenant, page

    made = tool_of(tool)
    scope = scope_of(query="tenant=evil&region=us&limit=99", path_params={"tenant": "good"})

    assert arguments_of(made) == ["limit"]
    assert await call(made, {"limit": 3}, opened=opened_on(scope)) == ("good us", 3)


def test_a_dependency_with_scalars_on_both_sides_stops_the_start() -> None:
    def page(limit: int = 10) -> int:
        return limit

    async def tool(page: Annotated[int, Depends(page)]) -> None: ...

    with pytest.raises(ToolError) as caught:
        tool_of(tool, dependencies=[Depends(page)])

    assert caught.value.parameter == "limit"

    with pytest.raises(ToolError):
        with_guards(tool_of(tool), [Depends(page)])


def test_a_router_guard_with_scalars_can_be_no_dependency_of_a_tool() -> None:
    def page(limit: int = 10) -> int:
        return limit

    async def tool(page: Annotated[int, Depends(page)]) -> None: ...

    app = FastAPI(dependencies=[Depends(page)])
    app.get("/x")(lambda: None)

    with pytest.raises(ToolError):
        check_route(guards_on(app).dependant, [tool_of(tool)])

    check_route(guards_on(app).dependant)


def test_a_router_guard_is_told_the_alias_too() -> None:
    def guard(caller: Caller) -> None: ...

    app = FastAPI(dependencies=[Depends(guard)])
    app.post("/x")(lambda: None)

    with pytest.raises(ConfigurationError, match="CurrentCaller"):
        check_route(guards_on(app).dependant)


def body_guard(item: Item) -> None: ...
def marked_guard(n: Annotated[int, Body()]) -> None: ...


@pytest.mark.parametrize("guard", [body_guard, marked_guard])
def test_a_guard_takes_no_body(guard: Function) -> None:
    async def tool() -> None: ...

    with pytest.raises(ToolError):
        tool_of(tool, dependencies=[Depends(guard)])

    app = FastAPI(dependencies=[Depends(guard)])
    app.post("/x")(lambda: None)

    with pytest.raises(ConfigurationError):
        check_route(guards_on(app).dependant)


def test_a_dependency_asked_for_twice_has_its_arguments_once() -> None:
    def page(limit: int = 10) -> int:
        """Page.

        Args:
            limit: How many.
        """
        return limit

    def first(page: Annotated[int, Depends(page)]) -> int:
        return page

    def second(page: Annotated[int, Depends(page)]) -> int:
        return page

    async def tool(a: Annotated[int, Depends(first)], b: Annotated[int, Depends(second)]) -> None:
        pass

    schema: Any = tool_of(tool).spec.input_schema

    assert schema["properties"] == {
        "limit": {"type": "integer", "default": 10, "description": "How many."}
    }


async def test_one_name_behind_two_aliases_is_two_arguments() -> None:
    def first(page: Annotated[int, Query(alias="first_page")] = 1) -> int:
        return page

    def second(page: Annotated[int, Query(alias="second_page")] = 1) -> int:
        return page

    async def tool(
        page: int, a: Annotated[int, Depends(first)], b: Annotated[int, Depends(second)]
    ) -> Any:
        return page, a, b

    made = tool_of(tool)

    assert arguments_of(made) == ["page", "first_page", "second_page"]
    assert await call(made, {"page": 1, "first_page": 2, "second_page": 3}) == (1, 2, 3)


def test_a_dependency_of_the_request_can_not_use_one_of_the_function() -> None:
    async def short() -> AsyncIterator[int]:
        yield 1

    async def long(n: Annotated[int, Depends(short, scope="function")]) -> AsyncIterator[int]:
        yield n

    async def tool(n: Annotated[int, Depends(long)]) -> None: ...

    with pytest.raises(ToolError):
        tool_of(tool)


async def test_more_guards_run_before_the_tools_own() -> None:
    seen: list[str] = []

    async def tool() -> Any:
        return list(seen)

    made = tool_of(tool, dependencies=[Depends(lambda: seen.append("own"))])
    guarded = with_guards(made, [Depends(lambda: seen.append("added"))])

    assert with_guards(made, []) is made
    assert await call(guarded, {}) == ["added", "own"]


# ---- one execution


async def test_router_tool_and_dependencies_share_what_they_depend_on() -> None:
    seen: list[str] = []

    def user() -> str:
        seen.append("user")
        return "ada"

    async def tool(user: Annotated[str, Depends(user)]) -> Any:
        return user

    app = FastAPI(dependencies=[Depends(user)])
    app.get("/x")(lambda: None)
    opened = opened_on(scope_of(), guards_on(app))
    await opened.router_guards()

    assert await call(tool_of(tool, dependencies=[Depends(user)]), {}, opened=opened) == "ada"
    assert seen == ["user"]


async def test_the_scope_stays_as_it_was() -> None:
    async def opened_value() -> AsyncIterator[int]:
        yield 1

    async def tool(n: Annotated[int, Depends(opened_value)]) -> Any:
        return n

    scope = scope_of()
    before = dict(scope)

    assert await call(tool_of(tool), {}, opened=opened_on(scope)) == 1
    assert scope == before


async def test_nothing_is_open_until_something_is_solved() -> None:
    async def plain(n: int) -> Any:
        return n

    async def tool(request: Request) -> Any:
        return request.method

    for function, is_open in ((plain, False), (tool, True)):
        made = tool_of(function)
        opened = opened_on(scope_of())
        assert await opened.router_guards() is None
        await opened.guards(made, partial(context_of, made))
        await opened.dependencies(made, partial(context_of, made), {})

        assert opened.is_open is is_open

        await opened.aclose(None)
        assert not opened.is_open


class Log:
    """Yield dependencies that tell what they saw."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def session(
        self, name: str, *, swallows: bool = False, fails: bool = False
    ) -> Callable[[], AsyncIterator[str]]:
        async def session() -> AsyncIterator[str]:
            try:
                yield name
            except BaseException as error:
                self.seen.append(f"{name} rolls back: {error}")

                if not swallows:
                    raise
            else:
                self.seen.append(f"{name} commits")

                if fails:
                    raise RuntimeError(f"{name} failed")

        return session

    def sync_session(self, name: str) -> Callable[[], Iterator[str]]:
        def session() -> Iterator[str]:
            try:
                yield name
            except BaseException as error:
                self.seen.append(f"{name} rolls back: {error}")
                raise
            else:
                self.seen.append(f"{name} commits")

        return session


async def test_dependencies_close_in_reverse_and_the_guards_last() -> None:
    log = Log()
    first, short, sync = log.session("first"), log.session("short"), log.sync_session("sync")

    async def tool(
        a: Annotated[str, Depends(first)],
        b: Annotated[str, Depends(short, scope="function")],
        c: Annotated[str, Depends(sync)],
    ) -> None: ...

    await call(tool_of(tool, dependencies=[Depends(log.session("guard"))]), {})

    assert log.seen == ["short commits", "sync commits", "first commits", "guard commits"]


async def test_every_dependency_sees_the_failure_even_if_one_swallows_it() -> None:
    log = Log()
    first, swallows = log.session("first"), log.session("swallows", swallows=True)
    short = log.session("short", swallows=True)

    async def tool(
        a: Annotated[str, Depends(first)],
        b: Annotated[str, Depends(swallows)],
        c: Annotated[str, Depends(short, scope="function")],
    ) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await call(tool_of(tool, dependencies=[Depends(log.session("guard"))]), {})

    assert log.seen == [
        "short rolls back: no",
        "swallows rolls back: no",
        "first rolls back: no",
        "guard rolls back: no",
    ]


async def test_a_commit_that_fails_is_seen_by_those_below_and_raised() -> None:
    log = Log()
    fails = log.session("inner", fails=True)

    async def tool(a: Annotated[str, Depends(fails)]) -> None: ...

    with pytest.raises(RuntimeError, match="inner failed"):
        await call(tool_of(tool, dependencies=[Depends(log.session("guard"))]), {})

    assert log.seen == ["inner commits", "guard rolls back: inner failed"]


async def test_what_a_thread_opens_during_an_interruption_is_closed_again() -> None:
    log = Log()
    opening, may_open = anyio.Event(), threading.Event()
    loop_token = anyio.lowlevel.current_token()

    def session() -> Iterator[str]:
        anyio.from_thread.run_sync(opening.set, token=loop_token)
        may_open.wait(5)

        try:
            yield "open"
        except BaseException as error:
            log.seen.append(type(error).__name__)
            raise

    async def tool(a: Annotated[str, Depends(session)]) -> None: ...

    made = tool_of(tool, limiter=LoopLimiter(1))
    opened = opened_on(scope_of())
    task = start_task(opened.dependencies(made, partial(context_of, made), {}))

    with anyio.fail_after(5):
        await opening.wait()
        task.cancel()
        await anyio.lowlevel.checkpoint()
        may_open.set()

        with pytest.raises(Interrupted):
            await task

    assert log.seen == ["AgentError"]


@pytest.mark.parametrize("error", [ValueError("no"), Interrupted("no")])
async def test_a_sync_dependency_sees_every_kind_of_failure(error: BaseException) -> None:
    log = Log()

    async def tool(a: Annotated[str, Depends(log.sync_session("sync"))]) -> None: ...

    made = tool_of(tool, limiter=LoopLimiter(1))
    opened = opened_on(scope_of())
    await opened.dependencies(made, partial(context_of, made), {})
    await opened.aclose(error)

    assert log.seen == ["sync rolls back: no"]


async def test_a_dependency_can_set_headers_and_ask_for_tasks() -> None:
    done: list[str] = []

    def guard(response: Response) -> None:
        response.headers["x-guard"] = "g"

    def service(response: Response, tasks: BackgroundTasks) -> None:
        response.set_cookie("a", "b")
        tasks.add_task(done.append, "service")

    async def tool(service: Annotated[None, Depends(service)], tasks: BackgroundTasks) -> None:
        tasks.add_task(done.append, "tool")

    opened = opened_on(scope_of())
    await call(tool_of(tool, dependencies=[Depends(guard)]), {}, opened=opened)

    assert opened.background is not None
    await opened.background()
    assert done == ["service", "tool"]
    assert [name for name, _ in opened.headers] == [b"x-guard", b"set-cookie"]


async def test_a_wrong_header_is_refused_without_being_told_back() -> None:
    def guard(x_count: Annotated[int, Header()]) -> None: ...

    async def tool() -> None: ...

    opened = opened_on(scope_of({"x-count": "s3cret"}))

    with pytest.raises(RequestValidationError) as caught:
        await call(tool_of(tool, dependencies=[Depends(guard)]), {}, opened=opened)

    await opened.aclose(caught.value)
    error = to_agent_error(caught.value)

    assert error is not None
    assert error.code == "INVALID_REQUEST"
    assert error.recoverable
    assert error.details == {
        "reason": "header.x-count is not valid",
        "errors": [
            {
                "path": "header.x-count",
                "message": "Input should be a valid integer, unable to parse string as an integer",
                "type": "int_parsing",
            }
        ],
    }


# ---- overrides


async def test_overrides_reach_guards_security_and_nested_dependencies() -> None:
    def user() -> str:
        return "ada"

    def inner(limit: int = 1) -> int:
        return limit

    def outer(inner: Annotated[int, Depends(inner)]) -> int:
        return inner

    async def tool(
        user: Annotated[str, Security(user)], outer: Annotated[int, Depends(outer)]
    ) -> Any:
        return user, outer

    made = tool_of(tool)

    def replaced(size: int) -> int:
        return size * 10

    overridden = with_overrides(made, {user: lambda: "bob", inner: replaced})

    assert await call(overridden, {"size": 2}) == ("bob", 20)
    assert arguments_of(overridden) == ["limit"]
    assert await call(made, {"limit": 5}) == ("ada", 5)


def test_an_overridden_tool_is_made_once() -> None:
    def user() -> str:
        return "ada"

    def other() -> str:
        return "bob"

    async def tool(user: Annotated[str, Depends(user)]) -> None: ...

    made = tool_of(tool)

    assert with_overrides(made, {}) is made
    assert with_overrides(made, {other: user}) is made
    assert with_overrides(made, {user: other}) is with_overrides(made, {user: other})

    first = with_overrides(made, {user: other})

    for _ in range(20):
        with_overrides(made, {user: lambda: "x"})

    assert with_overrides(made, {user: other}) is not first


async def test_an_override_runs_once_for_router_and_tool() -> None:
    seen: list[str] = []

    def user() -> str:
        raise AssertionError

    def other() -> str:
        seen.append("other")
        return "bob"

    async def tool(user: Annotated[str, Depends(user)]) -> Any:
        return user

    app = FastAPI(dependencies=[Depends(user)])
    app.get("/x")(lambda: None)
    app.dependency_overrides[user] = other
    opened = opened_on(scope_of(app=app), guards_on(app))
    await opened.router_guards()

    made = with_overrides(tool_of(tool), opened.overrides)

    assert await call(made, {}, opened=opened) == "bob"
    assert seen == ["other"]


# ---- who calls


def app_with_caller(caller: Function, *guards: Function) -> FastAPI:
    app = FastAPI(dependencies=[Depends(guard) for guard in guards])

    @app.get("/x")
    def endpoint(caller: Annotated[Any, Depends(caller)]) -> None: ...

    return app


async def test_the_route_says_who_calls() -> None:
    app = app_with_caller(lambda: Caller("me"))

    opened = opened_on(scope_of(), guards_on(app))

    assert await opened.router_guards() == Caller("me")
    await opened.aclose(None)


async def test_nobody_in_particular_is_a_caller_too() -> None:
    opened = opened_on(scope_of(), guards_on(app_with_caller(lambda: None)))

    assert await opened.router_guards() == Caller()
    await opened.aclose(None)


async def test_a_caller_dependency_that_returns_something_else_is_a_mistake() -> None:
    opened = opened_on(scope_of(), guards_on(app_with_caller(lambda: "me")))

    with pytest.raises(ConfigurationError):
        await opened.router_guards()

    await opened.aclose(None)


class OwnRouter(APIRouter):
    """What `CurrentCaller` looks for: a router that says how to ask who calls."""

    def __init__(self, caller: Function, **options: Any) -> None:
        super().__init__(**options)
        self.carmy_caller = caller


def who(x_who: Annotated[str, Header()] = "nobody") -> Caller:
    return Caller(x_who)


def principal(caller: CurrentCaller) -> str | None:
    return caller.principal


def test_an_endpoint_is_told_who_calls_by_its_own_router() -> None:
    ada, bob = OwnRouter(lambda: Caller("ada"), prefix="/a"), OwnRouter(who, prefix="/b")
    nested = APIRouter()
    nested.get("/me")(principal)
    ada.get("/me")(principal)
    bob.include_router(nested)
    app = FastAPI()
    app.include_router(ada)
    app.include_router(bob)
    app.get("/me")(principal)
    client = TestClient(app)

    assert client.get("/a/me").json() == "ada"
    assert client.get("/b/me", headers={"x-who": "bob"}).json() == "bob"
    assert client.get("/me").json() is None


def test_an_endpoint_outside_is_told_by_the_only_router() -> None:
    app = FastAPI()
    app.include_router(OwnRouter(who))
    app.get("/me")(principal)

    assert TestClient(app).get("/me", headers={"x-who": "eve"}).json() == "eve"


def test_an_endpoint_without_any_router_is_told_nobody() -> None:
    app = FastAPI()
    app.get("/me")(principal)

    assert TestClient(app).get("/me").json() is None


def test_the_context_exists_only_in_an_execution() -> None:
    app = FastAPI()

    @app.get("/me")
    def endpoint(context: CurrentContext) -> None: ...

    with pytest.raises(ConfigurationError):
        TestClient(app).get("/me")


async def test_a_guard_can_ask_who_calls_before_the_route_has() -> None:
    seen: list[object] = []
    asked: list[str] = []

    def caller() -> Caller:
        asked.append("caller")
        return Caller("me")

    def guard(caller: CurrentCaller) -> None:
        seen.append(caller)

    app = FastAPI()
    router = OwnRouter(caller, dependencies=[Depends(guard)])

    @router.get("/x")
    def endpoint(caller: Annotated[Any, Depends(caller)]) -> None: ...

    app.include_router(router)
    dependant = router.routes[0].dependant  # type: ignore[attr-defined]
    opened = opened_on(scope_of(app=app), Guards(dependant))

    assert await opened.router_guards() == Caller("me")
    assert seen == [Caller("me")]
    assert asked == ["caller"]
    await opened.aclose(None)


async def test_the_caller_dependency_can_not_ask_who_calls() -> None:
    def caller(caller: CurrentCaller) -> Caller:
        return caller

    app = FastAPI()
    router = OwnRouter(caller)

    @router.get("/x")
    def endpoint(caller: Annotated[Any, Depends(caller)]) -> None: ...

    app.include_router(router)
    dependant = router.routes[0].dependant  # type: ignore[attr-defined]
    opened = opened_on(scope_of(app=app), Guards(dependant))

    with pytest.raises(ConfigurationError):
        await opened.router_guards()

    await opened.aclose(None)


# ---- calls of the host


async def host_call(tool: Tool, opened: HostOpened, caller: Caller | None = None) -> Any:
    return await call(tool, {}, opened=opened, caller=caller)  # type: ignore[arg-type]


async def test_the_hosts_own_call_needs_no_request() -> None:
    app = FastAPI()
    app.dependency_overrides[who] = lambda: "unused"

    def service(caller: CurrentCaller, response: Response) -> str | None:
        return caller.principal

    async def tool(service: Annotated[str, Depends(service)]) -> Any:
        return service

    made = tool_of(tool, dependencies=[Depends(lambda x_key=Header(): None)])
    opened = HostOpened(app, None, Caller("job"))

    assert not needs_request(made)
    assert opened.lacks_request
    assert opened.overrides == app.dependency_overrides
    assert await host_call(made, opened) == "job"


async def takes_request(request: Request) -> Any: ...
async def takes_header(x_key: Annotated[str, Header()] = "k") -> Any: ...
async def takes_security(user: Annotated[str, Security(who)]) -> Any: ...
async def takes_nested(user: Annotated[str, Depends(principal)]) -> Any: ...
async def takes_scheme(
    token: Annotated[str, Depends(OAuth2PasswordBearer("token", auto_error=False))],
) -> Any: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (takes_request, True),
        (takes_header, True),
        (takes_security, True),
        (takes_nested, False),
        (takes_scheme, True),
    ],
)
async def test_a_tool_that_reads_the_request_needs_one(function: Function, expected: bool) -> None:
    assert needs_request(tool_of(function)) is expected


async def test_security_is_asked_on_the_hosts_request_while_guards_are_skipped() -> None:
    def refuses() -> None:
        raise HTTPException(403)

    async def tool(user: Annotated[Caller, Security(who)]) -> Any:
        return user

    made = tool_of(tool, dependencies=[Depends(refuses)])
    request = Request(scope_of({"x-who": "ada"}))
    opened = HostOpened(None, request, Caller())

    assert not opened.lacks_request
    assert await host_call(made, opened) == Caller("ada")


# ---- the host's exceptions


@pytest.mark.parametrize(
    ("raised", "code", "category", "status", "retryable"),
    [
        (HTTPException(401), "UNAUTHENTICATED", "permission", 401, False),
        (HTTPException(403), "FORBIDDEN", "permission", 403, False),
        (HTTPException(404), "NOT_FOUND", "not_found", 404, False),
        (HTTPException(409), "CONFLICT", "conflict", 409, False),
        (HTTPException(418), "HTTP_ERROR", "validation", 418, False),
        (HTTPException(429), "RATE_LIMITED", "capacity", 429, True),
        (HTTPException(503), "TOOL_PANIC", "internal", 503, False),
    ],
)
def test_an_http_exception_is_data(
    raised: HTTPException, code: str, category: str, status: int, retryable: bool
) -> None:
    error = to_agent_error(raised)

    assert isinstance(error, HostError)
    assert error.code == code
    assert error.category == category
    assert error.status_code == status
    assert error.retryable is retryable


def test_what_the_host_says_of_a_client_error_is_kept() -> None:
    error = to_agent_error(HTTPException(429, "Slow down.", {"Retry-After": "7"}))

    assert error is not None
    assert error.message == "Slow down."
    assert error.retry_after == 7
    assert error.headers["Retry-After"] == "7"


def test_a_detail_that_is_no_text_becomes_details() -> None:
    error = to_agent_error(HTTPException(418, {"pot": "tea"}))

    assert error is not None
    assert error.details == {"pot": "tea"}


def test_a_servers_error_tells_nothing_of_itself() -> None:
    error = to_agent_error(HTTPException(500, "s3cret"))

    assert error is not None
    assert "s3cret" not in str(error.as_dict())


def test_what_is_unexpected_stays_so() -> None:
    ours = AgentError("X", "x", "internal")  # type: ignore[arg-type]

    assert to_agent_error(ours) is ours
    assert to_agent_error(ValueError("x")) is None


def test_the_arguments_of_a_tool_never_hold_what_is_injected() -> None:
    tool = tool_of(everything)

    assert validate(tool, {"n": 1}) == {"n": 1}


def test_what_a_host_asks_of_a_plan_is_analysed_once() -> None:
    plan = Plan("tool", read_parameters("tool", takes_security))

    assert plan.needs_request
    assert plan.securities(("a",)) is plan.securities(("a",))
    assert plan.securities(("a",)) is not plan.securities(())
