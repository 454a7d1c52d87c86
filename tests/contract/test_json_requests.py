"""What JSON readers disagree on, wherever it stands in a request. Source: carmy/1, section 2.1."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel
from pydantic_core import from_json, to_json

from fastapi_carmy import AgentRouter, Arguments
from tests.support.calls import app_of, code, post

JSON = {"Content-Type": "application/json"}
PLACES: Mapping[str, bytes] = {
    "argument": b'{"tool":"echo","arguments":{"value":%b}}',
    "nested": b'{"tool":"echo","arguments":{"value":{"a":[%b]}}}',
    "ignored": b'{"tool":"take","arguments":{"item":{"name":"a","ignored":%b}}}',
    "unknown argument": b'{"tool":"echo","arguments":{"unknown":%b}}',
    "unknown tool": b'{"tool":"nothing","arguments":{"value":%b}}',
    "request_id": b'{"tool":"echo","request_id":%b}',
    "top level": b'{"tool":"echo","unknown":%b}',
    "all of it": b"%b",
    "behind it": b'{"tool":"echo"}%b',
}
REFUSED: Mapping[str, bytes] = {
    "half": b'{"a"',
    "a comma": b"[1,]",
    "a comment": b"1/**/",
    "a leading zero": b"01",
    "a plus": b"+1",
    "a point": b"1.",
    "single quotes": b"'a'",
    "a bare key": b"{a:1}",
    "a control character": b'"\x01"',
    "a line break": b'"\n"',
    "a wrong escape": b'"\\x41"',
    "bad UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "a raw surrogate": b'"\xed\xa0\x80"',
    "a byte-order mark": b"\xef\xbb\xbf1",
    "UTF-16": '"a"'.encode("utf-16"),
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "-Infinity": b"-Infinity",
    "1e400": b"1e400",
    "-1E+0400": b"-1E+0400",
    "400 digits and a fraction": b"%b.5" % (b"9" * 400),
    "a lone surrogate": b'"\\ud800"',
    "a trailing surrogate": b'"\\udc00\\ud800"',
    "a lone surrogate as key": b'{"\\udfff":1}',
    "depth 300": b"%b1%b" % (b"[" * 300, b"]" * 300),
    "depth 300 of objects": b"%b1%b" % (b'{"a":' * 300, b"}" * 300),
    "depth 20,000": b"%b1%b" % (b"[" * 20_000, b"]" * 20_000),
    "unclosed depth": b"[" * 100_000,
    "4301 digits": b"9" * 4301,
    "4301 negative digits": b"-%b" % (b"9" * 4301),
}


class Item(BaseModel):
    name: str
    price: float = 1.0


@dataclass
class Place:
    height: float


def shop() -> FastAPI:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def echo(value: Any = None) -> Any:
        return value

    @agent.tool(effect="read")
    async def text(value: str) -> list[str]:
        return [type(value).__name__, value]

    @agent.tool(effect="read")
    async def number(value: int) -> int:
        return value

    @agent.tool(effect="read")
    async def measure(value: float = 0, values: list[float] = []) -> float:  # noqa: B006
        return value + sum(values)

    @agent.tool(effect="read")
    async def take(item: Item | None = None, place: Place | None = None) -> str:
        return repr((item, place))

    @agent.tool(effect="read")
    async def whole(item: Annotated[Item, Arguments]) -> Item:
        return item

    return app_of(agent)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(shop()) as client:
        yield client


@pytest.mark.spec("carmy/1 2.1")
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_is_not_clearly_json_is_refused_wherever_it_stands(
    client: TestClient, place: bytes, text: bytes
) -> None:
    answer = client.post("/agent/execute", content=place % text, headers=JSON)

    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert code(answer) == "INVALID_REQUEST"
    reason = answer.json()["error"]["details"]["reason"]
    assert "99999" not in answer.text
    assert len(reason) < 100


@pytest.mark.spec("carmy/1 2.1")
@pytest.mark.parametrize(
    "text", [b"%b1%b" % (b"[" * 100, b"]" * 100), b"9" * 4300], ids=["depth", "digits"]
)
@pytest.mark.parametrize("place", ["argument", "nested", "ignored"])
def test_what_is_large_but_allowed_is_taken_everywhere(
    client: TestClient, place: str, text: bytes
) -> None:
    answer = client.post("/agent/execute", content=PLACES[place] % text, headers=JSON)

    assert answer.status_code == 200
    if place == "argument":
        assert answer.json()["data"] == from_json(text)


@pytest.mark.parametrize(
    "value",
    [
        "123",
        "-0",
        "null",
        "true",
        "1e999",
        "NaN",
        "Infinity",
        "[1]",
        '{"a":1}',
        '"',
        "",
        "\0",
        "é😀",
    ],
)
@pytest.mark.parametrize("tool", ["text", "echo"])
def test_a_text_stays_a_text(client: TestClient, tool: str, value: str) -> None:
    answer = post(client, tool, {"value": value})

    assert answer.json()["data"] == (value if tool == "echo" else ["str", value])


@pytest.mark.parametrize(
    "value",
    [2**53 + 1, -(2**63) - 1, 2**64 + 3, 10**400 + 7, -(10**4298)],
    ids=["2**53", "-2**63", "2**64", "10**400", "-10**4298"],
)
@pytest.mark.parametrize("tool", ["number", "echo"])
def test_an_integer_of_any_size_comes_back_unchanged(
    client: TestClient, tool: str, value: int
) -> None:
    answer = post(client, tool, {"value": value}, request_id=f"{tool} {hash(value)}")
    again = post(client, tool, {"value": value}, request_id=f"{tool} {hash(value)}")

    assert answer.content == again.content
    assert b'"data":%d,' % value in answer.content


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize(
    "value",
    ["NaN", "nan", " -inf ", "Infinity", "1e400", "9" * 400, 10**400, -(10**400)],
    ids=["NaN", "nan", "-inf", "Infinity", "1e400", "digits", "10**400", "-10**400"],
)
@pytest.mark.parametrize(
    ("tool", "place", "path"),
    [
        ("measure", '{"value":%s}', "value"),
        ("measure", '{"values":[%s]}', "values[0]"),
        ("take", '{"item":{"name":"a","price":%s}}', "item"),
        ("take", '{"place":{"height":%s}}', "place.height"),
        ("whole", '{"name":"a","price":%s}', ""),
    ],
)
def test_a_float_is_a_number_that_json_has(
    client: TestClient, tool: str, place: str, path: str, value: object
) -> None:
    """Pydantic reads `"NaN"`, and makes an infinity of a long integer, unless told otherwise."""
    arguments = place % to_json(value).decode()
    body = f'{{"tool":"{tool}","arguments":{arguments}}}'

    answer = client.post("/agent/execute", content=body, headers=JSON)

    assert code(answer) == "INVALID_ARGUMENTS"
    (error,) = answer.json()["error"]["details"]["errors"]
    # 2.11 does not take such an integer at all, and says so at its own place.
    assert error["path"].startswith(path)
    assert error["type"] in {"finite_number", "float_type"}


def test_an_escaped_nan_is_none_either(client: TestClient) -> None:
    body = b'{"tool":"take","arguments":{"item":{"name":"a","price":"\\u006ean"}}}'

    assert code(client.post("/agent/execute", content=body, headers=JSON)) == "INVALID_ARGUMENTS"
    escaped = body.replace(b"\\u006ean", b"1\\u0065400")
    assert code(client.post("/agent/execute", content=escaped, headers=JSON)) == "INVALID_ARGUMENTS"


def test_words_that_look_like_numbers_are_words(client: TestClient) -> None:
    answer = post(client, "take", {"item": {"name": "information 12e45 banana", "price": 2}})

    assert answer.status_code == 200


@pytest.mark.parametrize("sent", [b"NaN", b"[Infinity]", b"1e999", b'{"a":-Infinity}'])
def test_what_json_lacks_is_refused_wherever_it_stands(sent: bytes) -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    def look(sku: str = "a", quantity: int = 1) -> None: ...

    body = b'{"tool":"look","arguments":{"quantity":1},"request_id":%b}' % sent
    answer = TestClient(app_of(agent)).post(
        "/agent/execute", content=body, headers={"Content-Type": "application/json"}
    )

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert "execution_id" not in answer.json()
