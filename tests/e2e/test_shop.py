"""The example shop on a real server, as a client meets it."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from pydantic_core import from_json
from starlette.types import ASGIApp

from example_shop.app import create_app
from tests.support.servers import serve_command
from tests.support.shop import AGENT, ANNA, call, rows
from tests.support.sse import Frame, parse_frames

STREAM = {**AGENT, "Accept": "text/event-stream"}
STOCK_OF_CUPS = "SELECT stock FROM products WHERE sku = 'CUP-001'"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def client(database: Path, serve: Callable[[ASGIApp], str]) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=serve(create_app(database)), timeout=10) as client:
        yield client


def restock(quantity: int) -> dict[str, object]:
    return {"tool": "restock", "arguments": {"sku": "CUP-001", "quantity": quantity}}


def test_an_agent_finds_its_way_from_discovery_to_an_order(
    client: httpx2.Client, database: Path
) -> None:
    discovery = client.get("/.well-known/agent", headers=AGENT).json()
    catalog = client.get(discovery["tools_url"], headers=AGENT)
    tag = {"If-None-Match": catalog.headers["etag"]}
    unchanged = client.get(discovery["tools_url"], headers={**AGENT, **tag})
    found = call(client, "search_products", {"text": "green"}).json()["data"][0]
    order = {"sku": found["sku"], "quantity": 2}
    placed, repeated = (call(client, "create_order", order, request_id="r1") for _ in range(2))
    conflict = call(client, "create_order", {"sku": found["sku"]}, request_id="r1")
    refused = call(client, "cancel_order", {"order_id": placed.json()["data"]["id"]})

    assert "create_order" in [tool["name"] for tool in catalog.json()["tools"]]
    assert discovery["tools_version"] == catalog.headers["etag"].strip('"')
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert placed.json()["status"] == "completed"
    assert placed.content == repeated.content
    assert repeated.headers["carmy-replayed"] == "true"
    assert rows(database, "SELECT sku, quantity FROM orders WHERE id > 1") == [("TEA-001", 2)]
    assert conflict.json()["error"]["code"] == "IDEMPOTENCY_CONFLICT"
    assert refused.json()["error"]["code"] == "CONFIRMATION_REQUIRED"


def test_each_step_of_a_restock_arrives_while_it_goes_on(client: httpx2.Client) -> None:
    stocks: list[int] = []
    frames: list[Frame] = []

    with client.stream("POST", "/agent/execute", json=restock(3), headers=STREAM) as answer:
        for frame in parse_frames(answer.iter_bytes()):
            frames.append(frame)
            if frame.event == "tool.progress":
                stocks.append(client.get("/products/CUP-001").json()["stock"])

    assert answer.headers["x-accel-buffering"] == "no"
    assert [frame.event for frame in frames] == [
        "execution.started",
        "tool.started",
        *["tool.progress"] * 3,
        "tool.completed",
        "execution.completed",
    ]
    assert stocks[:2] == [60, 60]
    assert from_json(frames[-1].data)["data"]["stock"] == 63


@pytest.mark.spec("carmy/1 7.10")
def test_hanging_up_in_the_middle_of_a_restock_stops_it(
    client: httpx2.Client, database: Path
) -> None:
    """The next restock waits for its turn: it would take ten seconds if the first went on."""
    with client.stream("POST", "/agent/execute", json=restock(100), headers=STREAM) as answer:
        frames = parse_frames(answer.iter_bytes())
        assert [next(frames).event for _ in range(3)][-1] == "tool.progress"

    after = client.post("/agent/execute", json=restock(1), headers=AGENT, timeout=5).json()

    assert after["data"] == {"sku": "CUP-001", "booked": 1, "stock": 61}
    assert rows(database, STOCK_OF_CUPS) == [(61,)]


@pytest.mark.spec("carmy/1 4.2")
def test_a_restock_that_was_broken_off_is_uncertain_for_its_caller(client: httpx2.Client) -> None:
    delivery = {**restock(100), "request_id": "delivery-7"}
    with client.stream("POST", "/agent/execute", json=delivery, headers=STREAM) as answer:
        frames = parse_frames(answer.iter_bytes())
        assert [next(frames).event for _ in range(3)][-1] == "tool.progress"
    call(client, "restock", {"sku": "CUP-001", "quantity": 1})

    again = client.post("/agent/execute", json=delivery, headers=AGENT)
    of_another = client.post("/agent/execute", json={**delivery, **restock(1)}, headers=ANNA)

    assert again.status_code == 409
    assert again.json()["error"]["code"] == "EXECUTION_UNCERTAIN"
    assert again.json()["error"]["details"]["state"] == "abandoned"
    assert of_another.json()["status"] == "completed"


def test_the_command_serves_the_shop_and_stops_when_told(database: Path) -> None:
    command = [sys.executable, "-m", "example_shop", "--port", "0", "--database", str(database)]

    with serve_command(command) as server, httpx2.Client(base_url=server.url) as client:
        found = call(client, "search_products", {"text": "cup"}).json()["data"]
        with client.stream("POST", "/agent/execute", json=restock(100), headers=STREAM) as answer:
            frames = parse_frames(answer.iter_bytes())
            assert [next(frames).event for _ in range(3)][-1] == "tool.progress"
        code = server.stop()

    assert [product["sku"] for product in found] == ["CUP-001", "CUP-002"]
    # uvicorn ends itself by the signal that it was sent, once it has cleaned up.
    assert code in (0, -signal.SIGTERM)
    assert "Application shutdown complete." in server.output
    assert "Traceback" not in server.output
    assert rows(database, STOCK_OF_CUPS) == [(60,)]
