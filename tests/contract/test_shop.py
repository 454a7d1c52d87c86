"""The wire contract's cases against the example shop. Source: carmy/1, section 7."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import anyio
import pytest
from fastapi.testclient import TestClient
from pydantic_core import from_json

from example_shop.app import create_app
from tests.support.asgi import connect, execute, lifespan
from tests.support.shop import AGENT, ANNA, GUEST, call, rows
from tests.support.sse import parse_frames


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def client(database: Path) -> Iterator[TestClient]:
    with TestClient(create_app(database, seconds_per_unit=0)) as client:
        yield client


@pytest.mark.spec("carmy/1 7.1")
def test_discovery_names_the_protocol_and_the_shop(client: TestClient) -> None:
    document = client.get("/.well-known/agent", headers=GUEST).json()

    assert document == {
        "protocol": "carmy/1",
        "server": "example-shop",
        "capabilities": ["tools", "streaming", "idempotency"],
        "tools_url": "/agent/tools",
        "execute_url": "/agent/execute",
        "tools_version": document["tools_version"],
    }


@pytest.mark.spec("carmy/1 7.2")
def test_the_catalog_is_answered_once_and_confirmed_by_its_tag(client: TestClient) -> None:
    first = client.get("/agent/tools")
    tag = first.headers["etag"]

    assert tag == f'"{sha256(first.content).hexdigest()}"'
    assert client.get("/.well-known/agent").json()["tools_version"] == tag.strip('"')
    for match in (tag, "*", f"W/{tag}", f'"other", {tag}'):
        again = client.get("/agent/tools", headers={"If-None-Match": match})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
        assert again.headers["cache-control"] == "private, max-age=60"
    assert client.get("/agent/tools", headers={"If-None-Match": '"other"'}).status_code == 200


def test_the_catalog_shows_what_an_agent_may_set_and_nothing_else(client: TestClient) -> None:
    tools = {tool["name"]: tool for tool in client.get("/agent/tools").json()["tools"]}

    assert {name: set(tool["input_schema"]["properties"]) for name, tool in tools.items()} == {
        "cancel_order": {"order_id"},
        "create_order": {"sku", "quantity"},
        "get_product": {"sku"},
        "restock": {"sku", "quantity"},
        "search_products": {"text", "in_stock", "limit"},
        "track_order": {"order_id"},
    }
    assert tools["cancel_order"]["effect"] == "destructive"
    assert tools["cancel_order"]["confirmation"] == "required"
    assert tools["create_order"]["description"] == "Place an order."
    quantity = tools["create_order"]["input_schema"]["properties"]["quantity"]
    assert quantity["description"] == "How many to order."


def test_a_search_may_be_cached_and_an_order_may_not(client: TestClient) -> None:
    search = call(client, "search_products", {"text": "tea", "in_stock": True}).json()
    order = call(client, "create_order", {"sku": "TEA-001"}).json()

    assert [product["sku"] for product in search["data"]] == [
        "TEA-002",
        "TEA-001",
        "CUP-001",
        "POT-001",
    ]
    assert search["_agent"] == {"cacheable": True, "next_actions": []}
    assert order["_agent"]["cacheable"] is False


def test_an_order_suggests_what_to_do_next(client: TestClient) -> None:
    order = call(client, "create_order", {"sku": "TEA-001", "quantity": 2}).json()

    assert order["status"] == "completed"
    assert order["data"] == {
        "id": 2,
        "sku": "TEA-001",
        "quantity": 2,
        "total_cents": 1580,
        "status": "placed",
        "placed_by": "shop-agent",
    }
    assert order["_agent"]["next_actions"] == [
        {
            "tool": "track_order",
            "arguments": {"order_id": 2},
            "reason": "See what happens to the order.",
        }
    ]


@pytest.mark.spec("carmy/1 7.3")
def test_an_order_sent_twice_is_placed_once(client: TestClient, database: Path) -> None:
    first = call(client, "create_order", {"sku": "TEA-001"}, request_id="r1")
    second = call(client, "create_order", {"sku": "TEA-001"}, request_id="r1")

    assert first.content == second.content
    assert "carmy-replayed" not in first.headers
    assert second.headers["carmy-replayed"] == "true"
    assert rows(database, "SELECT count(*) FROM orders WHERE placed_by = 'shop-agent'") == [(1,)]
    assert rows(database, "SELECT stock FROM products WHERE sku = 'TEA-001'") == [(39,)]


@pytest.mark.spec("carmy/1 7.3")
def test_a_request_id_belongs_to_its_caller_and_its_arguments(client: TestClient) -> None:
    call(client, "create_order", {"sku": "TEA-001"}, request_id="r1")

    conflict = call(client, "create_order", {"sku": "TEA-002"}, request_id="r1")
    of_another = call(client, "create_order", {"sku": "TEA-002"}, request_id="r1", headers=ANNA)

    assert conflict.status_code == 409
    assert conflict.json()["error"]["code"] == "IDEMPOTENCY_CONFLICT"
    assert of_another.json()["data"]["placed_by"] == "anna"


@pytest.mark.spec("carmy/1 7.6")
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"tool": "create_ordr"}, 404, "TOOL_NOT_FOUND"),
        ({"tool": "search_products", "context": {"principal": "anna"}}, 400, "INVALID_REQUEST"),
        ({"tool": "search_products", "arguments": None}, 400, "INVALID_ARGUMENTS"),
        ({"tool": "search_products", "arguments": {"in_stok": True}}, 400, "INVALID_ARGUMENTS"),
        ({"tool": "get_product", "arguments": {}}, 400, "INVALID_ARGUMENTS"),
        ({"tool": "search_products", "request_id": ""}, 400, "INVALID_ID"),
        ({"tool": "search_products", "request_id": "x" * 257}, 400, "INVALID_ID"),
    ],
    ids=["tool", "context", "null", "misspelt", "missing", "empty-id", "long-id"],
)
def test_a_call_that_does_not_fit_is_refused(
    client: TestClient, body: dict[str, object], status: int, code: str
) -> None:
    answer = client.post("/agent/execute", json=body, headers=AGENT)

    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code


@pytest.mark.spec("carmy/1 7.6")
def test_a_null_request_id_is_none_at_all(client: TestClient) -> None:
    body = {"tool": "create_order", "arguments": {"sku": "TEA-001"}, "request_id": None}

    orders = [client.post("/agent/execute", json=body, headers=AGENT).json() for _ in range(2)]

    assert [order["data"]["id"] for order in orders] == [2, 3]


@pytest.mark.spec("carmy/1 2.3")
def test_a_streamed_restock_tells_how_far_it_is(client: TestClient) -> None:
    answer = client.post(
        "/agent/execute",
        json={"tool": "restock", "arguments": {"sku": "CUP-002", "quantity": 2}},
        headers={**AGENT, "Accept": "text/event-stream"},
    )
    frames = list(parse_frames([answer.content]))

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [frame.event for frame in frames] == [
        "execution.started",
        "tool.started",
        "tool.progress",
        "tool.progress",
        "tool.completed",
        "execution.completed",
    ]
    progress = from_json(frames[2].data)
    assert (progress["progress"], progress["total"]) == (1.0, 2.0)
    assert progress["message"] == "1 of 2 checked"
    completed = from_json(frames[-1].data)
    assert completed["data"] == {"sku": "CUP-002", "booked": 2, "stock": 2}
    assert completed["replayed"] is False


def test_tracking_hands_out_each_step_and_answers_with_all(client: TestClient) -> None:
    answer = client.post(
        "/agent/execute",
        json={"tool": "track_order", "arguments": {"order_id": 1}},
        headers={**AGENT, "Accept": "text/event-stream"},
    )
    frames = list(parse_frames([answer.content]))

    partial = [from_json(f.data)["partial"] for f in frames if f.event == "tool.progress"]
    assert [step["status"] for step in partial] == ["placed", "sent", "delivered"]
    assert from_json(frames[-1].data)["data"] == partial


@pytest.mark.spec("carmy/1 7.11")
def test_cancelling_needs_the_permission_to_confirm_it(client: TestClient, database: Path) -> None:
    order = call(client, "create_order", {"sku": "POT-001"}).json()["data"]

    refused = call(client, "cancel_order", {"order_id": order["id"]})
    blind = call(client, "cancel_order", {"nonsense": True})
    confirmed = call(client, "cancel_order", {"order_id": order["id"]}, headers=ANNA)

    assert refused.status_code == blind.status_code == 403
    assert refused.json()["error"]["code"] == "CONFIRMATION_REQUIRED"
    assert blind.json()["error"]["code"] == "CONFIRMATION_REQUIRED"
    assert confirmed.json()["data"]["status"] == "cancelled"
    assert rows(database, "SELECT stock FROM products WHERE sku = 'POT-001'") == [(5,)]


@pytest.mark.spec("carmy/1 7.12")
def test_a_refused_request_id_is_free_and_a_failed_one_is_taken(
    client: TestClient, database: Path
) -> None:
    refused = call(client, "create_order", {"sku": "POT-001", "quantity": 0}, request_id="r1")
    placed = call(client, "create_order", {"sku": "POT-001", "quantity": 5}, request_id="r1")
    failed = call(client, "create_order", {"sku": "POT-001"}, request_id="r2")
    call(client, "restock", {"sku": "POT-001", "quantity": 1})
    repeated = call(client, "create_order", {"sku": "POT-001"}, request_id="r2")

    assert refused.json()["error"]["code"] == "INVALID_ARGUMENTS"
    assert placed.json()["status"] == "completed"
    assert failed.json()["error"]["code"] == "OUT_OF_STOCK"
    assert repeated.content == failed.content
    assert rows(database, "SELECT stock FROM products WHERE sku = 'POT-001'") == [(1,)]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_an_unknown_token_is_refused_before_the_body_is_read(
    client: TestClient, accept: str
) -> None:
    answer = client.post(
        "/agent/execute",
        content=b"no json",
        headers={"Authorization": "Bearer wrong", "Accept": accept},
    )

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert list(answer.json()) == ["error"]
    assert answer.json()["error"]["code"] == "UNAUTHENTICATED"


def test_a_guest_can_look_around_and_not_order(client: TestClient) -> None:
    found = call(client, "search_products", headers=GUEST)
    ordered = call(client, "create_order", {"sku": "TEA-001"}, headers=GUEST)

    assert found.status_code == 200
    assert ordered.status_code == 403
    assert ordered.json()["error"]["code"] == "FORBIDDEN"


def test_rest_endpoints_and_tools_fail_alike(client: TestClient) -> None:
    over_rest = client.get("/products/NONE")
    by_tool = call(client, "get_product", {"sku": "NONE"})

    assert over_rest.status_code == by_tool.status_code == 404
    assert over_rest.json()["error"] == by_tool.json()["error"]
    assert by_tool.json()["error"]["suggested_action"] == "search_products"


def test_rest_endpoints_and_tools_share_the_orders(client: TestClient) -> None:
    placed = client.post("/orders", json={"sku": "TEA-002", "quantity": 3}, headers=ANNA)
    order = placed.json()

    tracked = call(client, "track_order", {"order_id": order["id"]}).json()["data"]
    cancelled = client.post(f"/orders/{order['id']}/cancel", headers=ANNA)
    read = client.get(f"/orders/{order['id']}", headers=AGENT)
    again = client.post(f"/orders/{order['id']}/cancel", headers=ANNA)

    assert placed.status_code == 201
    assert [step["status"] for step in tracked] == ["placed"]
    assert cancelled.json() == read.json() == order | {"status": "cancelled"}
    assert again.json()["error"]["code"] == "ORDER_NOT_CANCELLABLE"


def test_rest_endpoints_keep_fastapis_own_refusals(client: TestClient) -> None:
    assert client.post("/orders", json={"sku": "TEA-001"}).status_code == 401
    assert client.post("/orders", json={"sku": "TEA-001"}, headers=GUEST).status_code == 403
    assert client.post("/orders", json={}, headers=ANNA).status_code == 422
    assert client.get("/orders/99", headers=ANNA).status_code == 404
    assert [p["sku"] for p in client.get("/products?text=pot").json()] == ["POT-001"]


def test_what_was_ordered_is_still_there_after_a_restart(database: Path) -> None:
    with TestClient(create_app(database)) as client:
        call(client, "create_order", {"sku": "TEA-001", "quantity": 40})
    with TestClient(create_app(database)) as client:
        product = call(client, "get_product", {"sku": "TEA-001"}).json()["data"]

    assert product["stock"] == 0


async def test_simultaneous_orders_never_sell_what_is_not_there(database: Path) -> None:
    app = create_app(database)
    codes: list[str] = []

    async with lifespan(app) as state:

        async def by_tool() -> None:
            order = {"sku": "POT-001"}
            async with execute(app, "create_order", order, headers=AGENT, state=state) as answer:
                body = await answer.json()
            codes.append(body.get("error", {"code": "placed"})["code"])

        async def over_rest() -> None:
            headers = {**AGENT, "Content-Type": "application/json"}
            async with connect(
                app,
                "/orders",
                method="POST",
                headers=headers,
                body=b'{"sku":"POT-001"}',
                state=state,
            ) as answer:
                body = await answer.json()
            codes.append(body.get("error", {"code": "placed"})["code"])

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(by_tool)
                    tasks.start_soon(over_rest)

    assert sorted(codes) == ["OUT_OF_STOCK"] * 7 + ["placed"] * 5
    assert rows(database, "SELECT stock FROM products WHERE sku = 'POT-001'") == [(0,)]
    assert rows(database, "SELECT count(*) FROM orders WHERE sku = 'POT-001'") == [(5,)]
