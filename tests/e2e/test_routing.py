"""Wherever a router is put, the URLs that it advertises answer. Source: carmy/1, section 1.1."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from fastapi_carmy import AgentRouter, Caller
from fastapi_carmy.errors import ConfigurationError
from tests.support.calls import app_of
from tests.support.proxy import StrippingProxy
from tests.support.wire import Served, call, connect, serve_here

pytestmark = [
    pytest.mark.spec("carmy/1 1.1"),
    # FastAPI's own option still works, and applications that use it exist.
    pytest.mark.filterwarnings("ignore:The `root_path` parameter"),
]

WELL_KNOWN = "/.well-known/agent"


def agent_router(**options: Any) -> AgentRouter:
    agent = AgentRouter(**options)

    @agent.tool(effect="none")
    async def double(number: int) -> int:
        return 2 * number

    return agent


async def fetch(served: Served, path: str) -> Any:
    async with connect(served, path) as wire:
        answer = await wire.answer()
    assert answer.status == 200, (path, answer)
    return answer


async def use_what_is_advertised(served: Served, discovery_url: str) -> str:
    """Do what an agent does: discover, read the catalog, call a tool; both ways."""
    discovery = (await fetch(served, discovery_url)).json()
    catalog = await fetch(served, discovery["tools_url"])
    assert [tool["name"] for tool in catalog.json()["tools"]] == ["double"]
    assert catalog.headers["etag"] == f'"{discovery["tools_version"]}"'
    for path in (discovery["execute_url"], f"{discovery['execute_url']}/"):
        for stream in (False, True):
            async with call(served, "double", {"number": 2}, path=path, stream=stream) as wire:
                assert (await wire.answer()).result["data"] == 4
    tools_url: str = discovery["tools_url"]
    return tools_url.removesuffix("/agent/tools")


def prefix_of_its_own() -> ASGIApp:
    return app_of(agent_router(prefix="/own"))


def prefix_of_the_include() -> ASGIApp:
    return app_of(agent_router(), prefix="/included")


def nested_prefixes() -> ASGIApp:
    inner, outer = APIRouter(prefix="/b"), APIRouter()
    inner.include_router(agent_router(prefix="/d"), prefix="/c")
    outer.include_router(inner, prefix="/a")
    return app_of_router(outer)


def app_of_router(router: APIRouter) -> FastAPI:
    app = FastAPI()
    app.include_router(router)
    return app


def two_includes() -> ASGIApp:
    app, agent = FastAPI(), agent_router()
    app.include_router(agent, prefix="/one")
    app.include_router(agent, prefix="/two")
    return app


def two_routers() -> ASGIApp:
    app = FastAPI()
    app.include_router(agent_router(), prefix="/one")
    app.include_router(agent_router(), prefix="/two")
    return app


def mounted() -> ASGIApp:
    app = FastAPI()
    app.mount("/mounted", app_of(agent_router(), prefix="/api"))
    return app


def mounted_twice_over() -> ASGIApp:
    middle, outer = FastAPI(), FastAPI()
    middle.mount("/inner", app_of(agent_router()))
    outer.mount("/outer", middle)
    return outer


def mounted_without_an_application() -> ASGIApp:
    return Starlette(routes=[Mount("/starlette", app=agent_router())])


def the_router_alone() -> ASGIApp:
    return agent_router()


def the_router_alone_with_a_prefix() -> ASGIApp:
    return agent_router(prefix="/own")


@pytest.mark.parametrize(
    ("make", "places"),
    [
        (lambda: app_of(agent_router()), [""]),
        (prefix_of_its_own, ["/own"]),
        (prefix_of_the_include, ["/included"]),
        (nested_prefixes, ["/a/b/c/d"]),
        (two_includes, ["/one", "/two"]),
        (two_routers, ["/one", "/two"]),
        (mounted, ["/mounted/api"]),
        (mounted_twice_over, ["/outer/inner"]),
        (mounted_without_an_application, ["/starlette"]),
        (the_router_alone, [""]),
        (the_router_alone_with_a_prefix, ["/own"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("slash", ["", "/"], ids=["", "slash"])
async def test_what_is_advertised_answers(
    make: Callable[[], ASGIApp], places: list[str], slash: str
) -> None:
    async with serve_here(make(), lifespan="auto") as served:
        found = [
            await use_what_is_advertised(served, f"{place}{WELL_KNOWN}{slash}") for place in places
        ]

    assert found == places


@asynccontextmanager
async def behind_a_proxy(app: ASGIApp, prefix: str, **options: Any) -> AsyncIterator[Served]:
    async with (
        serve_here(app, **options) as upstream,
        serve_here(StrippingProxy(upstream.url, prefix), lifespan="off") as proxy,
    ):
        yield proxy


def with_root_path(root_path: str | None) -> FastAPI:
    app = FastAPI() if root_path is None else FastAPI(root_path=root_path)
    app.include_router(agent_router(), prefix="/api")
    return app


@pytest.mark.parametrize("told", ["uvicorn", "application", "both"])
@pytest.mark.parametrize("prefix", ["/proxy", "/proxy/v1"])
async def test_what_is_advertised_answers_behind_a_proxy_that_strips_a_prefix(
    prefix: str, told: str
) -> None:
    app = with_root_path(None if told == "uvicorn" else prefix)
    options = {} if told == "application" else {"root_path": prefix}

    async with behind_a_proxy(app, prefix, **options) as proxy:
        found = await use_what_is_advertised(proxy, f"{prefix}/api{WELL_KNOWN}")

    assert found == f"{prefix}/api"


async def test_a_root_path_without_a_proxy_is_harmless() -> None:
    async with serve_here(with_root_path("/proxy")) as served:
        found = await use_what_is_advertised(served, f"/api{WELL_KNOWN}")
        same = await use_what_is_advertised(served, f"/proxy/api{WELL_KNOWN}")

    assert found == same == "/proxy/api"


async def test_a_mounted_application_is_found_behind_a_proxy() -> None:
    async with behind_a_proxy(mounted(), "/proxy", root_path="/proxy") as proxy:
        found = await use_what_is_advertised(proxy, f"/proxy/mounted/api{WELL_KNOWN}")

    assert found == "/proxy/mounted/api"


@pytest.mark.parametrize("prefix", ["/api", "/api/"])
async def test_discovery_stands_at_the_root_too_where_the_rest_has_a_prefix(prefix: str) -> None:
    app, agent = FastAPI(), agent_router()
    app.include_router(agent, prefix="/api")
    app.include_router(agent.well_known(prefix))

    async with serve_here(app) as served:
        found = [
            await use_what_is_advertised(served, f"{place}{WELL_KNOWN}") for place in ("", "/api")
        ]
        documents = [(await fetch(served, f"{at}{WELL_KNOWN}")).body for at in ("", "/api")]

    assert found == ["/api", "/api"]
    assert documents[0] == documents[1]


async def test_discovery_at_the_root_leads_into_a_mounted_application() -> None:
    agent = agent_router()
    app = FastAPI()
    app.include_router(agent.well_known("/mounted/api"))
    app.mount("/mounted", app_of(agent, prefix="/api"))

    async with serve_here(app) as served:
        found = await use_what_is_advertised(served, WELL_KNOWN)

    assert found == "/mounted/api"


async def test_discovery_at_the_root_is_found_behind_a_proxy() -> None:
    app, agent = FastAPI(root_path="/proxy"), agent_router()
    app.include_router(agent, prefix="/api")
    app.include_router(agent.well_known("/api"))

    async with behind_a_proxy(app, "/proxy") as proxy:
        found = await use_what_is_advertised(proxy, f"/proxy{WELL_KNOWN}")

    assert found == "/proxy/api"


@pytest.mark.parametrize("prefix", ["api", "/t/{tenant}"])
def test_a_prefix_that_leads_nowhere_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        agent_router().well_known(prefix)


@pytest.mark.parametrize("tenant", ["acme", "a%20b", "%C3%A9", "a%25b", "a%3Fb%23c", "a+b&c"])
async def test_a_path_parameter_stays_in_the_urls_and_reaches_the_guards(tenant: str) -> None:
    seen: list[str] = []

    def caller(tenant: str) -> Caller:
        seen.append(tenant)
        return Caller(principal=tenant)

    app = app_of(agent_router(caller=caller), prefix="/t/{tenant}")

    async with serve_here(app) as served:
        found = await use_what_is_advertised(served, f"/t/{tenant}{WELL_KNOWN}")
        again = await use_what_is_advertised(served, f"{found}{WELL_KNOWN}")

    assert found == again
    assert len(set(seen)) == 1


async def test_an_agent_cannot_choose_another_tenant() -> None:
    def tenant_of(tenant: str) -> str:
        return tenant

    def caller(tenant: Annotated[str, Depends(tenant_of)]) -> Caller:
        return Caller(principal=tenant)

    agent = AgentRouter(caller=caller)

    @agent.tool(effect="read")
    async def who(caller: Caller) -> str | None:
        return caller.principal

    async with serve_here(app_of(agent, prefix="/t/{tenant}")) as served:
        path = "/t/acme/agent/execute"
        async with call(served, "who", path=f"{path}?tenant=evil") as wire:
            by_query = await wire.answer()
        async with call(served, "who", {"tenant": "evil"}, path=path) as wire:
            by_argument = await wire.answer()

    assert by_query.result["data"] == "acme"
    assert by_argument.code == "INVALID_ARGUMENTS"


async def test_the_hosts_own_routes_stand_beside_the_routers() -> None:
    app = app_of(agent_router(), prefix="/api")

    @app.get("/api/agent/other")
    def other() -> str:
        return "mine"

    async with serve_here(app) as served:
        answer = await fetch(served, "/api/agent/other")
        async with connect(served, "/api/agent/unknown") as wire:
            unknown = await wire.answer()

    assert answer.json() == "mine"
    assert (unknown.status, unknown.json()) == (404, {"detail": "Not Found"})
