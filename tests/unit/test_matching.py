"""Which requests are ours: paths that matched once are known, and nothing else gets in."""

import gc
from typing import Any
from weakref import ref

import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from fastapi_carmy import AgentRouter
from fastapi_carmy.agui import RunContext


def refuse() -> None:
    raise HTTPException(403)


def test_each_place_of_a_router_keeps_its_own_guards() -> None:
    agent = AgentRouter()
    app = FastAPI()
    app.include_router(agent, prefix="/open")
    app.include_router(agent, prefix="/closed", dependencies=[Depends(refuse)])
    client = TestClient(app)

    statuses = [
        client.get(f"/{place}/agent/tools{slash}").status_code
        for _ in range(2)
        for place in ("open", "closed")
        for slash in ("", "/")
    ]

    assert statuses == [200, 200, 403, 403] * 2


def test_a_known_path_is_not_known_under_another_root() -> None:
    app = FastAPI()
    app.include_router(AgentRouter())
    outer = FastAPI()
    outer.mount("/api", app)

    assert TestClient(app).get("/agent/tools").status_code == 200
    assert TestClient(outer).get("/api/agent/tools").status_code == 200
    assert TestClient(outer).get("/agent/tools").status_code == 404


def test_a_parameter_of_the_path_is_read_in_each_request() -> None:
    agent = AgentRouter()
    seen: list[str] = []

    def note(tenant: str) -> None:
        seen.append(tenant)

    app = FastAPI()
    app.include_router(agent, prefix="/{tenant}", dependencies=[Depends(note)])
    client = TestClient(app)

    for tenant in ("a", "b", "a"):
        client.get(f"/{tenant}/agent/tools")

    assert seen == ["a", "b", "a"]


def test_a_websocket_is_none_of_ours() -> None:
    app = FastAPI()
    app.include_router(AgentRouter())
    client = TestClient(app)
    client.get("/agent/tools")

    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/agent/tools"):
        pass


def test_a_request_looks_the_same_whether_its_path_was_known_or_not() -> None:
    seen: list[list[Any]] = []

    def look(request: Request) -> None:
        scope = request.scope
        notes = {key: value for key, value in scope["fastapi"].items() if "stack" not in key}
        seen.append([scope["route"], scope["endpoint"], scope["path_params"], notes])

    app = FastAPI()
    app.include_router(AgentRouter(), prefix="/v1", dependencies=[Depends(look)])
    client = TestClient(app)

    for _ in range(3):
        assert client.get("/v1/agent/tools").status_code == 200

    assert seen[1:] == [seen[0], seen[0]]


def test_applications_that_share_a_router_keep_their_own_guards() -> None:
    agent = AgentRouter()
    guarded, unguarded = FastAPI(), FastAPI()
    guarded.include_router(agent, dependencies=[Depends(refuse)])
    unguarded.include_router(agent)
    first, second = TestClient(guarded), TestClient(unguarded)

    statuses = [client.get("/agent/tools").status_code for client in (first, second) * 3]

    assert statuses == [403, 200] * 3


def test_a_router_inside_another_one_keeps_the_guards_of_both() -> None:
    inner, outer, app = AgentRouter(), FastAPI().router, FastAPI()
    outer.include_router(inner, prefix="/agents", dependencies=[Depends(refuse)])
    app.include_router(outer, prefix="/v1")
    app.include_router(inner)
    client = TestClient(app)

    for _ in range(3):
        assert client.get("/v1/agents/agent/tools").status_code == 403
        assert client.get("/agent/tools").status_code == 200


def test_an_application_is_let_go_of_though_its_paths_were_known() -> None:
    agent = AgentRouter()

    def serve() -> "ref[FastAPI]":
        app = FastAPI()
        app.include_router(agent)
        client = TestClient(app)
        assert [client.get("/agent/tools").status_code for _ in range(2)] == [200, 200]
        return ref(app)

    app = serve()
    gc.collect()

    assert app() is None


def test_a_route_of_the_host_on_the_path_of_an_agent_stays_its_own() -> None:
    agent = AgentRouter()

    @agent.get("/chat")
    def page() -> str:
        return "page"

    @agent.agui("/chat")
    async def chat(run: RunContext[Any]) -> None:
        async with run.message() as message:
            await message.delta("hi")

    app = FastAPI()
    app.include_router(agent)
    client = TestClient(app)
    run = {"threadId": "t", "runId": "r", "messages": [], "tools": [], "context": []}

    for _ in range(3):
        assert client.get("/chat").json() == "page"
        assert "hi" in client.post("/chat", json=run).text
