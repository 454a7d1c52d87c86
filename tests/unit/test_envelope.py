"""From bytes to a call. Source: carmy/1, sections 2.1 and 4.2."""

import hashlib
import json

import pytest
from pydantic_core import to_json

from fastapi_carmy import AgentError
from fastapi_carmy.envelope import (
    Call,
    decode,
    encode_call,
    fingerprint,
    nearest_name,
    strict_json,
)
from fastapi_carmy.injection import make_tool
from fastapi_carmy.tool import Tool


async def order(sku: str, quantity: int = 1) -> None: ...


async def anything(value: object = None) -> None: ...


TOOLS: dict[str, Tool] = {
    "order": make_tool(order, effect="write"),
    "anything": make_tool(anything, effect="read"),
}


def read(body: bytes) -> Call:
    return decode(body, TOOLS.get)


def reason(body: bytes) -> str:
    with pytest.raises(AgentError) as caught:
        read(body)

    assert caught.value.code == "INVALID_REQUEST"
    details = caught.value.details
    assert isinstance(details, dict)
    return str(details["reason"])


def test_a_call_is_read_with_validated_arguments() -> None:
    body = b'{"tool":"order","arguments":{"sku":"TEA"},"request_id":"r"}'

    call = read(body)

    assert call.tool is TOOLS["order"]
    assert (call.tool_name, call.body, call.request_id, call.invalid) == ("order", body, "r", None)
    assert call.arguments == {"sku": "TEA", "quantity": 1}
    assert call.arguments_as_sent() == {"sku": "TEA"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"request_id":"r","arguments":{"sku":"TEA"},"tool":"order"}',
        b' {\n"tool" :\t"order" , "arguments":{"sku":"TEA"},"request_id":"r"}\r\n',
        b'{"t\\u006fol":"order","arguments":{"sku":"TEA"},"request_id":"r"}',
        b'{"tool":"\\u006frder","arguments":{"sku":"TEA"},"request_id":"r"}',
    ],
    ids=["order", "space", "escaped-key", "escaped-name"],
)
def test_every_spelling_of_a_call_is_the_same_call(body: bytes) -> None:
    call = read(body)

    assert (call.tool_name, call.request_id) == ("order", "r")
    assert call.arguments == {"sku": "TEA", "quantity": 1}
    assert fingerprint(call) == fingerprint(read(encode_call("order", {"sku": "TEA"}, None)))


def test_an_unknown_tool_is_a_call_without_one() -> None:
    call = read(b'{"tool":"nothing","arguments":{"x":1},"request_id":7}')

    assert (call.tool, call.tool_name, call.request_id) == (None, "nothing", 7)


@pytest.mark.parametrize("arguments", [b"null", b"[]", b"{}", b'{"sku":1}', b'{"sku":"a","x":1}'])
def test_wrong_arguments_are_kept_for_later(arguments: bytes) -> None:
    call = read(b'{"tool":"order","arguments":%b}' % arguments)

    assert call.tool is TOOLS["order"]
    assert call.invalid is not None


def test_the_reason_names_the_place_and_echoes_nothing() -> None:
    secret = "hunter2"
    bodies = [
        b'{"tool":"order","%b":1}' % secret.encode(),
        b'{"tool":"order" %b}' % secret.encode(),
        b'{"tool":"order","arguments":{"sku":"%b\\ud800"}}' % secret.encode(),
        b'{"tool":["%b"]}' % secret.encode(),
    ]

    reasons = [reason(body) for body in bodies]

    assert "column" in reasons[1]
    assert '"tool"' in reasons[3]
    assert not any(secret in text for text in reasons)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "the body is empty"),
        (b"\xef\xbb\xbf{}", "byte-order mark"),
        (b"[]", "not an object"),
        (b"{}", '"tool" is missing'),
        (b'{"tool":"anything","tool":"order"}', "twice"),
        (b'{"tool":"anything","arguments":{"value":1e400}}', "too large"),
        (b'{"tool":"anything","arguments":{"value":%b%b}}' % (b"[" * 127, b"]" * 127), "128"),
        (b'{"tool":"anything","arguments":{"value":%b%b}}' % (b"[" * 999, b"]" * 999), "128"),
    ],
    ids=["empty", "bom", "list", "no-tool", "twice", "large", "deep", "deeper"],
)
def test_the_reason_says_what_is_wrong(body: bytes, expected: str) -> None:
    assert expected in reason(body)


def test_a_fingerprint_is_what_the_contract_says() -> None:
    call = read('{"tool":"anything","arguments":{"value":{"b":"é","a":[1,1.0]}}}'.encode())

    text = '["anything",{"value":{"a":[1,1.0],"b":"é"}}]'
    assert fingerprint(call) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "value",
    ['"é\\u007f\\n\\"/\u2028"', "1e16", "1E-7", "123456789012345678901", "true", "null", "[1e16]"],
)
def test_a_fingerprint_is_python_s_own_text(value: str) -> None:
    body = f'{{"tool":"anything","arguments":{{"z":0,"value":{value},"a":1}}}}'
    arguments = json.loads(body)["arguments"]

    text = json.dumps(
        ["anything", arguments], sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    assert fingerprint(Call("anything", None, body.encode())) == (
        hashlib.sha256(text.encode()).hexdigest()
    )


def test_left_out_arguments_have_the_fingerprint_of_none() -> None:
    left_out, empty = read(b'{"tool":"anything"}'), read(b'{"tool":"anything","arguments":{}}')

    assert fingerprint(left_out) == fingerprint(empty)


@pytest.mark.parametrize(
    ("first", "second"), [(b"1", b"1.0"), (b"1", b"true"), (b"null", b"[]"), (b'"1"', b"1")]
)
def test_different_values_have_different_fingerprints(first: bytes, second: bytes) -> None:
    body = b'{"tool":"anything","arguments":{"value":%b}}'

    assert fingerprint(read(body % first)) != fingerprint(read(body % second))


def test_a_tool_in_the_arguments_has_no_say() -> None:
    call = read(b'{"arguments":{"value":{"tool":"order"}},"tool":"anything"}')

    assert call.tool_name == "anything"
    assert call.arguments == {"value": {"tool": "order"}}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("serch", "search"),
        ("search_", "search"),
        ("Search", "search"),
        ("zzz", None),
        ("", None),
        ("s" * 10_000, None),
    ],
)
def test_the_nearest_name_is_the_one_that_is_likely_meant(name: str, nearest: str | None) -> None:
    assert nearest_name(name, ["order", "search", "wipe"]) == nearest


def test_among_many_names_only_those_with_the_same_beginning_are_looked_at() -> None:
    names = [f"tool_{number}" for number in range(2_000)]

    assert nearest_name("tool_199x", names) in names
    assert nearest_name("order_1", names) is None


def test_strict_reading_returns_the_value() -> None:
    value = {"a": [1, 2.5, None, True, "é"], "b": {"c": 10**4000}}

    assert strict_json(to_json(value)) == value
