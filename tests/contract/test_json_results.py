"""What a tool may return: a right answer or `INVALID_OUTPUT`, never a broken response.

Source: carmy/1, sections 2.2 and 4.1, step 10.
"""

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    SecretStr,
    SerializeAsAny,
    computed_field,
    field_serializer,
    model_serializer,
)

from fastapi_carmy import AgentError, AgentRouter, ErrorCategory
from fastapi_carmy.errors import ToolError
from tests.support.calls import app_of, code, post, stream

NAN, INF = float("nan"), float("inf")
UUID_TEXT = "12345678-1234-4234-8234-123456789abc"
SECRET = "hunter2-hunter2"


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    tags: set[str] = field(default_factory=set)


class Price(BaseModel):
    """It is read under one name and written under another."""

    amount: Decimal = Field(validation_alias="in", serialization_alias="out")

    @computed_field(alias="twice")
    def doubled(self) -> Decimal:
        return self.amount * 2


class Kept(BaseModel):
    shown: int = 1
    hidden: str = Field(default=SECRET, exclude=True)


class Base(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1


class Derived(Base):
    b: int = 2


class Custom(BaseModel):
    """Its serialisers do not say what they return."""

    when: date = date(2024, 1, 2)

    @field_serializer("when")
    def _write(self, value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return value.year


class Listed(BaseModel):
    a: int = 1

    @model_serializer
    def _write(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return [self.a]


class Raising(BaseModel):
    @computed_field
    def broken(self) -> int:
        raise KeyError(SECRET)


class Lying(BaseModel):
    @computed_field
    def number(self) -> int:
        return SECRET  # type: ignore[return-value]


class Cycle(BaseModel):
    other: "Cycle | None" = None


def refuse(value: object) -> object:
    raise KeyError(SECRET)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def chain(levels: int) -> Cycle:
    value = Cycle()
    for _ in range(levels - 1):
        value = Cycle(other=value)
    return value


def cycle() -> Cycle:
    one = Cycle()
    one.other = Cycle(other=one)
    return one


def failing() -> Iterator[int]:
    yield 1
    raise KeyError(SECRET)


# The annotation, how the value is made, and the answer's `data`.
RIGHT: dict[str, tuple[Any, Callable[[], Any], Any]] = {
    "bytes": (bytes, lambda: b"abc\xc3\xa9", "abcé"),
    "decimal": (Decimal, lambda: Decimal("1.50"), "1.50"),
    "a large decimal": (Decimal, lambda: Decimal("1E+30"), "1E+30"),
    "datetime": (datetime, lambda: datetime(2024, 1, 2, tzinfo=UTC), "2024-01-02T00:00:00Z"),
    "date": (date, lambda: date(2024, 1, 2), "2024-01-02"),
    "time": (time, lambda: time(1, 2, 3), "01:02:03"),
    "timedelta": (timedelta, lambda: timedelta(hours=25), "P1DT1H"),
    "UUID": (UUID, lambda: UUID(UUID_TEXT), UUID_TEXT),
    "path": (PurePosixPath, lambda: PurePosixPath("a/b"), "a/b"),
    "enum": (Colour, lambda: Colour.RED, "red"),
    "set": (set[int], lambda: {1}, [1]),
    "frozenset": (frozenset[str], lambda: frozenset({"a"}), ["a"]),
    "deque": (deque[int], lambda: deque([1, 2]), [1, 2]),
    "counter": (Counter[str], lambda: Counter("aab"), {"a": 2, "b": 1}),
    "dataclass": (Point, lambda: Point(1.5, {"a"}), {"x": 1.5, "tags": ["a"]}),
    "root model": (RootModel[list[int]], lambda: [1], [1]),
    "a secret": (SecretStr, lambda: SecretStr(SECRET), "**********"),
    "generator": (list[int], lambda: (n for n in (1, 2)), [1, 2]),
    "iterable": (Iterable[int], lambda: iter([1, 2]), [1, 2]),
    "any generator": (Any, lambda: (n for n in (1, 2)), [1, 2]),
    "other names": (Price, lambda: {"in": "1.5"}, {"out": "1.5", "twice": "3.0"}),
    "excluded": (Kept, lambda: {"shown": 1}, {"shown": 1}),
    "a subclass": (Base, Derived, {"a": 1}),
    "a subclass as it is": (SerializeAsAny[Base], Derived, {"a": 1, "b": 2}),
    "more fields": (Base, lambda: Base.model_validate({"c": [1]}), {"a": 1, "c": [1]}),
    "custom": (Custom, Custom, {"when": 2024}),
    "a model as a list": (Listed, Listed, [1]),
    "custom by annotation": (Annotated[float, PlainSerializer(lambda _: "x")], lambda: 1.0, "x"),
    "large integers": (list[int], lambda: [2**53 + 1, -(2**70)], [2**53 + 1, -(2**70)]),
    "any of these": (
        Any,
        lambda: [Decimal("1.5"), UUID(UUID_TEXT), {1}, Point(1, set()), Colour.RED],
        ["1.5", UUID_TEXT, [1], {"x": 1, "tags": []}, "red"],
    ),
    "keys of other types": (Any, lambda: {1: "a", None: "b"}, {"1": "a", "None": "b"}),
    "integer keys": (dict[int, str], lambda: {1: "a", 2**60: "b"}, {"1": "a", str(2**60): "b"}),
    "digits in a text": (Any, lambda: ["9" * 5000], ["9" * 5000]),
    "brackets in a text": (Any, lambda: ["[" * 500, "]{" * 500], ["[" * 500, "]{" * 500]),
    "many lists": (Any, lambda: [[[n]] for n in range(500)], [[[n]] for n in range(500)]),
    "depth 127": (Any, lambda: deep(127), deep(127)),
    "models, depth 126": (Cycle, lambda: chain(126), chain(126).model_dump()),
    "controls": (str, lambda: "\0\r\n\u2028é😀", "\0\r\n\u2028é😀"),
}  # fmt: skip
WRONG: dict[str, tuple[Any, Callable[[], Any]]] = {
    "NaN": (float, lambda: NAN),
    "an infinity in a list": (list[float], lambda: [INF]),
    "NaN in anything": (Any, lambda: {"a": [NAN]}),
    "NaN of an iterable": (Iterable[float], lambda: iter([NAN])),
    "NaN in a dataclass": (Point, lambda: Point(NAN)),
    "NaN as a key": (Any, lambda: {NAN: 1}),
    "NaN as a decimal": (Decimal, lambda: Decimal("NaN")),
    "a lone surrogate": (str, lambda: "\ud800"),
    "a lone surrogate in anything": (Any, lambda: {"a": "\udfff"}),
    "a lone surrogate as a key": (Any, lambda: {"\ud800": 1}),
    "bytes that are no UTF-8": (bytes, lambda: b"\xff"),
    "bytes that are no UTF-8 in anything": (Any, lambda: [b"\xff"]),
    "an object": (Any, object),
    "a class": (Any, lambda: int),
    "a function": (Any, lambda: len),
    "an exception": (Any, lambda: ValueError(SECRET)),
    "two keys written alike": (Any, lambda: {1: "a", "1": "b"}),
    "two keys written alike, below": (dict[str, Any], lambda: {"a": [{True: 1, "true": 2}]}),
    "two keys written alike, in a model": (Any, lambda: Base.model_validate({"c": {1: 1, "1": 2}})),
    "two keys written alike, in a dataclass": (Any, lambda: Point(1, {1: 1, "1": 2})),  # type: ignore[arg-type]
    "too many digits": (int, lambda: 10**4300),
    "too many digits in anything": (Any, lambda: {"a": -(10**5000)}),
    "depth 128": (Any, lambda: deep(128)),
    "depth 200": (Any, lambda: deep(200)),
    "depth 300": (Any, lambda: deep(300)),
    "depth 20,000": (Any, lambda: deep(20_000)),
    "depth 128 and brackets in a text": (Any, lambda: ["]" * 300, deep(127)]),
    "models, depth 140": (Cycle, lambda: chain(140)),
    "models in a circle": (Cycle, cycle),
    "a generator that fails": (list[int], failing),
    "any generator that fails": (Any, failing),
    "an iterable of something else": (Iterable[int], lambda: iter([SECRET])),
    "a computed field that fails": (Raising, Raising),
    "a computed field of another type": (Lying, Lying),
    "a validator that fails": (Annotated[int, AfterValidator(refuse)], lambda: 1),
    "a serialiser that fails": (Annotated[int, PlainSerializer(refuse)], lambda: 1),
    "none at all": (int, lambda: None),
}
ODD: dict[str, object] = {
    "NaN": NAN,
    "a surrogate": "\ud800",
    "bytes": b"\xff",
    "digits": 10**5000,
    "deep": deep(300),
    "deeper": deep(20_000),
    "an object": object(),
    "a model": Raising(),
}


def shop(annotation: Any, make: Callable[[], Any]) -> TestClient:
    agent = AgentRouter()

    async def give() -> Any:
        return make()

    give.__annotations__ = {"return": annotation}
    agent.add_tool(give, effect="write")
    return TestClient(app_of(agent))


@pytest.mark.spec("carmy/1 2.2")
@pytest.mark.parametrize(("annotation", "make", "data"), RIGHT.values(), ids=RIGHT)
def test_a_result_is_answered_streamed_and_replayed_as_its_schema_says(
    annotation: Any, make: Callable[[], Any], data: Any
) -> None:
    with shop(annotation, make) as client:
        answer = post(client, "give", request_id="r")
        replayed = post(client, "give", request_id="r")
        frames = stream(client, "give")
        (tool,) = client.get("/agent/tools").json()["tools"]

    assert answer.status_code == 200
    assert answer.json()["data"] == data
    assert Draft202012Validator(tool["output_schema"]).is_valid(data)
    assert (replayed.content, replayed.headers["carmy-replayed"]) == (answer.content, "true")
    assert frames[-1].json()["data"] == data


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize(("annotation", "make"), WRONG.values(), ids=WRONG)
def test_what_json_cannot_hold_is_invalid_output(
    annotation: Any, make: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with shop(annotation, make) as client:
        answer = post(client, "give", request_id="r")
        replayed = post(client, "give", request_id="r")
        frames = stream(client, "give")

    assert (answer.status_code, code(answer)) == (500, "INVALID_OUTPUT")
    assert replayed.content == answer.content
    assert frames[-1].json()["error"]["code"] == "INVALID_OUTPUT"
    assert SECRET not in answer.text
    assert len(caplog.records) == 2


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_item_that_json_cannot_hold_ends_its_generator(odd: object) -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def give() -> AsyncIterator[Any]:
        yield 1
        yield odd

    with TestClient(app_of(agent)) as client:
        answer = post(client, "give")
        frames = stream(client, "give")

    assert code(answer) == "INVALID_OUTPUT"
    assert [frame.json()["partial"] for frame in frames if frame.event == "tool.progress"] == [1]
    assert frames[-1].json()["error"]["code"] == "INVALID_OUTPUT"


@pytest.mark.spec("carmy/1 5")
@pytest.mark.parametrize("odd", [*ODD.values(), {1: 1, "1": 2}], ids=[*ODD, "keys"])
def test_whatever_stands_in_an_error_its_body_is_whole(odd: object) -> None:
    agent = AgentRouter()

    @agent.tool(effect="write")
    async def fail() -> None:
        raise AgentError("NO", "No \ud800.", ErrorCategory.CONFLICT, details={"odd": odd, "n": 1})

    with TestClient(app_of(agent)) as client:
        answer = post(client, "fail", request_id="r")
        replayed = post(client, "fail", request_id="r")
        frames = stream(client, "fail")

    assert answer.status_code == 409
    assert replayed.content == answer.content
    for error in (answer.json()["error"], frames[-1].json()["error"]):
        assert (error["code"], error["message"], error["details"]["n"]) == ("NO", "No ?.", 1)
    assert SECRET not in answer.text


class Twice(BaseModel):
    a: int = Field(1, serialization_alias="b")
    b: int = 2


def test_two_fields_under_one_name_stop_the_start() -> None:
    agent = AgentRouter()

    async def give() -> Twice: ...  # type: ignore[empty-body]

    with pytest.raises(ToolError) as caught:
        agent.add_tool(give, effect="read")

    assert (caught.value.tool, caught.value.parameter) == ("give", "return")


def refuse_card(number: str) -> str:
    raise ValueError(f"{number} is no card")


class Card(BaseModel):
    number: Annotated[str, AfterValidator(refuse_card)]


def mutated() -> Point:
    point = Point(1)
    point.x = SECRET  # type: ignore[assignment]
    return point


@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        (int, {"card": SECRET}, "int_type."),
        (list[Point], [{"x": SECRET}], "float_parsing at [0].x."),
        (dict[str, int], {SECRET: "x"}, "int_parsing at ['…']."),
        (Card, {"number": SECRET}, "value_error at number."),
        (Point, mutated(), "PydanticSerializationError."),
        (str, f"{SECRET}\ud800", "."),
    ],
)
def test_the_log_tells_what_is_wrong_with_a_result_and_nothing_of_it(
    annotation: Any, value: object, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = AgentRouter()

    async def give() -> Any:
        return value

    give.__annotations__["return"] = annotation
    agent.add_tool(give, effect="read")

    with TestClient(app_of(agent)) as client:
        assert code(post(client, "give")) == "INVALID_OUTPUT"

    logged = caplog.records[-1].getMessage()
    assert logged.endswith(told), logged
    assert SECRET not in caplog.text
