"""Discovery and the catalog. Source: carmy/1, sections 1.1 to 1.3."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated

import pytest
from fastapi import Cookie, Depends, FastAPI, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount

from fastapi_carmy import AgentRouter, Caller
from fastapi_carmy.agui import RunContext
from fastapi_carmy.errors import ToolError
from fastapi_carmy.policies import RequireToolPermission
from tests.support.asgi import connect
from tests.support.calls import app_of, caller_from_headers, code, post

DISCOVERY, TOOLS, EXECUTE = "/.well-known/agent", "/agent/tools", "/agent/execute"
DEPENDS_ON = "X-Permissions, X-Principal, X-Session"


def small_router(**options: object) -> AgentRouter:
    agent = AgentRouter(**options)  # type: ignore[arg-type]

    @agent.tool(effect="read", idempotent=True, parallel_safe=True)
    async def look(text: str, limit: int = 10) -> list[str]:
        """Look something up.

        Args:
            text: What to look for.
        """
        return [text][:limit]

    @agent.tool(effect="destructive", name="Wipe.all", confirmation="required")
    async def wipe() -> None:
        """Wipe everything."""

    return agent


@pytest.mark.spec("carmy/1 7.1")
@pytest.mark.spec("carmy/1 1.1")
def test_discovery_says_what_is_there_and_where() -> None:
    with TestClient(app_of(small_router())) as client:
        answer = client.get(DISCOVERY)
        catalog = client.get(TOOLS)

    assert answer.json() == {
        "protocol": "carmy/1",
        "server": "carmy",
        "capabilities": ["tools", "streaming", "idempotency"],
        "tools_url": "/agent/tools",
        "execute_url": "/agent/execute",
        "tools_version": sha256(catalog.content).hexdigest(),
    }
    assert next(iter(answer.json())) == "protocol"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.spec("carmy/1 1.2")
def test_the_catalog_describes_each_tool_in_the_order_of_their_names() -> None:
    with TestClient(app_of(small_router(server="shop"))) as client:
        wipe, look = client.get(TOOLS).json()["tools"]

    assert wipe == {
        "name": "Wipe.all",
        "description": "Wipe everything.",
        "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
        "output_schema": {"type": "null"},
        "effect": "destructive",
        "idempotent": False,
        "parallel_safe": False,
        "confirmation": "required",
    }
    assert list(look) == list(wipe)
    assert look["input_schema"]["required"] == ["text"]
    assert look["input_schema"]["additionalProperties"] is False
    assert look["input_schema"]["properties"]["text"]["description"] == "What to look for."
    assert (look["effect"], look["idempotent"], look["parallel_safe"], look["confirmation"]) == (
        "read",
        True,
        True,
        "none",
    )


def test_the_router_tells_the_host_what_the_catalog_tells_agents() -> None:
    agent = small_router()

    with TestClient(app_of(agent)) as client:
        catalog = client.get(TOOLS)

    assert [tool.name for tool in agent.tools] == ["Wipe.all", "look"]
    assert agent.tools_version == sha256(catalog.content).hexdigest()


@pytest.mark.spec("carmy/1 7.2")
@pytest.mark.spec("carmy/1 1.3")
@pytest.mark.parametrize("path", [DISCOVERY, TOOLS])
def test_a_document_is_confirmed_by_its_tag(path: str) -> None:
    with TestClient(app_of(small_router())) as client:
        first = client.get(path)
        tag = first.headers["etag"]
        confirmed = [
            client.get(path, headers={"If-None-Match": match})
            for match in (tag, "*", f"W/{tag}", f'"other", W/"more" , {tag}')
        ]
        repeated = client.get(path, headers=[("If-None-Match", '"other"'), ("If-None-Match", tag)])
        changed = client.get(path, headers={"If-None-Match": f'"other", {tag[:-2]}"'})

    assert tag == f'"{sha256(first.content).hexdigest()}"'
    for answer in (*confirmed, repeated):
        assert (answer.status_code, answer.content) == (304, b"")
    assert (changed.status_code, changed.content) == (200, first.content)
    for answer in (first, *confirmed, changed):
        assert answer.headers["etag"] == tag
        assert answer.headers["cache-control"] == "private, max-age=60"
        assert answer.headers["content-type"] == "application/json"
        assert "vary" not in answer.headers


@pytest.mark.spec("carmy/1 7.2")
def test_discovery_and_catalog_agree_on_the_version() -> None:
    with TestClient(app_of(small_router())) as client:
        version = client.get(DISCOVERY).json()["tools_version"]
        catalog = client.get(TOOLS)

    assert version == sha256(catalog.content).hexdigest() == catalog.headers["etag"].strip('"')


@pytest.mark.spec("carmy/1 1")
@pytest.mark.parametrize("path", [DISCOVERY, TOOLS])
async def test_head_is_answered_as_get_without_a_body(path: str) -> None:
    app = app_of(small_router())

    async with connect(app, path) as get, connect(app, path, method="HEAD") as head:
        body = await get.read()
        assert await head.read() == b""

    assert head.status == get.status == 200
    assert head.headers == get.headers
    assert head.headers["content-length"] == str(len(body))


@pytest.mark.spec("carmy/1 1")
@pytest.mark.parametrize("path", [DISCOVERY, TOOLS])
@pytest.mark.parametrize("prefix", ["", "/api"])
def test_a_trailing_slash_makes_no_difference(path: str, prefix: str) -> None:
    with TestClient(app_of(small_router(), prefix=prefix), follow_redirects=False) as client:
        plain, slash = client.get(prefix + path), client.get(f"{prefix}{path}/")

    assert (slash.status_code, slash.content) == (200, plain.content)


@pytest.mark.spec("carmy/1 1")
@pytest.mark.parametrize(
    ("path", "methods", "allow"),
    [
        (DISCOVERY, ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"], "GET, HEAD"),
        (TOOLS, ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"], "GET, HEAD"),
        (EXECUTE, ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"], "POST"),
    ],
)
@pytest.mark.parametrize("slash", ["", "/"])
def test_another_method_is_refused_in_our_shape(
    path: str, methods: Sequence[str], allow: str, slash: str
) -> None:
    with TestClient(app_of(small_router()), follow_redirects=False) as client:
        answers = [client.request(method, path + slash) for method in methods]

    for method, answer in zip(methods, answers, strict=True):
        assert answer.status_code == 405
        assert answer.headers["allow"] == allow
        if method != "HEAD":
            assert list(answer.json()) == ["error"]
            assert code(answer) == "HTTP_ERROR"


@pytest.mark.spec("carmy/1 1")
def test_unknown_paths_are_the_hosts() -> None:
    with TestClient(app_of(small_router())) as client:
        answer = client.get("/agent/nothing")

    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


@pytest.mark.spec("carmy/1 1.1")
def test_the_urls_follow_the_prefixes_of_includes() -> None:
    outer = small_router(prefix="/v1")
    app = FastAPI()
    app.include_router(outer, prefix="/api/{tenant}")

    with TestClient(app) as client:
        document = client.get("/api/anna & co/v1/.well-known/agent").json()
        answer = post(client, "look", {"text": "x"}, path=document["execute_url"])
        catalog = client.get(document["tools_url"])

    assert document["tools_url"] == "/api/anna%20&%20co/v1/agent/tools"
    assert answer.json()["data"] == ["x"]
    assert catalog.status_code == 200


def test_more_places_than_are_remembered_are_described_as_well() -> None:
    app = app_of(small_router(), prefix="/{tenant}")

    with TestClient(app) as client:
        for number in [*range(100), 0]:
            document = client.get(f"/{number}/.well-known/agent").json()
            assert document["tools_url"] == f"/{number}/agent/tools"


@pytest.mark.spec("carmy/1 1.1")
def test_the_urls_follow_a_mount() -> None:
    app = Starlette(routes=[Mount("/shop", app_of(small_router(), prefix="/api"))])

    client = TestClient(app)
    document = client.get("/shop/api/.well-known/agent").json()

    assert document["execute_url"] == "/shop/api/agent/execute"
    assert post(client, "look", {"text": "x"}, path=document["execute_url"]).status_code == 200


@pytest.mark.spec("carmy/1 1.1")
@pytest.mark.parametrize("is_stripped", [True, False])
async def test_the_urls_follow_a_proxys_root_path(is_stripped: bool) -> None:
    app = app_of(small_router(), prefix="/api")
    path = "/api/.well-known/agent" if is_stripped else "/proxy/api/.well-known/agent"

    async with connect(app, path, root_path="/proxy") as exchange:
        document = await exchange.json()

    assert document["tools_url"] == "/proxy/api/agent/tools"
    assert document["execute_url"] == "/proxy/api/agent/execute"


@pytest.mark.spec("carmy/1 1.1")
def test_discovery_can_stand_at_the_origins_root_too() -> None:
    agent = small_router()
    app = FastAPI()
    app.include_router(agent, prefix="/api")
    app.include_router(agent.well_known("/api"))

    with TestClient(app) as client:
        document = client.get(DISCOVERY).json()
        same = client.get(f"/api{DISCOVERY}").json()

    assert document == same
    assert document["execute_url"] == "/api/agent/execute"


@pytest.mark.spec("carmy/1 1.3")
def test_each_caller_gets_a_catalog_of_its_own_where_that_is_on() -> None:
    agent = small_router(
        caller=caller_from_headers, policies=[RequireToolPermission()], per_caller_catalog=True
    )
    anna = {"X-Permissions": "tool:look"}
    boss = {"X-Permissions": "tool:look tool:Wipe.all"}

    with TestClient(app_of(agent)) as client:
        of_anna, of_boss, of_nobody = (
            client.get(TOOLS, headers=headers) for headers in (anna, boss, {})
        )
        discovery = client.get(DISCOVERY, headers=anna)
        unchanged = client.get(TOOLS, headers={**anna, "If-None-Match": of_anna.headers["etag"]})
        of_another = client.get(TOOLS, headers={**boss, "If-None-Match": of_anna.headers["etag"]})

    def names(catalog: dict[str, list[dict[str, str]]]) -> list[str]:
        return [tool["name"] for tool in catalog["tools"]]

    assert names(of_anna.json()) == ["look"]
    assert names(of_boss.json()) == ["Wipe.all", "look"]
    assert names(of_nobody.json()) == []
    for answer in (of_anna, of_boss, of_nobody):
        assert answer.headers["etag"] == f'"{sha256(answer.content).hexdigest()}"'
        assert answer.headers["vary"] == DEPENDS_ON
    assert discovery.json()["tools_version"] == sha256(of_anna.content).hexdigest()
    assert discovery.headers["vary"] == unchanged.headers["vary"] == DEPENDS_ON
    assert unchanged.status_code == 304
    assert of_another.status_code == 200
    assert agent.tools_version == sha256(of_boss.content).hexdigest()


@pytest.mark.spec("carmy/1 1.3")
def test_a_catalog_that_depends_on_security_varies_by_its_header() -> None:
    def caller(token: Annotated[object, Security(HTTPBearer(auto_error=False))]) -> Caller:
        return Caller()

    def guard(
        key: Annotated[object, Security(APIKeyHeader(name="X-Key", auto_error=False))],
        crumb: Annotated[str, Cookie()] = "",
    ) -> None: ...

    agent = small_router(caller=caller, per_caller_catalog=True, dependencies=[Depends(guard)])

    with TestClient(app_of(agent)) as client:
        vary = client.get(TOOLS).headers["vary"]

    assert {name.strip().lower() for name in vary.split(",")} == {
        "authorization",
        "cookie",
        "x-key",
    }


def test_the_documents_do_not_ask_who_calls_where_all_callers_see_the_same() -> None:
    asked: list[str] = []

    def caller() -> Caller:
        asked.append("caller")
        return Caller()

    with TestClient(app_of(small_router(caller=caller))) as client:
        client.get(DISCOVERY)
        client.get(TOOLS)
        assert asked == []
        post(client, "look", {"text": "x"})

    assert asked == ["caller"]


@pytest.mark.spec("carmy/1 1.2")
def test_a_description_that_is_no_text_stops_the_application() -> None:
    agent = AgentRouter()
    agent.add_tool(lambda: None, name="look", effect="read", description="\ud800")

    with pytest.raises(ToolError) as caught, TestClient(app_of(agent)):
        pass

    assert caught.value.tool == "look"


@pytest.mark.spec("carmy/1 1.1")
def test_discovery_tells_when_agents_are_mounted_beside_the_tools() -> None:
    agent, child = small_router(), AgentRouter()
    without = TestClient(app_of(agent)).get(DISCOVERY).json()["capabilities"]

    @child.agui("/chat")
    async def chat(run: RunContext[None]) -> None: ...

    parent = AgentRouter()
    parent.include_router(child)

    assert without == ["tools", "streaming", "idempotency"]
    for router in (child, parent):
        capabilities = TestClient(app_of(router)).get(DISCOVERY).json()["capabilities"]
        assert capabilities == [*without, "ag-ui"]
