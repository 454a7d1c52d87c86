"""Answers as bytes: results, errors and documents."""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from starlette.types import Message, Send

from fastapi_carmy.catalog import Document
from fastapi_carmy.errors import AgentError
from fastapi_carmy.jsontext import encode
from fastapi_carmy.result import ExecutionResult

__all__ = (
    "Answer",
    "Messages",
    "document_answer",
    "error_body",
    "error_headers",
    "result_answer",
    "send_body",
    "send_error",
)

Messages = tuple[Message, ...]
"""A whole response, as ASGI's messages."""

Answer = Messages | Callable[[Send], Awaitable[None]]
"""A response: the messages to send, or what sends them; used once."""

_logger = logging.getLogger(__name__)
_RawHeaders = list[tuple[bytes, bytes]]
_NOT_MODIFIED = 304

_JSON: Final[tuple[bytes, bytes]] = (b"content-type", b"application/json")
_NO_STORE: Final[tuple[bytes, bytes]] = (b"cache-control", b"no-store")
# Most answers are short, and formatting a number takes longer than the rest of the headers.
_LENGTHS: Final = tuple(b"%d" % length for length in range(1024))
_FIXED = frozenset((b"content-type", b"content-length", b"cache-control", b"carmy-replayed"))
_OURS = _FIXED | {b"retry-after"}
# What says how the body is framed or coded; a host can't know that of a body of ours.
_FRAMING = frozenset(
    (
        b"connection",
        b"content-encoding",
        b"content-range",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_VALUES = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def error_body(error: AgentError) -> bytes:
    """Return the body that tells nothing but an error. Source: carmy/1, section 2.2."""
    return b'{"error":%b}' % encode(error.as_dict())


def error_headers(headers: Mapping[str, str]) -> _RawHeaders:
    """Return an error's headers; those of the host never replace ours."""
    raw = {
        # A name that does not fit keeps a `?`, and is left out below.
        name.lower().encode("latin-1", "replace"): str(value).encode("latin-1", "replace")
        for name, value in headers.items()
    }
    return [(name, value) for name, value in _fit(raw.items()) if name not in _FIXED]


async def send_body(
    send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]
) -> None:
    """Send a whole response."""
    for message in _messages(status, body, [*headers]):
        await send(message)


def result_answer(
    result: ExecutionResult, host_headers: Iterable[tuple[bytes, bytes]] = ()
) -> Messages:
    """Return an execution's answer.

    Args:
        result: The answer.
        host_headers: What dependencies set on their `Response`; ours win.

    Source: carmy/1, section 2.2.
    """
    headers: _RawHeaders = [_JSON, _NO_STORE]
    status = 200

    if result.replayed:
        headers.append((b"carmy-replayed", b"true"))
    elif host_headers:
        headers.extend(header for header in _fit(host_headers) if header[0].lower() not in _OURS)

    if result.error is not None:
        status = result.error.status_code
        headers.extend(error_headers(result.error.headers))

    return _messages(status, result.body, headers)


async def send_error(send: Send, error: AgentError) -> None:
    """Send a refusal that no execution stands behind."""
    await send_body(
        send,
        error.status_code,
        error_body(error),
        [_JSON, _NO_STORE, *error_headers(error.headers)],
    )


def document_answer(document: Document, *, if_none_match: str | None, vary: str) -> Messages:
    """Return a document, or 304 when the client has it.

    Args:
        document: What to send.
        if_none_match: The request's header, if it has one.
        vary: The headers that the document depends on, if any.

    Source: carmy/1, section 1.3.
    """
    headers: _RawHeaders = [
        _JSON,
        (b"etag", document.etag.encode()),
        (b"cache-control", b"private, max-age=60"),
    ]

    if vary:
        headers.append((b"vary", vary.encode("latin-1")))

    if if_none_match is not None and document.matches(if_none_match):
        return _messages(304, b"", headers)

    return _messages(200, document.body, headers)


def _messages(status: int, body: bytes, headers: _RawHeaders) -> Messages:
    # A 304 has no body and no length.
    if status != _NOT_MODIFIED:
        length = len(body)
        text = _LENGTHS[length] if length < len(_LENGTHS) else b"%d" % length
        headers.append((b"content-length", text))

    return (
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body},
    )


def _fit(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Leave out what is no header, and what would say something of our body.

    A line break in a value would make a second header of it. Source: RFC 9110, section 5.
    """
    for name, value in headers:
        if name.lower() in _FRAMING:
            continue

        if _NAME.fullmatch(name) is None or _NOT_IN_VALUES.search(value) is not None:
            # Neither name nor value: they may hold what the client sent.
            _logger.warning("A header with forbidden characters was left out of an answer.")
            continue

        yield name, value
