"""What a schema says is true: calls that it allows are taken, answers are as it says."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json, to_json
from typing_extensions import TypedDict

from fastapi_carmy import AgentRouter, Arguments
from fastapi_carmy.envelope import decode
from fastapi_carmy.injection import make_tool
from fastapi_carmy.tool import Tool
from tests.support.calls import app_of


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Item(BaseModel):
    sku: Annotated[str, Field(min_length=1, max_length=8)]
    size: Size = Size.SMALL
    price: Annotated[float, Field(ge=0, le=1_000)] | None = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Renamed(BaseModel):
    order_id: Annotated[int, Field(alias="orderId")]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Pair(NamedTuple):
    left: int
    right: str


class Typed(TypedDict, total=False):
    a: int
    b: list[str]


@dataclass
class Data:
    x: int
    y: str = "y"


def tool(function: Callable[..., object]) -> Tool:
    return make_tool(function, effect="none", name="tool")


async def scalars(a: int, b: float, c: bool, d: str, e: None = None) -> None: ...
async def limits(
    a: Annotated[int, Field(ge=1, lt=10)], b: Annotated[list[int], Field(max_length=2)]
) -> None: ...
async def models(item: Item, others: list[Item], by_name: dict[str, Item]) -> None: ...
async def unions(
    a: int | str | None, pet: Annotated[Cat | Dog, Field(discriminator="kind")]
) -> None: ...
async def literals(a: Literal["x", 1] | None, size: Size) -> None: ...
async def shapes(pair: Pair, typed: Typed, data: Data, many: tuple[int, ...]) -> None: ...
async def aliases(renamed: Renamed, a: Annotated[int, Field(alias="theA")]) -> None: ...
async def whole(item: Annotated[Item, Arguments]) -> None: ...
async def whole_open(item: Annotated[Open, Arguments]) -> None: ...
async def defaults(a: int = 1, b: list[str] = [], c: str | None = None) -> None: ...  # noqa: B006


TOOLS = [scalars, limits, models, unions, literals, shapes, aliases, whole, whole_open, defaults]
by_name = pytest.mark.parametrize("function", TOOLS, ids=lambda function: function.__name__)


@cache
def calls(function: Callable[..., object]) -> st.SearchStrategy[Any]:
    """Return the bodies that the OpenAPI document allows where `function` is the only tool."""
    agent = AgentRouter()
    agent.add_tool(function, effect="none", name="tool")
    document = schemathesis.openapi.from_dict(app_of(agent).openapi())
    return document["/agent/execute"]["POST"].as_strategy().map(lambda case: case.body)


@by_name
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_what_the_schema_allows_the_tool_takes(
    function: Callable[..., object], data: st.DataObject
) -> None:
    made = tool(function)
    body = data.draw(calls(function))

    call = decode(to_json(body), {"tool": made}.get)

    assert Draft202012Validator(made.spec.input_schema).is_valid(body.get("arguments", {}))
    assert call.invalid is None, (body, call.invalid)


@by_name
@given(
    arguments=st.dictionaries(
        st.sampled_from(["a", "b", "item", "pet", "sku", "name", "kind", "orderId", "a_"]),
        st.recursive(
            st.none() | st.lists(st.none(), max_size=2) | st.just({"unknown": []}),
            lambda inner: st.dictionaries(st.sampled_from(["kind", "x"]), inner, max_size=2),
        ),
        max_size=3,
    )
)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_what_has_the_wrong_shape_is_refused_by_both(
    function: Callable[..., object], arguments: dict[str, object]
) -> None:
    """Shapes only: pydantic reads `"1"` as 1 where a number is wanted, as FastAPI does."""
    made = tool(function)
    is_allowed = Draft202012Validator(made.spec.input_schema).is_valid(arguments)

    call = decode(to_json({"tool": "tool", "arguments": arguments}), {"tool": made}.get)

    assert (call.invalid is None) is is_allowed


OUTPUTS: list[tuple[Any, st.SearchStrategy[object]]] = [
    (list[int], st.lists(st.integers())),
    (Item, st.builds(Item, sku=st.text(min_size=1, max_size=8), price=st.none() | st.just(1.5))),
    (Renamed, st.builds(Renamed, orderId=st.integers())),
    (Cat | Dog | None, st.none() | st.builds(Dog, kind=st.just("dog"), name=st.text())),
    (dict[str, date], st.dictionaries(st.text(), st.dates())),
    (Pair, st.builds(Pair, st.integers(), st.text())),
    (Data, st.builds(Data, st.integers(), st.text())),
    (bytes, st.text().map(str.encode)),
    (set[Size], st.sets(st.sampled_from(Size))),
]


@pytest.mark.parametrize(("returns", "values"), OUTPUTS, ids=range(len(OUTPUTS)))
@given(data=st.data())
@settings(max_examples=25)
def test_each_answer_is_what_the_schema_says(
    returns: Any, values: st.SearchStrategy[object], data: st.DataObject
) -> None:
    async def give() -> None: ...

    give.__annotations__["return"] = returns
    made = tool(give)

    written = from_json(made.output.dump(data.draw(values)), allow_inf_nan=False)

    Draft202012Validator(made.spec.output_schema).validate(written)
