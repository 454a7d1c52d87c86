"""Each claim of the page about several routers that its commands don't show."""

import pytest
from fastapi.testclient import TestClient

from docs.snippets.how_to.several_routers import app
from fastapi_carmy import AgentRouter, Caller
from fastapi_carmy.errors import ConfigurationError


def test_a_tool_is_called_under_its_routers_prefix() -> None:
    with TestClient(app) as client:
        answer = client.post("/back-office/agent/execute", json={"tool": "count_orders"})
        elsewhere = client.post("/agent/execute", json={"tool": "count_orders"})

    assert answer.json()["data"] == 3
    assert elsewhere.json()["error"]["code"] == "TOOL_NOT_FOUND"


def test_a_child_with_a_caller_of_its_own_is_refused() -> None:
    def get_caller() -> Caller:
        return Caller(principal="anna")

    with pytest.raises(ConfigurationError):
        AgentRouter().include_router(AgentRouter(caller=get_caller))
