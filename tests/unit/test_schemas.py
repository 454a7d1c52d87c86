import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from fastapi import Query
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    computed_field,
    field_serializer,
)
from pydantic_core import from_json, to_json

from fastapi_carmy.errors import ToolError
from fastapi_carmy.injection import make_tool
from fastapi_carmy.schemas import UnresolvedAnnotationError, argument_errors, build_output, path_of
from fastapi_carmy.signature import Arguments
from fastapi_carmy.tool import InvalidOutputError, Tool
from tests.support.postponed import make_unresolvable_tool
from tests.support.tools import names_of, validate

Function = Callable[..., Any]


class Item(BaseModel):
    sku: str
    price: float = 1.0
    note: str | None = None


class Node(BaseModel):
    name: str
    children: list["Node"] = []


def tool_of(function: Function, **options: Any) -> Tool:
    return make_tool(function, effect="none", **options)


def errors_of(tool: Tool, arguments: object) -> list[dict[str, str]]:
    with pytest.raises(ValidationError) as caught:
        validate(tool, arguments)

    return argument_errors(caught.value, arguments)


# ---- the schema of arguments


def test_each_parameter_is_one_property_in_its_order() -> None:
    async def create(sku: str, quantity: Annotated[int, Field(ge=1)] = 1) -> None:
        """Create.

        Args:
            sku: Stock-keeping unit.
        """

    schema = tool_of(create).spec.input_schema

    assert schema == {
        "type": "object",
        "properties": {
            "sku": {"type": "string", "description": "Stock-keeping unit."},
            "quantity": {"type": "integer", "default": 1, "minimum": 1},
        },
        "required": ["sku"],
        "additionalProperties": False,
    }
    assert names_of(schema) == ["sku", "quantity"]


def test_a_tool_without_arguments_takes_an_empty_object() -> None:
    async def ping() -> None: ...

    tool = tool_of(ping)

    assert tool.spec.input_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    assert tool.input.validate_json(b'{"tool":"ping"}') == {"tool": "ping", "arguments": {}}


def test_the_schema_shows_aliases_and_the_values_have_the_parameters_names() -> None:
    async def find(text: Annotated[str, Query(alias="q")], size: int = Query(5, alias="n")) -> None:
        pass

    tool = tool_of(find)

    assert names_of(tool.spec.input_schema) == ["q", "n"]
    assert validate(tool, {"q": "x"}) == {"text": "x", "size": 5}


def test_arguments_that_are_left_out_are_told_by_their_own_names() -> None:
    async def find(text: str) -> None: ...

    with pytest.raises(ValidationError) as caught:
        tool_of(find).input.validate_json(b'{"tool":"find"}')

    assert argument_errors(caught.value) == [
        {"path": "text", "message": "Field required", "type": "missing"}
    ]


def test_references_resolve_inside_the_tools_own_schema() -> None:
    async def grow(root: Node, item: Item) -> Node:
        return root

    spec = tool_of(grow).spec

    for schema in (spec.input_schema, spec.output_schema):
        Draft202012Validator.check_schema(dict(schema))
        references = set(find_references(schema))
        assert references <= {f"#/$defs/{name}" for name in schema["$defs"]}  # type: ignore[attr-defined]


def find_references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]

        for value in schema.values():
            yield from find_references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from find_references(value)


def test_the_root_of_a_recursive_model_is_an_object_too() -> None:
    async def grow(root: Annotated[Node, Arguments]) -> Node:
        return root

    spec = tool_of(grow).spec

    assert spec.input_schema["type"] == "object"
    assert spec.output_schema["type"] == "object"


def test_a_description_in_the_annotation_wins_over_the_docstrings() -> None:
    async def find(text: Annotated[str, Field(description="from the field")]) -> None:
        """Find.

        Args:
            text: from the docstring
        """

    properties: Any = tool_of(find).spec.input_schema["properties"]

    assert properties["text"]["description"] == "from the field"


SCRIPT = """
from typing import Annotated, Literal
from pydantic import BaseModel, Field
from pydantic_core import to_json
from fastapi_carmy.injection import make_tool

class Tag(BaseModel):
    kind: Literal["b", "a"]
    names: set[str] = {"x", "y", "z", "w"}

async def find(tag: Tag, sizes: Annotated[set[str], Field()] = {"s", "m", "l"}) -> list[Tag]:
    '''Find.

    Args:
        tag: Which
            one.
    '''

spec = make_tool(find, effect="read").spec
print(to_json([spec.description, spec.input_schema, spec.output_schema]).decode())
"""


def test_schemas_are_the_same_bytes_for_every_hash_seed() -> None:
    outputs = {
        subprocess.run(  # noqa: S603
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }

    assert len(outputs) == 1


Quantity = Annotated[int, Field(ge=1)]


def test_tools_that_share_an_annotation_keep_their_own_defaults() -> None:
    async def order(quantity: Quantity = 1) -> None: ...
    async def restock(quantity: Quantity) -> None: ...

    specs = [make_tool(tool, effect="write").spec for tool in (order, restock)]

    assert [spec.input_schema.get("required", []) for spec in specs] == [[], ["quantity"]]


# ---- what is refused while the application starts


async def not_a_number(x: float = float("nan")) -> None: ...
async def infinite_anything(x: Any = float("inf")) -> None: ...
async def infinite_inside(x: list[float] = [float("inf")]) -> None: ...  # noqa: B006
async def wrong_type(x: int = "abc") -> None: ...  # type: ignore[assignment]
async def implicit_optional(x: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013
async def too_small(x: Annotated[int, Field(ge=1)] = 0) -> None: ...
async def no_schema(x: object = object()) -> None: ...
async def callback(x: Callable[[], int]) -> None: ...
async def unknown(x: Iterator[str] | subprocess.Popen[str]) -> None: ...
async def bad_pattern(x: Annotated[str, Field(pattern="(")]) -> None: ...
async def two_names(a: Annotated[int, Field(alias="x")], x: int) -> None: ...
async def text_surrogate(x: str = "\ud800") -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        not_a_number,
        infinite_anything,
        infinite_inside,
        wrong_type,
        implicit_optional,
        too_small,
        no_schema,
        callback,
        unknown,
        bad_pattern,
        two_names,
        text_surrogate,
    ],
)
def test_a_type_or_default_that_json_lacks_stops_the_start(function: Function) -> None:
    with pytest.raises(ToolError) as caught:
        tool_of(function)

    assert caught.value.tool == function.__name__
    assert caught.value.parameter in ("x", "a")


async def returns_callback() -> Callable[[], int]:
    return int


def test_a_return_type_without_a_schema_stops_the_start() -> None:
    with pytest.raises(ToolError) as caught:
        tool_of(returns_callback)

    assert caught.value.parameter == "return"


def test_a_generator_that_promises_no_items_stops_the_start() -> None:
    async def count() -> int:  # type: ignore[misc]
        yield 1

    with pytest.raises(ToolError):
        tool_of(count)


def test_an_unknown_name_in_an_annotation_is_told_apart_so_that_it_can_be_tried_again() -> None:
    with pytest.raises(UnresolvedAnnotationError):
        make_unresolvable_tool()


def test_a_model_that_is_not_complete_yet_can_be_tried_again() -> None:
    class Later(BaseModel):
        other: "Other"  # type: ignore[name-defined]  # noqa: F821

    async def find(later: Later) -> None: ...

    with pytest.raises(UnresolvedAnnotationError):
        tool_of(find)


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 129, "a/b"])
def test_a_name_outside_the_contract_stops_the_start(name: str) -> None:
    async def find() -> None: ...

    with pytest.raises(ToolError):
        tool_of(find, name=name)


def test_an_unknown_effect_stops_the_start() -> None:
    async def find() -> None: ...

    with pytest.raises(ToolError):
        make_tool(find, effect="harmless")


# ---- the whole arguments object


class Order(BaseModel):
    sku: str
    quantity: int = Field(1, ge=1, alias="n")


class OpenOrder(BaseModel):
    model_config = ConfigDict(extra="allow")
    sku: str


def test_arguments_makes_one_model_the_whole_object() -> None:
    async def place(order: Annotated[Order, Arguments]) -> None: ...

    tool = tool_of(place)

    assert names_of(tool.spec.input_schema) == ["sku", "n"]
    assert tool.spec.input_schema["additionalProperties"] is False
    assert validate(tool, {"sku": "a", "n": 2}) == {"order": Order(sku="a", n=2)}
    assert type(validate(tool, {"sku": "a"})["order"]) is Order


def test_arguments_refuses_what_its_model_would_ignore() -> None:
    async def place(order: Annotated[Order, Arguments()]) -> None: ...

    assert errors_of(tool_of(place), {"sku": "a", "quantity": 2}) == [
        {"path": "quantity", "message": "Extra inputs are not permitted", "type": "extra_forbidden"}
    ]


def test_a_model_that_allows_more_gets_it() -> None:
    async def place(order: Annotated[OpenOrder, Arguments]) -> None: ...

    tool = tool_of(place)

    assert tool.spec.input_schema["additionalProperties"] is True
    assert validate(tool, {"sku": "a", "gift": True}) == {
        "order": OpenOrder.model_validate({"sku": "a", "gift": True})
    }


async def beside_another(order: Annotated[Order, Arguments], n: int) -> None: ...
async def two_wholes(a: Annotated[Order, Arguments], b: Annotated[Order, Arguments]) -> None: ...
async def no_model(order: Annotated[dict[str, int], Arguments]) -> None: ...
async def with_default(order: Annotated[Order, Arguments] = Order(sku="a", n=1)) -> None: ...  # noqa: B008


@pytest.mark.parametrize("function", [beside_another, two_wholes, no_model, with_default])
def test_arguments_stands_alone(function: Function) -> None:
    with pytest.raises(ToolError):
        tool_of(function)


# ---- validation, as it is told


@dataclass
class Place:
    street: str
    uuid: str = ""


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


def echo(value: str) -> str:
    raise ValueError(f"{value} is not welcome")


def plain(value: str) -> str:
    raise ValueError("only known names")


async def everything(  # noqa: PLR0917
    items: list[Item] = [],  # noqa: B006
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None,
    either: int | list[str] | None = None,
    place: Place | None = None,
    when: date | None = None,
    echoed: Annotated[str, AfterValidator(echo)] | None = None,
    known: Annotated[str, AfterValidator(plain)] | None = None,
) -> None: ...


EVERYTHING = tool_of(everything)


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        ({"items": [{"sku": 1}]}, ["items[0].sku"]),
        ({"items": [{}]}, ["items[0].sku"]),
        ({"pet": {"kind": "dog"}}, ["pet.name"]),
        ({"either": {"a": 1}}, ["either", "either"]),
        ({"either": [1]}, ["either", "either[0]"]),
        ({"place": {}}, ["place.street"]),
        ({"when": "soon"}, ["when"]),
        ({"whenn": "soon"}, ["whenn"]),
        ({"a b": 1}, ["['a b']"]),
    ],
)
def test_a_path_names_the_place_in_what_was_sent(arguments: object, paths: list[str]) -> None:
    assert [error["path"] for error in errors_of(EVERYTHING, arguments)] == paths


@pytest.mark.parametrize(
    "arguments",
    [
        {"pet": {"kind": "s3cret-s3cret"}},
        {"either": "s3cret-s3cret"},
        {"when": "s3cret-s3cret"},
        {"echoed": "s3cret-s3cret"},
        {"place": "s3cret-s3cret"},
        {"items": "s3cret-s3cret"},
    ],
)
def test_a_message_never_holds_the_input(arguments: object) -> None:
    for error in errors_of(EVERYTHING, arguments):
        assert "s3cret" not in error["message"]


def test_a_validators_own_sentence_is_told() -> None:
    (error,) = errors_of(EVERYTHING, {"known": "x"})

    assert error["message"] == "Value error, only known names"


def test_a_long_key_is_cut() -> None:
    (error,) = errors_of(EVERYTHING, {"x" * 10_000: 1})

    assert len(error["path"]) < 100


def test_at_most_fifty_errors_are_told() -> None:
    assert len(errors_of(EVERYTHING, {"items": [{}] * 1000})) == 50


def test_a_path_joins_keys_and_indices() -> None:
    assert path_of(("items", 0, "sku")) == "items[0].sku"
    assert path_of(("a.b", "c")) == "['a.b'].c"
    assert path_of(()) == ""


def test_no_message_of_pydantic_that_holds_input_is_unknown_to_us() -> None:
    """A new type of error must be looked at before it is let through."""
    from pydantic_core._pydantic_core import list_all_errors  # noqa: PLC0415

    told = {
        "class", "class_name", "decimal_places", "discriminator", "encoding", "expected",
        "expected_plural", "expected_schemes", "expected_tags", "expected_version", "field_type",
        "ge", "gt", "le", "lt", "max_digits", "max_length", "method_name", "min_length",
        "multiple_of", "pattern", "tz_expected", "whole_digits", "actual_length",
    }  # fmt: skip
    # Sentences of the parsers and of validators, none of which holds what it read.
    parsers = {
        "assertion_error", "date_from_datetime_parsing", "date_parsing",
        "datetime_from_date_parsing", "datetime_parsing", "time_delta_parsing", "time_parsing",
        "value_error",
    }  # fmt: skip
    changed = {
        "bytes_invalid_encoding", "datetime_object_invalid", "get_attribute_error",
        "iteration_error", "json_invalid", "mapping_type", "no_such_attribute",
        "timezone_offset", "union_tag_invalid", "url_parsing", "url_syntax_violation",
        "uuid_parsing",
    }  # fmt: skip

    for error in list_all_errors():
        held = {part.partition("}")[0] for part in error["message_template_python"].split("{")[1:]}
        assert held <= told or error["type"] in parsers | changed, error["type"]


# ---- results


def dump(annotation: Any, value: object) -> object:
    return from_json(build_output(annotation)[0].dump(value))


class Aliased(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    price: float | None = Field(None, serialization_alias="prix")


class Stored:
    """What an ORM returns."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


class Secret(Item):
    password: str


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Item, Item(sku="a"), {"sku": "a", "price": 1.0, "note": None}),
        (Item, {"sku": "a", "more": 1}, {"sku": "a", "price": 1.0, "note": None}),
        (
            Item,
            Stored(sku="a", price=2.0, note=None),
            {"sku": "a", "price": 2.0, "note": None},
        ),
        (Item, Secret(sku="a", password="x"), {"sku": "a", "price": 1.0, "note": None}),
        (list[Item], [Stored(sku="a", price=1, note="n")], [{"sku": "a", "price": 1, "note": "n"}]),
        (Aliased, Aliased(price=2), {"prix": 2.0}),
        (None, None, None),
        (int, 2**80, 2**80),
        (Any, {"a": (1, {2}), "b": date(2024, 1, 1)}, {"a": [1, [2]], "b": "2024-01-01"}),
        (dict[str, Any], {"text": "NaN and Infinity, null"}, {"text": "NaN and Infinity, null"}),
        (Any, ["NaN", None, 1.5], ["NaN", None, 1.5]),
    ],
)
def test_a_result_is_written_as_its_type_says(
    annotation: Any, value: object, expected: object
) -> None:
    assert dump(annotation, value) == expected


class Nullable(BaseModel):
    x: float | None = None
    y: Any = None


class Constants(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    x: float


class Texts(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    x: float
    y: None = None


class Broken(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def z(self) -> int:
        raise KeyError("z")


def mutated() -> Item:
    item = Item(sku="a")
    item.price = "cheap"  # type: ignore[assignment]
    return item


class Plain(BaseModel):
    a: int = 1
    b: str | None = None
    c: float = 0.5
    d: bool = True


class Loud(Plain):
    e: str = "e"


class Written(BaseModel):
    a: int = 1

    @field_serializer("a")
    def write(self, value: int) -> int:
        return f"{value}"  # type: ignore[return-value]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1


class Checked(BaseModel):
    model_config = ConfigDict(revalidate_instances="always")
    a: int = 1


def changed(value: BaseModel, **fields: object) -> BaseModel:
    """Return a model that something was done to after it was validated."""
    value.__dict__.update(fields)
    return value


def cyclic() -> list[object]:
    inner: list[object] = []
    inner.append(inner)
    return inner


NAN = float("nan")
INF = float("inf")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Item, Item(sku="a", price=NAN)),
        (list[Item], [Item(sku="a"), Item(sku="a", price=INF)]),
        (Nullable, Nullable(x=NAN)),
        (Nullable, Nullable(y=[{"a": -INF}])),
        (Constants, Constants(x=NAN)),
        (float, NAN),
        (Any, {"a": [INF]}),
        (dict[str, float], {"a": INF}),
        (str, "\ud800"),
        (Any, ["\udfff"]),
        (Any, b"\xff"),
        (Any, object()),
        (Any, cyclic()),
        (int, "many"),
        (Item, {"price": 1}),
        (Item, mutated()),
        (Plain, changed(Plain(), a="1")),
        (Plain, changed(Plain(), a=1.5)),
        (Plain, changed(Plain(), b=1)),
        (Plain, changed(Plain(), c="cheap")),
        (Plain, changed(Plain(), c=NAN)),
        (Plain, changed(Plain(), d="yes")),
        (Plain, changed(Plain(), b="\ud800")),
        (Checked, changed(Checked(), a="many")),
        (Written, Written()),
        (Item, None),
        (None, 1),
        (Broken, Broken()),
    ],
)
def test_a_result_that_is_not_what_was_promised_is_refused(annotation: Any, value: object) -> None:
    with pytest.raises(InvalidOutputError):
        dump(annotation, value)


@pytest.mark.parametrize(
    ("annotation", "value", "written"),
    [
        (Plain, Plain(), {"a": 1, "b": None, "c": 0.5, "d": True}),
        (Plain, changed(Plain(), a=2, b="x"), {"a": 2, "b": "x", "c": 0.5, "d": True}),
        (Plain, Loud(), {"a": 1, "b": None, "c": 0.5, "d": True}),
        (Open, Open.model_validate({"a": 1, "z": [1]}), {"a": 1, "z": [1]}),
        (Checked, changed(Checked(), a="3"), {"a": 3}),
    ],
)
def test_a_model_that_is_as_promised_is_written(
    annotation: Any, value: object, written: object
) -> None:
    assert dump(annotation, value) == written


def test_a_model_may_write_its_infinities_as_text() -> None:
    assert dump(Texts, Texts(x=INF)) == {"x": "Infinity", "y": None}


def test_a_serializer_may_write_not_a_number_as_it_likes() -> None:
    written = Annotated[float, PlainSerializer(str, return_type=str)]

    assert dump(dict[str, written | None], {"a": NAN, "b": None}) == {"a": "nan", "b": None}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_comes_back_as_it_was(value: object) -> None:
    try:
        text = to_json(value, inf_nan_mode="constants")
        from_json(text, allow_inf_nan=False)
    except ValueError:
        with pytest.raises(InvalidOutputError):
            dump(Any, value)
    else:
        assert dump(Any, value) == value


async def items(n: int) -> AsyncIterator[Item]:
    for number in range(n):
        yield Item(sku=str(number))


def test_a_generators_result_is_the_list_of_its_items() -> None:
    tool = tool_of(items)
    output = build_output(list[Item], item=Item)[0]

    assert tool.spec.output_schema["type"] == "array"
    assert from_json(output.dump_item({"sku": "a"})) == {"sku": "a", "price": 1.0, "note": None}

    with pytest.raises(InvalidOutputError):
        output.dump_item(1)
