from fastapi.testclient import TestClient

from docs.snippets.tutorial.errors import agent, app, create_order
from fastapi_carmy import Caller


async def test_the_function_is_still_a_function() -> None:
    order = await create_order("TEA-001", 2)

    assert order.total_cents == 1580


async def test_the_tool_through_the_whole_pipeline_without_http() -> None:
    arguments = {"sku": "NONE"}
    caller = Caller(principal="tester")

    result = await agent.execute("create_order", arguments, caller=caller)

    assert result.status == "failed"
    assert result.error is not None
    assert result.error.code == "PRODUCT_NOT_FOUND"


def test_the_wire() -> None:
    call = {"tool": "create_order", "arguments": {"sku": "TEA-001"}, "request_id": "r1"}
    with TestClient(app) as client:
        first = client.post("/agent/execute", json=call)
        second = client.post("/agent/execute", json=call)

    assert first.json()["data"]["total_cents"] == 790
    assert second.content == first.content
    assert second.headers["Carmy-Replayed"] == "true"
