"""What an execute request may look like. Source: carmy/1, section 2.1."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic_core import to_json

from fastapi_carmy import AgentRouter
from tests.support.asgi import connect
from tests.support.calls import app_of, code, post

JSON = {"Content-Type": "application/json"}
LIMIT = 2**20
REFUSED = {
    "empty": b"",
    "blank": b" ",
    "half": b"{",
    "null": b"null",
    "list": b"[]",
    "text": b'"echo"',
    "no-tool": b"{}",
    "arguments-only": b'{"arguments":{}}',
    "null-tool": b'{"tool":null}',
    "number-tool": b'{"tool":7}',
    "trailing-text": b'{"tool":"echo"} x',
    "single-quotes": b"{'tool':'echo'}",
    "trailing-comma": b'{"tool":"echo",}',
    "byte-order-mark": b'\xef\xbb\xbf{"tool":"echo"}',
    "utf-16": '{"tool":"echo"}'.encode("utf-16"),
    "bad-utf-8": b'{"tool":"echo","arguments":{"value":"\xff"}}',
    "nan": b'{"tool":"echo","arguments":{"value":NaN}}',
    "infinity": b'{"tool":"echo","arguments":{"value":[-Infinity]}}',
    "infinity-by-exponent": b'{"tool":"echo","arguments":{"value":1e999}}',
    "infinity-by-digits": b'{"tool":"echo","arguments":{"value":%b.0}}' % (b"9" * 400),
    "lone-surrogate": b'{"tool":"echo","arguments":{"value":"\\ud800"}}',
    "lone-surrogate-as-key": b'{"tool":"echo","arguments":{"\\udc00":1}}',
    "nested-129": b'{"tool":"echo","arguments":{"value":%b1%b}}' % (b"[" * 127, b"]" * 127),
    "nested-5000": b'{"tool":"echo","arguments":{"value":%b1%b}}' % (b"[" * 5000, b"]" * 5000),
    "4301-digits": b'{"tool":"echo","arguments":{"value":%b}}' % (b"9" * 4301),
    "minus-4301-digits": b'{"tool":"echo","arguments":{"value":-%b}}' % (b"9" * 4301),
    "tool-twice": b'{"tool":"echo","tool":"echo"}',
    "arguments-twice": b'{"tool":"echo","arguments":{},"arguments":{}}',
    "request-id-twice": b'{"tool":"echo","request_id":"a","request_id":"a"}',
    "tool-twice-escaped": b'{"tool":"echo","\\u0074ool":"count"}',
    "escaped-tool-first": b'{"t\\u006fol":"echo","tool":"echo"}',
}
ACCEPTED = {
    "nested-128": b"%b1%b" % (b"[" * 126, b"]" * 126),
    "4300-digits": b"9" * 4300,
    "large-float": b"1e308",
    "surrogate-pair": b'"\\ud83d\\ude00"',
    "keys-twice-below": b'{"a":1,"a":2}',
    "a-call-as-value": b'{"tool":"count","arguments":{"x":1}}',
    "brackets-in-text": b'"%b"' % (b"[" * 200),
    "nan-in-text": b'"NaN"',
}


def shop() -> FastAPI:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def echo(value: object = None) -> object:
        return value

    @agent.tool(effect="write")
    async def count(x: str) -> int:
        counted.append(x)
        return len(counted) - 1

    counted: list[str] = []
    return app_of(agent)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(shop(), follow_redirects=False) as client:
        yield client


@pytest.mark.spec("carmy/1 7.6")
def test_an_unknown_tool_is_not_found_and_a_near_one_is_suggested(client: TestClient) -> None:
    near, far = post(client, "cuont", {"x": "a"}), post(client, "zzz")

    assert near.status_code == far.status_code == 404
    assert code(near) == code(far) == "TOOL_NOT_FOUND"
    assert near.json()["error"]["suggested_action"] == "count"
    assert near.json()["error"]["recoverable"] is True
    assert "suggested_action" not in far.json()["error"]
    assert far.json()["status"] == "failed"


@pytest.mark.spec("carmy/1 7.6")
@pytest.mark.parametrize("tool", ["count", "unknown"])
@pytest.mark.parametrize("key", ["context", "caller", "permissions", "confirmation", "Tool"])
def test_a_request_carries_nothing_but_its_three_fields(
    client: TestClient, tool: str, key: str
) -> None:
    answer = client.post("/agent/execute", json={"tool": tool, "arguments": {"x": "a"}, key: {}})

    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert code(answer) == "INVALID_REQUEST"
    assert answer.json()["error"]["recoverable"] is True
    assert "reason" in answer.json()["error"]["details"]


@pytest.mark.spec("carmy/1 7.6")
@pytest.mark.parametrize("arguments", [None, [], [["x", "a"]], "x", 1, True])
def test_arguments_are_an_object(client: TestClient, arguments: object) -> None:
    answer = client.post("/agent/execute", json={"tool": "count", "arguments": arguments})

    assert answer.status_code == 400
    assert code(answer) == "INVALID_ARGUMENTS"
    assert answer.json()["error"]["details"]["errors"][0]["path"] == ""


@pytest.mark.spec("carmy/1 7.6")
def test_a_null_request_id_is_none_at_all(client: TestClient) -> None:
    body = {"tool": "count", "arguments": {"x": "a"}, "request_id": None}

    answers = [client.post("/agent/execute", json=body).json() for _ in range(2)]

    assert [answer["data"] for answer in answers] == [0, 1]


@pytest.mark.spec("carmy/1 2.1")
def test_arguments_may_be_left_out(client: TestClient) -> None:
    answer = client.post("/agent/execute", json={"tool": "echo"})

    assert answer.json()["data"] is None


@pytest.mark.spec("carmy/1 7.13")
@pytest.mark.parametrize(
    ("request_id", "is_valid"),
    [
        ("a", True),
        ("a" * 256, True),
        ("a" * 257, False),
        ("é" * 128, True),
        ("é" * 129, False),
        ("", False),
        (7, False),
        (True, False),
        (["a"], False),
        ({"a": 1}, False),
    ],
    ids=lambda value: str(value)[:8],
)
@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "other"}], ids=["body", "both"])
def test_a_request_id_is_1_to_256_bytes(
    client: TestClient, request_id: object, is_valid: bool, headers: dict[str, str]
) -> None:
    body = {"tool": "count", "arguments": {"x": "a"}, "request_id": request_id}

    answer = client.post("/agent/execute", json=body, headers=headers)

    if is_valid and not headers:
        assert answer.json()["status"] == "completed"
    else:
        assert answer.status_code == 400
        assert code(answer) == "INVALID_ID"
        assert answer.json()["error"]["recoverable"] is True


@pytest.mark.spec("carmy/1 2.1")
@pytest.mark.parametrize("key", ["order-1", '"order-1"', ' "order-1" '])
def test_the_idempotency_key_header_is_a_request_id(client: TestClient, key: str) -> None:
    first = post(client, "count", {"x": "a"}, headers={"Idempotency-Key": key})
    by_body = post(client, "count", {"x": "a"}, request_id="order-1")
    by_both = post(
        client, "count", {"x": "a"}, request_id="order-1", headers={"Idempotency-Key": key}
    )

    assert first.content == by_body.content == by_both.content
    assert by_body.headers["carmy-replayed"] == "true"


@pytest.mark.spec("carmy/1 2.1")
@pytest.mark.parametrize(
    ("request_id", "keys"),
    [
        ("a", ["b"]),
        ("a", ["a", "b"]),
        (None, ["a", "b"]),
        (None, [""]),
        (None, ['"a']),
        (None, ['"a";p=1']),
        ("a", ['"a']),
    ],
    ids=["differs", "two", "two-alone", "empty", "half-quoted", "parameters", "not-a-key"],
)
def test_a_key_that_holds_no_one_id_is_refused(
    client: TestClient, request_id: str | None, keys: list[str]
) -> None:
    body = {"tool": "count", "arguments": {"x": "a"}, "request_id": request_id}

    headers = [("Idempotency-Key", key) for key in keys]
    answer = client.post("/agent/execute", json=body, headers=headers)

    assert (answer.status_code, code(answer)) == (400, "INVALID_ID")


@pytest.mark.spec("carmy/1 2.1")
@pytest.mark.parametrize(
    ("content_type", "is_accepted"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/vnd.shop+json", True),
        ("application/problem+json;v=1", True),
        ("text/plain", False),
        ("application/jsonp", False),
        ("text/json", False),
        ("application/x-www-form-urlencoded", False),
        ("", False),
        (None, False),
    ],
)
def test_the_body_says_that_it_is_json(
    client: TestClient, content_type: str | None, is_accepted: bool
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}

    answer = client.post("/agent/execute", content=b'{"tool":"echo"}', headers=headers)

    if is_accepted:
        assert answer.status_code == 200
    else:
        assert (answer.status_code, code(answer)) == (400, "INVALID_REQUEST")


@pytest.mark.spec("carmy/1 2.1")
@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_what_readers_of_json_disagree_on_is_refused(
    client: TestClient, body: bytes, accept: str
) -> None:
    answer = client.post("/agent/execute", content=body, headers={**JSON, "Accept": accept})

    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert list(answer.json()) == ["error"]
    assert code(answer) == "INVALID_REQUEST"
    assert isinstance(answer.json()["error"]["details"]["reason"], str)


@pytest.mark.spec("carmy/1 2.1")
@pytest.mark.parametrize("value", ACCEPTED.values(), ids=ACCEPTED)
def test_what_they_agree_on_is_accepted(client: TestClient, value: bytes) -> None:
    body = b'{"tool":"echo","arguments":{"value":%b}}' % value

    assert client.post("/agent/execute", content=body, headers=JSON).status_code == 200


def test_a_tools_name_inside_of_the_arguments_calls_nothing(client: TestClient) -> None:
    body = b'{"arguments":{"value":{"tool":"count","x":1}},"tool":"echo"}'

    answer = client.post("/agent/execute", content=body, headers=JSON)

    assert answer.json()["data"] == {"tool": "count", "x": 1}


@pytest.mark.spec("carmy/1 2.1")
@pytest.mark.parametrize(
    ("accept", "is_stream"),
    [
        (None, False),
        ("*/*", False),
        ("text/*", False),
        ("application/json", False),
        ("text/html", False),
        ("text/event-stream", True),
        ("TEXT/Event-Stream; charset=utf-8", True),
        ("application/json, text/event-stream", True),
        ("text/event-stream;q=0", False),
        ("text/event-stream;q=0.5, application/json", False),
        ("text/event-stream;q=0.5, application/json;q=0.4", True),
        ("text/event-stream, */*;q=0.1", True),
        ("text/event-stream;q=0.1, */*", False),
    ],
)
def test_a_stream_is_sent_to_those_who_prefer_it(
    client: TestClient, accept: str | None, is_stream: bool
) -> None:
    headers = {} if accept is None else {"Accept": accept}

    answer = post(client, "echo", headers=headers)

    assert (answer.headers["content-type"] == "text/event-stream") is is_stream
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.spec("carmy/1 7.7")
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_declared_length_over_the_limit_is_refused_unread(accept: str) -> None:
    headers = {**JSON, "Accept": accept, "Content-Length": str(2 * LIMIT)}

    async with connect(
        shop(), "/agent/execute", method="POST", headers=headers, body=[b"x" * LIMIT] * 2
    ) as exchange:
        body = await exchange.json()

    assert exchange.status == 413
    assert exchange.body_messages_read == 0
    assert list(body) == ["error"]
    assert (body["error"]["code"], body["error"]["category"]) == ("PAYLOAD_TOO_LARGE", "capacity")
    assert body["error"]["recoverable"] is True
    assert "reason" in body["error"]["details"]


@pytest.mark.spec("carmy/1 7.7")
async def test_a_body_that_grows_over_the_limit_is_read_no_further() -> None:
    pieces = iter([b"x" * (LIMIT // 4)] * 8)

    async with connect(
        shop(), "/agent/execute", method="POST", headers=JSON, body=pieces
    ) as exchange:
        body = await exchange.json()

    assert exchange.status == 413
    assert body["error"]["code"] == "PAYLOAD_TOO_LARGE"
    assert exchange.body_messages_read == 5


@pytest.mark.spec("carmy/1 1")
@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 413)])
def test_the_limit_is_the_routers_and_exact(extra: int, status: int) -> None:
    agent = AgentRouter(max_body_bytes=1000)

    @agent.tool(effect="read")
    async def size(text: str) -> int:
        return len(text)

    empty = to_json({"tool": "size", "arguments": {"text": ""}})
    text = "x" * (1000 - len(empty) + extra)

    with TestClient(app_of(agent)) as client:
        assert post(client, "size", {"text": text}).status_code in (status, 413)
        body = to_json({"tool": "size", "arguments": {"text": text}})
        assert client.post("/agent/execute", content=body, headers=JSON).status_code == status
