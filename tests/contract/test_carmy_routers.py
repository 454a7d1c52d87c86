"""An AgentRouter is a router: prefixes, includes, lifespans, routes of its own."""

import gc
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from fastapi_carmy import AgentRouter
from fastapi_carmy.errors import ConfigurationError, ToolError
from fastapi_carmy.policies import RequireToolPermission
from tests.support.calls import app_of, caller_from_headers, code, post
from tests.support.gates import Audit

EXECUTE = "/agent/execute"


def router(name: str, **options: Any) -> AgentRouter:
    """Return a router whose one tool says the router's name."""
    agent = AgentRouter(server=name, **options)

    @agent.tool(effect="read", name=f"name_{name}")
    async def tell() -> str:
        return name

    return agent


def test_two_routers_live_in_one_application_under_different_prefixes() -> None:
    app = FastAPI()
    app.include_router(router("a"), prefix="/a")
    app.include_router(router("b"), prefix="/b")

    with TestClient(app) as client:
        names = [client.get(f"/{p}/.well-known/agent").json()["server"] for p in "ab"]
        answers = [post(client, f"name_{p}", path=f"/{p}{EXECUTE}").json()["data"] for p in "ab"]
        foreign = post(client, "name_a", path=f"/b{EXECUTE}")

    assert names == answers == ["a", "b"]
    assert code(foreign) == "TOOL_NOT_FOUND"


def test_two_routers_on_the_same_paths_stop_the_application() -> None:
    app = FastAPI()
    app.include_router(router("a"))
    app.include_router(router("b"))

    with pytest.raises(ConfigurationError, match="Two AgentRouters answer on"), TestClient(app):
        pass


def test_one_router_can_be_included_twice_and_shares_its_records() -> None:
    agent = AgentRouter()
    runs: list[str] = []

    @agent.tool(effect="write")
    async def count(x: str) -> int:
        runs.append(x)
        return len(runs)

    app = FastAPI()
    app.include_router(agent, prefix="/v1")
    app.include_router(agent, prefix="/v2", dependencies=[Depends(lambda: None)])

    with TestClient(app) as client:
        paths = [f"/{version}{EXECUTE}" for version in ("v1", "v2")]
        first, second = (
            post(client, "count", {"x": "a"}, request_id="r", path=path) for path in paths
        )
        urls = [client.get(f"/{v}/.well-known/agent").json()["execute_url"] for v in ("v1", "v2")]

    assert first.content == second.content
    assert urls == paths
    assert runs == ["a"]


def test_one_router_can_serve_two_applications() -> None:
    agent = router("a")

    with TestClient(app_of(agent)) as first, TestClient(app_of(agent, prefix="/b")) as second:
        answers = [post(first, "name_a"), post(second, "name_a", path=f"/b{EXECUTE}")]

    assert [answer.json()["data"] for answer in answers] == ["a", "a"]


@pytest.mark.parametrize("has_lifespan", [True, False], ids=["lifespan", "none"])
def test_an_agent_router_gives_its_tools_to_the_one_that_includes_it(has_lifespan: bool) -> None:
    seen: list[str] = []

    def outer_guard() -> None:
        seen.append("outer")

    def include_guard() -> None:
        seen.append("include")

    def inner_guard() -> None:
        seen.append("inner")

    inner = router("inner", dependencies=[Depends(inner_guard)], timeout_seconds=7)

    @inner.get("/inner-route")
    async def inner_route() -> str:
        return "inner route"

    outer = router("outer", dependencies=[Depends(outer_guard)])
    outer.include_router(inner, prefix="/inner", dependencies=[Depends(include_guard)])
    client = TestClient(app_of(outer))

    if has_lifespan:
        client.__enter__()
    catalog = client.get("/agent/tools").json()["tools"]
    seen.clear()
    answer = post(client, "name_inner")
    ours = post(client, "name_outer")
    over_rest = client.get("/inner/inner-route")
    gone = client.get("/inner/agent/tools")
    client.__exit__() if has_lifespan else None

    assert [tool["name"] for tool in catalog] == ["name_inner", "name_outer"]
    assert answer.json()["data"] == "inner"
    assert ours.json()["data"] == "outer"
    assert seen[:4] == ["outer", "include", "inner", "outer"]
    assert over_rest.json() == "inner route"
    assert gone.status_code == 404
    assert [tool.timeout_seconds for tool in outer.tools] == [7, None]


@pytest.mark.parametrize(
    "options",
    [
        {"caller": caller_from_headers},
        {"policies": [RequireToolPermission()]},
        {"store": "memory://"},
        {"audit": [Audit()]},
        {"max_body_bytes": 10},
        {"per_caller_catalog": True},
        {"max_threads": 1},
        {"finish_seconds": 1},
        {"stop_seconds": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_router_with_rules_of_its_own_cannot_be_included_in_another(
    options: dict[str, object],
) -> None:
    with pytest.raises(ConfigurationError, match=f"its own {next(iter(options))} can't"):
        router("outer").include_router(router("inner", **options))


def test_a_tool_that_comes_to_an_included_router_too_late_is_refused() -> None:
    outer, inner, innermost = router("outer"), router("inner"), router("innermost")
    inner.include_router(innermost)
    outer.include_router(inner)

    with TestClient(app_of(outer)), pytest.raises(ConfigurationError, match="after the catalog"):
        innermost.add_tool(lambda: None, name="late", effect="read")


def test_the_same_tool_from_two_routers_stops_the_application() -> None:
    outer = router("a")
    outer.include_router(router("a"))

    with pytest.raises(ToolError) as caught, TestClient(app_of(outer)):
        pass

    assert caught.value.tool == "name_a"


@pytest.mark.spec("carmy/1 1.2")
def test_two_tools_of_one_name_stop_the_application() -> None:
    agent = router("a")

    @agent.tool(effect="read")
    async def name_a() -> None: ...

    with pytest.raises(ToolError, match="exists already"), TestClient(app_of(agent)):
        pass


@pytest.mark.spec("carmy/1 1.2")
@pytest.mark.parametrize("name", ["", "a b", "é", "a/b", "x" * 129])
def test_a_wrong_name_is_refused_at_once(name: str) -> None:
    agent = AgentRouter()

    with pytest.raises(ToolError) as caught:
        agent.tool(effect="read", name=name)(lambda: None)

    assert caught.value.tool == name


@pytest.mark.spec("carmy/1 1.2")
def test_a_tool_declares_its_effect() -> None:
    agent = AgentRouter()

    with pytest.raises(TypeError, match="effect"):
        agent.tool()  # type: ignore[call-arg]
    with pytest.raises(ToolError, match="effect"):
        agent.tool(effect="harmless", name="look")(lambda: None)


@pytest.mark.parametrize("what", ["tool", "router"])
def test_what_is_added_too_late_is_refused(what: str) -> None:
    agent = router("a")
    add: dict[str, Callable[[], None]] = {
        "tool": lambda: agent.add_tool(lambda: None, name="late", effect="read"),
        "router": lambda: agent.include_router(router("late")),
    }

    with (
        TestClient(app_of(agent)),
        pytest.raises(ConfigurationError, match="after the catalog was built"),
    ):
        add[what]()


@pytest.mark.parametrize(
    "options", [{"timeout_seconds": 0}, {"finish_seconds": -1}, {"stop_seconds": float("nan")}]
)
def test_a_limit_is_more_than_nothing(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        AgentRouter(**options)  # type: ignore[arg-type]


def test_the_decorator_returns_the_function_so_that_it_can_be_an_endpoint_too() -> None:
    agent = AgentRouter()

    @agent.get("/double")
    @agent.tool(effect="none")
    async def double(x: int) -> int:
        return 2 * x

    with TestClient(app_of(agent)) as client:
        over_rest, by_tool = client.get("/double?x=4"), post(client, "double", {"x": 4})

    assert over_rest.json() == by_tool.json()["data"] == 8


def test_a_lifespan_of_the_users_own_runs_beside_ours() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def run_router(app: FastAPI) -> AsyncIterator[Mapping[str, str]]:
        seen.append("router starts")
        yield {"db": "router"}
        seen.append("router stops")

    @asynccontextmanager
    async def run_app(app: FastAPI) -> AsyncIterator[Mapping[str, str]]:
        seen.append("app starts")
        yield {"cache": "app"}
        seen.append("app stops")

    agent = AgentRouter(lifespan=run_router)

    @agent.tool(effect="read")
    async def state(request: Request) -> list[str]:
        return [request.state.db, request.state.cache]

    app = FastAPI(lifespan=run_app)
    app.include_router(agent)

    for _ in range(2):
        with TestClient(app) as client:
            assert post(client, "state").json()["data"] == ["router", "app"]

    assert seen == ["app starts", "router starts", "router stops", "app stops"] * 2


def test_without_a_lifespan_the_first_request_builds_the_catalog() -> None:
    agent = AgentRouter()
    runs: list[str] = []

    @agent.tool(effect="write")
    async def count(x: str) -> int:
        runs.append(x)
        return len(runs)

    client = TestClient(app_of(agent))
    first, second = (post(client, "count", {"x": "a"}, request_id="r") for _ in range(2))

    assert first.content == second.content
    assert runs == ["a"]
    with pytest.raises(ConfigurationError):
        agent.tool(effect="read", name="late")(lambda: None)


def test_a_mistake_in_a_tool_stops_the_application_while_it_starts() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def look(thing: "Undefined") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ToolError) as caught, TestClient(app_of(agent)):
        pass

    assert (caught.value.tool, caught.value.parameter) == ("look", "thing")


def test_the_users_own_routes_are_fastapis_and_keep_their_route_class() -> None:
    seen: list[str] = []

    class Timed(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def timed(request: Request) -> Response:
                seen.append(request.url.path)
                return await handle(request)

            return timed

    agent = AgentRouter(route_class=Timed, prefix="/shop")

    @agent.tool(effect="read")
    async def look() -> str:
        return "x"

    @agent.get("/product")
    async def product(number: int) -> int:
        if number == 0:
            raise HTTPException(418, "No product.")
        return number

    ordinary = APIRouter()

    @ordinary.get("/ordinary")
    async def ordinary_route() -> str:
        return "ordinary"

    agent.include_router(ordinary)

    with TestClient(app_of(agent)) as client:
        answers = [client.get(f"/shop/product?number={n}") for n in ("7", "0", "x")]
        wrong_method = client.post("/shop/product")
        included = client.get("/shop/ordinary")
        tool = post(client, "look", path=f"/shop{EXECUTE}")

    assert [answer.status_code for answer in answers] == [200, 418, 422]
    assert answers[1].json() == {"detail": "No product."}
    assert wrong_method.json() == {"detail": "Method Not Allowed"}
    assert included.json() == "ordinary"
    assert tool.json()["data"] == "x"
    assert set(seen) == {"/shop/product"}


def test_the_hosts_exception_handlers_are_neither_used_nor_changed() -> None:
    app = FastAPI()

    def handle(request: Request, error: Exception) -> Response:
        return Response("handled by the host", 599)

    for kind in (HTTPException, ToolError, RuntimeError, Exception):
        app.add_exception_handler(kind, handle)

    def guard() -> None:
        raise HTTPException(403)

    agent = AgentRouter()

    @agent.tool(effect="read")
    async def fail() -> None:
        raise RuntimeError

    @agent.tool(effect="read")
    async def guarded(needed: Annotated[None, Depends(guard)]) -> None: ...

    @agent.get("/own")
    async def own() -> None:
        raise RuntimeError

    app.include_router(agent)

    with TestClient(app, raise_server_exceptions=False) as client:
        assert code(post(client, "fail")) == "TOOL_PANIC"
        assert code(post(client, "guarded")) == "FORBIDDEN"
        assert client.get("/own").status_code == 599


def test_a_router_keeps_no_application_alive() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def look() -> None: ...

    app = app_of(agent)

    with TestClient(app) as client:
        post(client, "look")

    seen = weakref.ref(app)
    del app, client
    gc.collect()

    assert seen() is None
