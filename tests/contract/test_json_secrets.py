"""Nothing of what was sent comes back in a refusal, but the names of its places.

Source: carmy/1, sections 2.1 and 4.1, step 5.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from fastapi import Depends, FastAPI, Header
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AwareDatetime,
    Base64Bytes,
    BaseModel,
    ByteSize,
    DirectoryPath,
    Field,
    HttpUrl,
    ImportString,
    IPvAnyAddress,
    Json,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, to_json

from fastapi_carmy import AgentRouter
from tests.support.calls import app_of, post

SECRET = "hunter2-hunter2"
JSON = {"Content-Type": "application/json"}


class Colour(Enum):
    RED = "red"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]


class User(BaseModel):
    name: str = ""
    password: str = ""

    @model_validator(mode="before")
    @classmethod
    def _look(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("password"):
            raise ValueError(f"{value['password']} is too weak")
        return value

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        assert not value, f"nobody is called {value.upper()!r}"
        return value


@dataclass
class Place:
    street: str
    number: int = 0


def refuse_list(values: list[str]) -> list[str]:
    raise ValueError(f"{values[0]} is not welcome")


def refuse_part(value: str) -> str:
    raise ValueError(f"the domain {value.partition('@')[2]} is blocked")


def refuse_custom(value: str) -> str:
    raise PydanticCustomError("unwelcome", "{who} is not welcome", {"who": value})


def refuse_kindly(value: str) -> str:
    raise ValueError("a name has two words")


def skipped(limit: int = 0, words: Annotated[list[int], Field(max_length=1)] = []) -> int:  # noqa: B006
    return limit


def read_header(x_number: Annotated[int, Header()] = 0) -> int:
    return x_number


def shop() -> FastAPI:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def look(  # noqa: PLR0917
        text: Annotated[str, Field(max_length=3, pattern="^[a-z]*$")] = "",
        number: int = 0,
        ratio: float = 0,
        flag: bool | None = None,
        amount: Decimal = Decimal(0),
        choice: Literal["a", "b"] = "a",
        colour: Colour = Colour.RED,
        pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None,
        either: int | list[Literal["x"]] = 0,
        key: UUID | None = None,
        link: HttpUrl | None = None,
        address: IPvAnyAddress | None = None,
        day: date | None = None,
        hour: time | None = None,
        moment: datetime | None = None,
        aware: AwareDatetime | None = None,
        span: timedelta | None = None,
        numbers: dict[int, int] = {},  # noqa: B006
        days: dict[date, int] = {},  # noqa: B006
        inner: Json[int] | None = None,
        size: ByteSize | None = None,
        module: ImportString[Any] | None = None,
        folder: DirectoryPath | None = None,
        coded: Base64Bytes | None = None,
        user: User | None = None,
        place: Place | None = None,
        guests: Annotated[list[str], AfterValidator(refuse_list)] | None = None,
        mail: Annotated[str, AfterValidator(refuse_part)] | None = None,
        custom: Annotated[str, AfterValidator(refuse_custom)] | None = None,
        kind: Annotated[str, AfterValidator(refuse_kindly)] | None = None,
        skip: int = Depends(skipped),
    ) -> None: ...

    @agent.tool(effect="read")
    async def headed(number: Annotated[int, Depends(read_header)]) -> int:
        return number

    return app_of(agent)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(shop()) as client:
        yield client


NAMES = [
    "text",
    "number",
    "ratio",
    "flag",
    "amount",
    "choice",
    "colour",
    "pet",
    "either",
    "key",
    "link",
    "address",
    "day",
    "hour",
    "moment",
    "aware",
    "span",
    "numbers",
    "days",
    "inner",
    "size",
    "module",
    "folder",
    "coded",
    "user",
    "place",
    "limit",
    "words",
]
SHAPES: dict[str, Any] = {
    "itself": SECRET,
    "in a sentence": f"12 {SECRET} 34",
    "in a link": f"https://{SECRET}:99999999/",
    "in a list": [SECRET],
    "in an object": {"inside": {"deeper": SECRET}},
    "as a tag": {"kind": SECRET},
    "of a member": {"kind": "cat", "lives": SECRET},
    "of a place": {"street": [SECRET], "number": SECRET},
    "of a user": {"password": SECRET},
    "of a name": {"name": SECRET},
    "of a key": {"1": SECRET, "2024-01-02": SECRET},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", SHAPES.values(), ids=SHAPES)
def test_no_value_comes_back(client: TestClient, name: str, value: object) -> None:
    answer = post(client, "look", {name: value})

    assert answer.status_code in {200, 400}
    assert SECRET not in answer.text.casefold()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("guests", [SECRET, "b"]),
        ("mail", f"anna@{SECRET}"),
        ("custom", SECRET),
        ("custom", "1234567"),
        ("user", {"name": SECRET}),
        ("user", {"name": "a", "password": SECRET}),
    ],
)
def test_no_validator_of_the_users_gives_it_away(
    client: TestClient, name: str, value: object
) -> None:
    answer = post(client, "look", {name: value})

    (error,) = answer.json()["error"]["details"]["errors"]
    assert error["message"] == "Input does not fit"
    assert SECRET not in answer.text.casefold()


def test_a_validators_own_words_and_the_choices_of_a_schema_are_told(client: TestClient) -> None:
    answers = [
        post(client, "look", {"kind": "an unusual name of someone"}),
        post(client, "look", {"choice": "'a' or"}),
        post(client, "look", {"pet": {"kind": "catdog"}}),
    ]

    messages = [answer.json()["error"]["details"]["errors"][0]["message"] for answer in answers]
    assert messages == [
        "Value error, a name has two words",
        "Input should be 'a' or 'b'",
        "The tag found using 'kind' is none of the expected tags: 'cat', 'dog'",
    ]


@pytest.mark.parametrize(
    "body",
    [
        b'{"tool":"look","%b":1}',
        b'{"tool":"look","arguments":{},"request_id":["%b"]}',
        b'{"tool":"look","arguments":["%b"]}',
        b'{"tool":"look","arguments":"%b"}',
        b'{"tool":{"a":"%b"}}',
        b'{"tool":"look %b"}',
        b'{"tool":"look","arguments":{"text":"%b',
        b'{"tool":"look","arguments":{"text":"%b\\x"}}',
        b'{"tool":"look","arguments":{"text":"%b\xff"}}',
        b"%b",
        b'"%b"',
    ],
)
def test_nothing_of_a_request_that_is_none_comes_back(client: TestClient, body: bytes) -> None:
    answer = client.post("/agent/execute", content=body % SECRET.encode(), headers=JSON)

    assert 400 <= answer.status_code < 500
    assert SECRET not in answer.text


def test_a_key_comes_back_in_a_path_alone_and_cut(client: TestClient) -> None:
    """An agent that misspelt a name has to be told which."""
    answers = [
        post(client, "look", {SECRET: 1}),
        post(client, "look", {"numbers": {SECRET: 1}}),
        post(client, "look", {"x" * 1000: 1}),
    ]

    for answer in answers:
        (error,) = answer.json()["error"]["details"]["errors"]
        path = error.pop("path")
        assert len(path) < 80
        assert SECRET not in str(error)
        assert SECRET not in answer.text.replace(path, "")


def test_a_header_does_not_come_back(client: TestClient) -> None:
    answer = post(client, "headed", headers={"X-Number": SECRET})

    assert answer.status_code == 400
    assert SECRET not in answer.text


KEYS = st.sampled_from([*NAMES, "guests", "mail", "custom", "other"])
SECRETS = st.sampled_from([SECRET, f"x {SECRET}", f"{SECRET}@x.y", f"https://{SECRET}/%"])
VALUES = st.recursive(
    SECRETS | st.integers() | st.none() | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.just("kind"), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.booleans())
def test_no_value_comes_back_wherever_it_stands(
    client: TestClient, arguments: dict[str, Any], is_stream: bool
) -> None:
    body = to_json({"tool": "look", "arguments": arguments})
    accept = "text/event-stream" if is_stream else "application/json"

    answer = client.post("/agent/execute", content=body, headers={**JSON, "Accept": accept})

    assert answer.status_code in {200, 400}
    assert SECRET not in answer.text.casefold()
