"""Which requests are ours: paths that matched once are known, and nothing else gets in."""

import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from fastapi_carmy import AgentRouter


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
