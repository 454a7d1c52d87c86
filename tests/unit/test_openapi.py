"""The three routes in the host's OpenAPI document."""

from collections.abc import AsyncIterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from fastapi import Depends, FastAPI, HTTPException, Security
from fastapi.security import HTTPBearer
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import AnyUrl, BaseModel, Field

from fastapi_carmy import AgentRouter, Arguments, Caller
from tests.support.calls import app_of

PATHS = ["/.well-known/agent", "/agent/execute", "/agent/tools"]


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Item(BaseModel):
    sku: str
    size: Size
    parts: "list[Item]" = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]


def shop() -> AgentRouter:
    agent = AgentRouter(server="shop")

    @agent.tool(effect="write")
    async def order(item: Item, quantity: int = 1) -> Item:
        """Order an item.

        Args:
            item: What to order.
        """
        return item

    @agent.tool(effect="read")
    async def adopt(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> Cat | Dog:
        """Adopt a pet."""
        return pet

    @agent.tool(effect="read")
    async def track(order_id: int) -> AsyncIterator[Item]:
        """Track an order."""
        yield Item(sku="TEA", size=Size.SMALL)

    @agent.tool(effect="none")
    async def whole(item: Annotated[Item, Arguments]) -> None:
        """Take everything."""

    return agent


def document(app: FastAPI) -> dict[str, Any]:
    found: dict[str, Any] = app.openapi()
    return found


def body_of(app: FastAPI, path: str = "/agent/execute") -> dict[str, Any]:
    operation = document(app)["paths"][path]["post"]
    content: dict[str, Any] = operation["requestBody"]["content"]["application/json"]
    return content


def test_the_three_routes_are_documented_and_tagged() -> None:
    paths = document(app_of(shop()))["paths"]

    assert sorted(paths) == PATHS
    for path in PATHS:
        (operation,) = paths[path].values()
        assert operation["tags"] == ["agent"]
        assert operation["summary"]
        assert operation["description"]


def test_the_routers_own_tags_replace_ours() -> None:
    paths = document(app_of(AgentRouter(tags=["shop"])))["paths"]

    assert [op["tags"] for path in paths.values() for op in path.values()] == [["shop"]] * 3


@pytest.mark.parametrize("agent", [shop(), AgentRouter()], ids=["tools", "empty"])
def test_the_document_is_valid_openapi(agent: AgentRouter) -> None:
    app = app_of(agent, prefix="/api")

    @app.get("/own")
    async def own(item: int) -> int:
        return item

    found = document(app)

    assert found["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(found).validate()


def test_the_body_is_one_schema_a_tool_with_an_example_each() -> None:
    body = body_of(app_of(shop()))

    schemas = {schema["properties"]["tool"]["const"]: schema for schema in body["schema"]["oneOf"]}
    assert list(schemas) == list(body["examples"]) == ["adopt", "order", "track", "whole"]
    order = schemas["order"]
    assert order["description"] == "Order an item."
    assert order["properties"]["arguments"]["properties"]["item"]["description"] == "What to order."
    assert order["additionalProperties"] is False
    assert set(order["properties"]) == {"tool", "arguments", "request_id"}
    for name, example in body["examples"].items():
        assert example["summary"]
        valid = [s for s in schemas if Draft202012Validator(schemas[s]).is_valid(example["value"])]
        assert valid == [name]


class Whole(BaseModel):
    flag: bool
    share: Annotated[float, Field(gt=0, lt=1)]
    count: Annotated[int, Field(ge=5)]
    few: Annotated[int, Field(lt=-3)]
    even: Annotated[int, Field(multiple_of=4, ge=1)]
    name: Annotated[str, Field(min_length=20, max_length=30)]
    short: Annotated[str, Field(max_length=3)]
    code: Annotated[str, Field(pattern="^[A-Z]{3}$", examples=["TEA"])]
    day: date
    moment: datetime
    clock: time
    span: timedelta
    id: UUID
    link: AnyUrl
    address: IPv4Address
    price: Decimal
    data: bytes
    size: Size
    how: Literal["mail", "post"]
    maybe: str | None
    either: int | str
    pair: tuple[int, str]
    several: Annotated[list[int], Field(min_length=2)]
    different: Annotated[set[int], Field(min_length=2)]
    counts: Annotated[dict[str, int], Field(min_length=1)]
    item: Item
    anything: Any


@pytest.mark.parametrize("name", list(Whole.model_fields))
def test_each_example_is_a_call_that_the_tool_takes(name: str) -> None:
    agent = AgentRouter()
    field = Whole.model_fields[name]
    annotation = Annotated[field.annotation, field]  # type: ignore[name-defined]

    async def take(value: Any) -> None: ...

    take.__annotations__["value"] = annotation
    agent.add_tool(take, effect="none")
    app = app_of(agent)
    example = body_of(app)["examples"]["take"]["value"]

    with TestClient(app) as client:
        answer = client.post("/agent/execute", json=example)

    assert answer.json().get("error") is None, example


def test_an_example_of_a_write_shows_a_request_id() -> None:
    examples = body_of(app_of(shop()))["examples"]

    assert "request_id" in examples["order"]["value"]
    assert "request_id" not in examples["track"]["value"]


def test_tools_that_are_added_after_the_include_are_documented() -> None:
    agent = AgentRouter()
    app = app_of(agent)

    @agent.tool(effect="read")
    async def late() -> None: ...

    assert list(body_of(app)["examples"]) == ["late"]


def test_what_is_included_twice_is_documented_twice() -> None:
    app = FastAPI()
    agent = shop()
    app.include_router(agent, prefix="/v1")
    app.include_router(agent, prefix="/v2")

    found = document(app)

    assert len(found["paths"]) == 6
    ids = [op["operationId"] for path in found["paths"].values() for op in path.values()]
    assert len(set(ids)) == 6
    assert body_of(app, "/v1/agent/execute") == body_of(app, "/v2/agent/execute")


@pytest.mark.parametrize("place", ["router", "include"])
def test_the_routes_can_be_hidden(place: str) -> None:
    is_shown = {"include_in_schema": False}
    agent = AgentRouter(**(is_shown if place == "router" else {}))  # type: ignore[arg-type]
    app = FastAPI()
    app.include_router(agent, **(is_shown if place == "include" else {}))  # type: ignore[arg-type]

    assert document(app)["paths"] == {}


def test_each_status_is_documented_with_the_error_it_carries() -> None:
    found = document(app_of(shop()))
    responses = found["paths"]["/agent/execute"]["post"]["responses"]

    assert {"200", "400", "403", "404", "408", "409", "413", "500", "503", "504"} <= set(responses)
    for status, response in responses.items():
        if status != "200":
            schema = response["content"]["application/json"]["schema"]
            name = schema["$ref"].removeprefix("#/components/schemas/")
            assert "error" in found["components"]["schemas"][name]["properties"]
    assert set(responses["200"]["content"]) == {"application/json", "text/event-stream"}
    assert "422" not in responses


def test_answers_fit_what_is_documented() -> None:
    app = app_of(shop())
    found = document(app)
    responses = found["paths"]["/agent/execute"]["post"]["responses"]

    def schema_of(status: str) -> dict[str, Any]:
        schema = responses[status]["content"]["application/json"]["schema"]
        return {**schema, "components": found["components"]}

    item = {"sku": "TEA", "size": "s"}
    with TestClient(app) as client:
        good = client.post("/agent/execute", json={"tool": "order", "arguments": {"item": item}})
        bad = client.post("/agent/execute", json={"tool": "order"})
        undecodable = client.post("/agent/execute", json=[])

    Draft202012Validator(schema_of("200")).validate(good.json())
    for answer in (bad, undecodable):
        Draft202012Validator(schema_of("400")).validate(answer.json())


def test_guards_show_their_security_scheme() -> None:
    def caller(token: Annotated[object, Security(HTTPBearer())]) -> Caller:
        return Caller()

    def guard(tenant: str) -> None:
        if tenant == "none":
            raise HTTPException(403)

    app = app_of(AgentRouter(caller=caller, dependencies=[Depends(guard)]))

    execute = document(app)["paths"]["/agent/execute"]["post"]

    assert execute["security"] == [{"HTTPBearer": []}]
    assert [parameter["name"] for parameter in execute["parameters"]] == ["tenant"]


def test_the_docs_page_is_served() -> None:
    with TestClient(app_of(shop())) as client:
        page = client.get("/docs")
        served = client.get("/openapi.json").json()

    assert page.status_code == 200
    assert list(served["paths"]["/agent/execute"]["post"]["requestBody"]["content"]) == [
        "application/json"
    ]
