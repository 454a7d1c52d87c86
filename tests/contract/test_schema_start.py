"""What a schema can't say stops the start, and names the tool, the parameter and the mend.

Source: carmy/1, sections 1.2 and 4.5.
"""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from fastapi.testclient import TestClient
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    Tag,
)

from fastapi_carmy import AgentRouter
from fastapi_carmy.errors import ToolError
from fastapi_carmy.injection import make_tool
from fastapi_carmy.schemas import UnresolvedAnnotationError
from tests.support.calls import app_of, post
from tests.support.tools import validate

Function = Callable[..., Any]


class Deep(BaseModel):
    first: str = Field(validation_alias=AliasPath("names", 0))


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    first: str = Field(validation_alias=AliasPath("names", 0))


class Ratio(BaseModel):
    value: float = 0


def divide(value: int) -> float:
    return 1 / value


def _kind(value: object) -> str:
    return "a"


async def nan_in_a_model(x: Ratio = Ratio(value=float("nan"))) -> None: ...  # noqa: B008
async def infinite_key(x: dict[float, int] = {float("inf"): 1}) -> None: ...  # noqa: B006
async def raw_bytes(x: bytes = b"\xff") -> None: ...
async def an_object(x: Any = object()) -> None: ...  # noqa: B008
async def a_function(x: Any = len) -> None: ...
async def surrogate(x: list[str] = ["\ud800"]) -> None: ...  # noqa: B006
async def not_a_decimal(x: Decimal = Decimal("NaN")) -> None: ...
async def failing_validator(x: Annotated[int, AfterValidator(divide)] = 0) -> None: ...
async def a_class(x: type[int]) -> None: ...
async def tuple_keys(x: dict[tuple[int, int], str]) -> None: ...
async def null_keys(x: dict[None, str]) -> None: ...
async def model_keys(x: dict[Deep, str]) -> None: ...
async def only_a_path(x: Deep) -> None: ...
async def only_a_path_here(
    x: Annotated[str, Field(validation_alias=AliasPath("a", 0))],
) -> None: ...
async def unknown_name(ok: int, x: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def unknown_inside(x: list["Missing"]) -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def unknown_attribute(x: "subprocess.Missing") -> None: ...  # type: ignore[name-defined]
async def bad_syntax(x: "list[") -> None: ...  # type: ignore[valid-type]  # noqa: F722


@pytest.mark.spec("carmy/1 4.5")
@pytest.mark.parametrize(
    "function",
    [
        nan_in_a_model, infinite_key, raw_bytes, an_object, a_function, surrogate, not_a_decimal,
        failing_validator, a_class, tuple_keys, null_keys, model_keys, only_a_path,
        only_a_path_here, unknown_name, unknown_inside, unknown_attribute, bad_syntax,
    ],
)  # fmt: skip
def test_what_json_cannot_hold_names_its_parameter(function: Function) -> None:
    with pytest.raises(ToolError) as caught:
        make_tool(function, effect="none")

    assert (caught.value.tool, caught.value.parameter) == (function.__name__, "x")
    assert f"Tool {function.__name__!r}, parameter 'x': " in str(caught.value)


def test_what_is_not_defined_can_be_tried_again() -> None:
    async def give() -> "Missing": ...  # type: ignore[name-defined]  # noqa: F821

    for function, parameter in ((unknown_name, "x"), (unknown_inside, "x"), (give, "return")):
        with pytest.raises(UnresolvedAnnotationError) as caught:
            make_tool(function, effect="none")

        assert caught.value.parameter == parameter


def test_a_type_whose_package_is_missing_names_its_parameter() -> None:
    class Needy:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: object) -> Any:
            raise ImportError("install `needs`")

    async def take(x: Needy) -> None: ...

    with pytest.raises(ToolError, match="install `needs`") as caught:
        make_tool(take, effect="none")

    assert caught.value.parameter == "x"


# ---- what is narrowed, since pydantic's schema is wider than its validator


def schema_of(annotation: Any, **default: Any) -> Any:
    async def take(x: Any) -> None: ...

    take.__annotations__ = {"x": annotation, "return": None}
    if default:
        take.__defaults__ = (default["default"],)
    return make_tool(take, effect="none").spec.input_schema


def test_a_path_beside_a_name_is_fine() -> None:
    named = Annotated[str, Field(validation_alias=AliasChoices("a", AliasPath("b", 0)))]

    assert list(schema_of(named)["properties"]) == ["a"]
    assert list(schema_of(ByName)["$defs"]["ByName"]["properties"]) == ["first"]


def test_a_secret_default_is_not_shown() -> None:
    schema = schema_of(SecretStr, default=SecretStr("x"))

    assert "default" not in schema["properties"]["x"]
    assert "required" not in schema


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


def test_a_tag_must_be_there_even_if_it_has_a_default() -> None:
    by_name = schema_of(Annotated[Cat | Dog, Field(discriminator="kind")])["properties"]["x"]
    choices = Annotated[Annotated[Cat, Tag("a")] | Annotated[Dog, Tag("b")], Discriminator(_kind)]
    by_function = schema_of(choices)["properties"]["x"]

    assert by_name["required"] == ["kind"]
    assert "oneOf" in by_name
    # Both choices may look right.
    assert "oneOf" not in by_function
    assert len(by_function["anyOf"]) == 2


SCRIPT = """
from dataclasses import dataclass, field
from pydantic import BaseModel
from fastapi_carmy.catalog import Catalog
from fastapi_carmy.injection import make_tool

class Tag(BaseModel):
    names: set[str] = {"x", "y", "z", "w"}

async def find(
    plain: set[str] = {"s", "m", "l"},
    nested: dict[str, list[set[str]]] = {"a": [{"s", "m", "l"}]},
    model: Tag = Tag(),
    either: frozenset[int | str] | None = frozenset({"a", 1, "b", 2}),
) -> set[str]: ...

print(Catalog([make_tool(find, effect="read")]).version)
"""


@pytest.mark.spec("carmy/1 1.2")
def test_sets_inside_of_defaults_are_the_same_bytes_in_every_process() -> None:
    outputs = {
        subprocess.run(  # noqa: S603
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2", "3")
    }

    assert len(outputs) == 1


# ---- what the tool takes though its schema does not say so


@pytest.mark.parametrize(
    ("annotation", "sent", "taken"),
    [
        (int, "3", 3),
        (int, 3.0, 3),
        (float, "1.5", 1.5),
        (bool, "yes", True),
        (bool, 0, False),
        (set[int], [1, 1], {1}),
        (Decimal, " 1.5 ", Decimal("1.5")),
    ],
)
def test_a_value_that_reads_as_the_type_is_taken_as_in_fastapi(
    annotation: Any, sent: object, taken: object
) -> None:
    async def take(x: Any) -> None: ...

    take.__annotations__ = {"x": annotation, "return": None}

    assert validate(make_tool(take, effect="none"), {"x": sent}) == {"x": taken}


def test_a_strict_tool_takes_nothing_else() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def take(x: Annotated[int, Field(strict=True)]) -> int:
        return x

    with TestClient(app_of(agent)) as client:
        statuses = [post(client, "take", {"x": value}).status_code for value in (3, "3", True)]

    assert statuses == [200, 400, 400]


class Heavy:
    """What stands beside a tool in the function that registers it."""


async def takes_later(later: "Later") -> str:
    return later.name


def registered_on(agent: AgentRouter, function: Function) -> "weakref.ref[Heavy]":
    heavy = Heavy()
    agent.add_tool(function, effect="read")
    return weakref.ref(heavy)


async def takes_number(x: int) -> int:
    return x


def test_a_tool_keeps_no_names_of_where_it_is_registered() -> None:
    seen = registered_on(AgentRouter(), takes_number)
    gc.collect()

    assert seen() is None


def test_a_tool_whose_annotation_is_pending_keeps_the_names_until_the_application_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = AgentRouter()
    later = globals()["Later"]
    monkeypatch.delitem(globals(), "Later")
    seen = registered_on(agent, takes_later)
    monkeypatch.setitem(globals(), "Later", later)
    gc.collect()
    is_kept = seen() is not None

    with TestClient(app_of(agent)) as client:
        assert post(client, "takes_later", {"later": {"name": "x"}}).json()["data"] == "x"

    gc.collect()
    assert (is_kept, seen()) == (True, None)


class Later(BaseModel):
    name: str
