"""One row a type: what fits it, what does not, and where its schema is known to be wider."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from inspect import Parameter
from ipaddress import IPv4Address, IPv6Address
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Body, Query
from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]
from pydantic import (
    UUID4,
    AliasChoices,
    AwareDatetime,
    Field,
    HttpUrl,
    Json,
    JsonValue,
    SecretStr,
    StrictBool,
    StringConstraints,
)
from typing_extensions import Doc, TypeAliasType

from fastapi_carmy.injection import make_tool
from fastapi_carmy.signature import Arguments
from fastapi_carmy.tool import Tool
from tests.support.postponed_types import Branch
from tests.support.types import (
    Account,
    Aliased,
    Animal,
    Colour,
    Couple,
    Drawing,
    Even,
    Invoice,
    Labelled,
    Level,
    Mixed,
    Movement,
    Numbers,
    Page,
    Place,
    Span,
    Strict,
    Tree,
    Worker,
)

__all__ = ("TABLE", "Row", "accepts")

Short = TypeAliasType("Short", Annotated[str, Field(max_length=3)])


@dataclass(frozen=True)
class Row:
    """One type of a parameter, and of a result."""

    name: str
    annotation: Any
    fits: Sequence[object]
    """JSON values, as pydantic writes them."""
    fails: Sequence[object] = (object, {"no": ["such", {"thing": 1}]})
    """JSON values that both schema and tool refuse; `object` stands for nothing at all."""
    default: Any = Parameter.empty
    returns: Any = None
    """The result's type, where it is another."""
    wire_name: str = "value"
    is_whole: bool = False
    wider: str | None = None
    """Why the schema allows what the tool refuses, when it does."""

    def tool(self) -> Tool:
        """Return a tool that takes the type and gives it back."""

        async def take(value: Any) -> Any:
            return value

        take.__annotations__ = {"value": self.annotation, "return": self.returns or self.annotation}
        if self.default is not Parameter.empty:
            take.__defaults__ = (self.default,)
        return make_tool(take, effect="none")

    def arguments(self, value: object) -> dict[str, object]:
        """Return the arguments that hand `value` to the tool."""
        if self.is_whole:
            assert isinstance(value, dict)
            return value
        return {} if value is object else {self.wire_name: value}


def accepts(schema: Mapping[str, object], value: object) -> bool:
    """Tell whether `value` fits a schema, formats included as far as they are known."""
    return bool(Draft202012Validator(dict(schema), format_checker=FORMATS).is_valid(value))


# A time without its zone is one to Python; to RFC 3339 it is not.
FORMATS = FormatChecker(["date", "ipv4", "ipv6", "uuid"])
UUID_TEXT = "12345678-1234-4234-8234-123456789abc"
BOUNDS = "no pattern holds the bounds of a number that is written as text"
FORMAT = "the format is pydantic's own; to others it is any text"

TABLE: Sequence[Row] = (
    Row("int", int, [0, -1, 2**53 + 1, 2**64, 10**50], [1.5, "x", None, [1], object]),
    Row("bounded int", Annotated[int, Field(ge=-5, lt=10)], [-5, 9], [-6, 10, 1.5]),
    Row("multiples", Even, [0, -4, 10**20], [3, None]),
    Row("float", float, [0.5, 1.0, -1e300], ["x", None, [1.0]]),
    Row("strict bool", StrictBool, [True, False], [0, "true", None]),
    Row("text", str, ["", "123", "null", "1e999", "é"], [1, None, ["a"]]),
    Row("pattern", Annotated[str, Field(pattern="^[a-c]{2,3}$")], ["ab", "abc"], ["a", "abcd", 1]),
    Row(
        "constraints",
        Annotated[str, StringConstraints(min_length=2, max_length=4)],
        ["ab", "éééé"],
        ["a", "abcde"],
    ),
    Row("a named alias", Short, ["abc"], ["abcd", 1]),
    Row("anything", Any, [None, 1, "a", [{}]], [object]),
    Row("any JSON", JsonValue, [None, 1, "a", [{"a": [1.5]}]], [object]),
    Row("no annotation", Parameter.empty, [None, {"a": 1}], [object]),
    Row("optional", int | None, [None, 3], ["x", [3]], default=None),
    Row("a default", Annotated[int, Field(ge=1)], [1, 5], [0, None], default=3),
    Row("a default factory", Annotated[list[int], Field(default_factory=list)], [[], [1]], [None]),
    Row("a union", int | str | list[bool], [1, "1", [True]], [None, {"a": 1}, [[1]]]),
    Row("a literal", Literal["a", 1] | None, ["a", 1, None], ["b", 2, "1"]),
    Row("an enum", Colour, ["red", "blue"], ["green", 1, None]),
    Row("an integer enum", Level, [1, 9], [2, "low"]),
    Row("a mixed enum", Mixed | Literal["b", 3] | None, ["a", 7, None, "b", 3], ["c", 8]),
    Row("decimal", Decimal, ["1.50", "-3", "1E+5"], ["x", None, "1.5.5", ""]),
    Row(
        "money",
        Annotated[Decimal, Field(ge=0, max_digits=6, decimal_places=2)],
        ["1.50", "0.05", "1234"],
        ["-1", "1.555", "12345.5", "x", -1],
        wider="JSON numbers have no decimal places",
    ),
    Row("bounded decimal", Annotated[Decimal, Field(gt=1)], ["1.5"], [0.5, "x"], wider=BOUNDS),
    Row("bytes", bytes, ["", "abc", "é"], [1, None, ["a"]]),
    Row("datetime", datetime, ["2024-01-02T03:04:05Z", "2024-01-02T03:04:05"], [None, ["x"]]),
    Row("aware datetime", AwareDatetime, ["2024-01-02T03:04:05+02:00"], [None, {}]),
    Row("date", date, ["2024-02-29"], ["2023-02-29", None, []]),
    Row("time", time, ["03:04:05", "03:04:05.600000"], [None, []]),
    Row("timedelta", timedelta, ["P1DT2H", "PT0S", "-P1D"], [None, []]),
    Row("UUID", UUID, [UUID_TEXT], ["x", 1]),
    Row("UUID 4", UUID4, [UUID_TEXT], [1, None], wider=FORMAT),
    Row("URL", HttpUrl, ["https://a.example/x?y=1"], [1, ""], wider="others take any scheme"),
    Row("IPv4", IPv4Address, ["127.0.0.1"], ["127.0.0.256", None]),
    Row("IPv4 or IPv6", IPv4Address | IPv6Address, ["127.0.0.1", "::1"], ["x", None]),
    Row("a path", PurePosixPath, ["a/b"], [1, None]),
    Row(
        "JSON in text",
        Json[list[int]],
        ["[1,2]"],
        [[1], None],
        returns=list[int],
        wider="no reader looks into it",
    ),
    Row("a secret", SecretStr, ["x"], [1, None]),
    Row("list", Annotated[list[int], Field(min_length=1, max_length=2)], [[1]], [[], [1, 2, 3]]),
    Row("set", set[Literal["a", "b"]], [[], ["a", "b"]], [["c"], "a"]),
    Row("frozenset", Annotated[frozenset[int], Field(min_length=2)], [[1, 2]], [[1], ["x", "y"]]),
    Row("tuple", tuple[int, str], [[1, "a"]], [[1], [1, "a", 2], ["a", "b"]]),
    Row("long tuple", tuple[int, ...], [[], [1, 2]], [["a"], {}]),
    Row("dict", dict[str, list[int]], [{}, {"a": [1]}], [{"a": 1}, []]),
    Row("integer keys", dict[int, str], [{}, {"1": "a", "-20": "b"}], [{"a": "a"}, {"1.5": "a"}]),
    Row("number keys", dict[float, int], [{"1.5": 1, "-2": 2}], [{"a": 1}, {"1": "x"}]),
    Row("boolean keys", dict[bool, int], [{"true": 1}], [{"maybe": 1}]),
    Row("date keys", dict[date, int], [{"2024-01-02": 1}], [{"x": 1}]),
    Row("enum keys", dict[Colour, int], [{"red": 1}], [{"green": 1}]),
    Row(
        "pattern keys",
        dict[Annotated[str, Field(pattern="^a", max_length=3)], int],
        [{"a": 1, "abc": 2}],
        [{"b": 1}, {"abcd": 1}, {"a": "x"}],
    ),
    Row("a recursive model", Tree, [{"name": "a", "children": [{"name": "b"}]}], [{}, {"name": 1}]),
    Row("models in a circle", Worker, [{"name": "a", "team": {"members": [{"name": "b"}]}}]),
    Row(
        "a choice in a choice",
        Animal,
        [{"kind": "cat"}, {"kind": "dog", "size": "small", "bark": True}],
        [{"lives": 3}, {"bark": True}, {"kind": "dog", "bark": True}, {"kind": "cow"}],
    ),
    Row(
        "a choice by alias",
        Drawing,
        [{}, {"shapes": [{"shapeType": "circle", "radius": 1.5}]}],
        [{"shapes": [{"radius": 1}]}, {"shapes": [{"shapeType": "circle", "radius": 0}]}],
    ),
    Row(
        "a choice by function",
        Movement,
        [{"wheels": 4}, {"title": "a"}, {}],
        [{"wheels": "x", "title": 1}, 1],
        wider="no schema can say which choice a function makes",
    ),
    Row("a generic model", Page[Even], [{"items": [2], "next_page": None}], [{"items": [1]}, {}]),
    Row("a generic in a generic", Page[Couple[Colour]], [{"items": [{"both": ["red", "blue"]}]}]),
    Row("TypedDict", Labelled, [{"label": "a"}, {"label": "a", "weight": 1.5}], [{}, {"label": 1}]),
    Row("NamedTuple", Span, [[1, 2]], [[], [1, 2, 3], ["a"]]),
    Row("dataclass", Place, [{"street": "a", "number": 2}], [{}, {"street": "a", "number": 0}]),
    Row("a root model", Numbers, [[], [1, 2]], [1, ["x"]]),
    Row("a strict model", Strict, [{"when": "2024-01-02", "count": 1.5}], [{"when": 1}]),
    Row("closed", Account, [{"name": "a", "tags": ["x"]}], [{"name": "A"}, {"name": "a", "b": 1}]),
    Row("open", Invoice, [{}, {"lines": [{"label": "a"}], "more": [1]}], [{"paid": "often"}]),
    Row("aliases in a model", Aliased, [{"stockKeepingUnit": "a", "count": 2}], [{"sku": "a"}]),
    Row(
        "postponed annotations",
        Branch,
        [{"leaves": [{"width": 1, "twin": {"width": 2}}]}],
        [{"leaves": [{}]}],
    ),
    Row(
        "an alias",
        Annotated[int, Query(alias="n", ge=1)],
        [1],
        [0, object],
        wire_name="n",
        returns=int,
    ),
    Row(
        "a choice of aliases",
        Annotated[int, Field(validation_alias=AliasChoices("first", "second"))],
        [1],
        ["x", object],
        wire_name="first",
        returns=int,
    ),
    Row(
        "much around a type",
        Annotated[Annotated[int, Field(ge=1)], Body(le=5), Doc("A number."), "anything"],
        [1, 5],
        [0, 6],
    ),
    Row(
        "the whole object",
        Annotated[Account, Arguments],
        [{"name": "a"}],
        [{}, {"name": 1}],
        is_whole=True,
    ),
)
