"""The execute request: from bytes to a call, refusing whatever JSON readers disagree on.

Well-formed requests are validated once, from the bytes. A cheap look at the bytes then
decides whether a strict reading is needed: pydantic's reader takes `NaN`, turns `1e999`
into an infinity, keeps the last of two equal keys, and nests deeper than we allow.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from fastapi_carmy.runtime_errors import invalid_request
from fastapi_carmy.tool import Tool

__all__ = ("Call", "decode", "encode_call", "fingerprint", "nearest_name", "strict_json")

_MAX_DEPTH = 128
_KEYS = frozenset(("tool", "arguments", "request_id"))

_TOOL_HINT = re.compile(rb'"tool"\s*:\s*"([A-Za-z0-9_.-]{1,128})"')
# What readers of JSON may differ on: escaped keys, no numbers, and numbers beyond a float. It
# starts with a set of characters, because that is what the search skips quickest.
_DOUBTFUL = re.compile(
    rb"[\\NI0-9](?:(?<=\\)u|(?<=N)aN|(?<=I)nfinity|(?<=[0-9])(?:[eE]\+?[0-9]{2}|[0-9]{299}))"
)
_MANY_TOOLS = 1_000
_NAMED_FIRST = 4
_PLAIN = frozenset((str, int, bool, type(None)))
# Copied, because OpenSSL looks an algorithm up each time that it is asked for one.
_SHA_256 = hashlib.sha256()
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(slots=True)
class Call:
    """One decoded execute request. What is wrong with its parts is told in its turn."""

    tool_name: str
    tool: Tool | None
    body: bytes
    arguments: dict[str, object] = field(default_factory=dict[str, object])
    """Validated, by parameter name."""
    request_id: object = None
    """As sent: the runtime checks it."""
    invalid: Exception | None = None
    """Why the arguments did not pass validation: pydantic's error, or a validator's own."""

    def arguments_as_sent(self) -> Mapping[str, object]:
        """Return the arguments before validation; empty when they were left out."""
        # Keys come again, values seldom do.
        sent = from_json(self.body, cache_strings="keys")
        arguments: Mapping[str, object] | None = sent.get("arguments")
        return arguments if isinstance(arguments, dict) else {}


def decode(body: bytes, find: Callable[[str], Tool | None]) -> Call:
    """Read an execute request.

    Args:
        body: The request's bytes.
        find: Tool name → tool.

    Raises:
        AgentError: `INVALID_REQUEST`, with a reason that names the place.

    Source: carmy/1, section 2.1.
    """
    # Most clients name the tool first, which is quicker to see than to search for.
    parts = body.split(b'"', 4)
    is_first = len(parts) > _NAMED_FIRST and parts[1] == b"tool" and parts[2].strip() == b":"
    tool = find(parts[3].decode("ascii", "replace") if is_first else _hint(body))
    invalid: Exception | None = None

    if tool is not None:
        try:
            validate = tool.input.validate_json
            envelope = validate(body)
        except Exception as error:  # noqa: BLE001
            # A validator of the tool's may raise anything; the runtime tells it in its turn.
            invalid = error
        else:
            request_id = envelope.get("request_id")
            has_plain_id = request_id is None or isinstance(request_id, str)

            if not _is_plain(body, takes_plain=has_plain_id and tool.input.takes_plain_only):
                strict_json(body)

            return Call(tool.spec.name, tool, body, envelope["arguments"], request_id)

    call = _decode_slowly(body, find)

    if call.tool is tool:
        call.invalid = invalid
    elif call.tool is not None:
        _validate(call, call.tool)

    return call


def encode_call(tool: str, arguments: Mapping[str, object], request_id: str | None) -> bytes:
    """Return the request that calls `tool`, for callers that have no bytes.

    Raises:
        AgentError: `INVALID_REQUEST`, if JSON can't hold what is given.
    """
    call = {"tool": tool, "arguments": arguments, "request_id": request_id}

    try:
        # Numbers that JSON has not are written all the same, for `decode` to refuse.
        return to_json(call, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError, RecursionError):
        raise invalid_request("JSON can't hold the arguments or the request_id") from None


def fingerprint(call: Call) -> str:
    """Return what a repeated `request_id` is compared with.

    SHA-256 in hex over compact JSON of the tool and its arguments as sent. Key order
    does not matter; `1` and `1.0` differ.

    Source: carmy/1, section 4.2.
    """
    sent = call.arguments_as_sent()

    if _PLAIN.issuperset(map(type, sent.values())):
        # Nothing in it that writers of JSON write differently, and the quickest will do.
        canonical = to_json([call.tool_name, dict(sorted(sent.items()))])
    else:
        # How a float is written differs, even between versions; Python's `repr` stays as it is.
        canonical = _CANONICAL.encode([call.tool_name, sent]).encode()

    digest = _SHA_256.copy()
    digest.update(canonical)
    return digest.hexdigest()


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` most likely means, if any is near."""
    candidates = list(names)

    if len(candidates) > _MANY_TOOLS:
        candidates = [candidate for candidate in candidates if candidate[:2] == name[:2]]

    return next(iter(get_close_matches(name[:128], candidates, n=1)), None)


def strict_json(body: bytes) -> object:
    """Read JSON as carmy/1 allows it.

    Raises:
        AgentError: `INVALID_REQUEST`, with a reason that names the place.
    """
    if not body.strip():
        raise invalid_request("the body is empty")

    if body.startswith(b"\xef\xbb\xbf"):
        raise invalid_request("the body starts with a byte-order mark")

    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid_request(_syntax_reason(str(error))) from None

    _check_values(value)

    if _repeats_a_key(body):
        raise invalid_request("a key stands twice at the top level")

    return value


def _hint(body: bytes) -> str:
    """Return what is most likely the tool's name; validation tells."""
    hint = _TOOL_HINT.search(body)
    return "" if hint is None else hint[1].decode()


def _is_plain(body: bytes, *, takes_plain: bool) -> bool:
    """Tell whether both readings of a valid `body` surely agree.

    Args:
        body: The request's bytes.
        takes_plain: Whether it holds texts, integers and truth values only.
    """
    return (
        body.count(b'"tool"') == 1
        and body.count(b'"arguments"') <= 1
        and body.count(b'"request_id"') <= 1
        # A level takes two bytes.
        and (len(body) <= 2 * _MAX_DEPTH or body.count(b"{") + body.count(b"[") <= _MAX_DEPTH)
        # In plain values only an escape can hide anything: a key.
        and ((takes_plain and body.find(b"\\") < 0) or _DOUBTFUL.search(body) is None)
    )


def _decode_slowly(body: bytes, find: Callable[[str], Tool | None]) -> Call:
    value = strict_json(body)

    if not isinstance(value, dict):
        raise invalid_request("the body is not an object")

    envelope = cast("dict[str, object]", value)

    if not envelope.keys() <= _KEYS:
        raise invalid_request(
            'the top level has a key other than "tool", "arguments" and "request_id"'
        )

    name = envelope.get("tool")

    if not isinstance(name, str):
        raise invalid_request('"tool" is missing, or not a string')

    return Call(name, find(name), body, request_id=envelope.get("request_id"))


def _validate(call: Call, tool: Tool) -> None:
    try:
        call.arguments = tool.input.validate_json(call.body)["arguments"]
    except Exception as error:  # noqa: BLE001
        # As in `decode`.
        call.invalid = error


def _syntax_reason(message: str) -> str:
    """Turn the reader's words, which name the place and hold no input, into a reason."""
    if "recursion" in message:
        return f"the body nests deeper than {_MAX_DEPTH}"

    return f"malformed JSON: {message}"


def _check_values(value: object) -> None:
    """Look at every value of a document, level by level."""
    level = [value]
    depth = 0

    while level:
        if any(type(item) is float and math.isinf(item) for item in level):
            raise invalid_request("a number is too large")

        containers: list[object] = [item for item in level if isinstance(item, dict | list)]
        depth += bool(containers)

        if depth > _MAX_DEPTH:
            raise invalid_request(f"the body nests deeper than {_MAX_DEPTH}")

        level = [item for container in containers for item in _items(container)]


def _items(container: object) -> Iterable[object]:
    if isinstance(container, dict):
        return cast("dict[str, object]", container).values()

    return cast("list[object]", container)


def _repeats_a_key(body: bytes) -> bool:
    """Tell whether the outermost object of valid JSON names a key twice."""
    pairs: list[tuple[str, object]] = []

    def keep(found: list[tuple[str, object]]) -> None:
        # The outermost object ends last.
        nonlocal pairs
        pairs = found

    json.loads(body, object_pairs_hook=keep)
    return len({key for key, _ in pairs}) < len(pairs)
