"""Answers as bytes: results, errors and documents."""

from collections.abc import Iterable, Mapping
from typing import Final

from starlette.types import Send

from fastapi_carmy.catalog import Document
from fastapi_carmy.errors import AgentError
from fastapi_carmy.jsontext import encode
from fastapi_carmy.result import ExecutionResult

__all__ = ("error_body", "send_body", "send_document", "send_error", "send_result")

_RawHeaders = list[tuple[bytes, bytes]]

_JSON: Final[tuple[bytes, bytes]] = (b"content-type", b"application/json")
_NO_STORE: Final[tuple[bytes, bytes]] = (b"cache-control", b"no-store")
_FIXED = frozenset((b"content-type", b"content-length", b"cache-control", b"carmy-replayed"))
_OURS = _FIXED | {b"retry-after"}


def error_body(error: AgentError) -> bytes:
    """Return the body that tells nothing but an error. Source: carmy/1, section 2.2."""
    return b'{"error":%b}' % encode(error.as_dict())


async def send_body(
    send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]
) -> None:
    """Send a whole response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def send_result(
    send: Send, result: ExecutionResult, host_headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send an execution's answer.

    Args:
        send: ASGI's.
        result: The answer.
        host_headers: What dependencies set on their `Response`; ours win.

    Source: carmy/1, section 2.2.
    """
    headers: _RawHeaders = [_JSON, _NO_STORE]
    status = 200

    if result.replayed:
        headers.append((b"carmy-replayed", b"true"))
    elif host_headers:
        headers.extend(header for header in host_headers if header[0].lower() not in _OURS)

    if result.error is not None:
        status = result.error.status_code
        headers.extend(_raw(result.error.headers))

    await send_body(send, status, result.body, headers)


async def send_error(send: Send, error: AgentError) -> None:
    """Send a refusal that no execution stands behind."""
    await send_body(
        send, error.status_code, error_body(error), [_JSON, _NO_STORE, *_raw(error.headers)]
    )


async def send_document(
    send: Send, document: Document, *, if_none_match: str | None, vary: str
) -> None:
    """Send a document, or 304 when the client has it.

    Args:
        send: ASGI's.
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
        # A 304 has no body and no length.
        await send({"type": "http.response.start", "status": 304, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return

    await send_body(send, 200, document.body, headers)


def _raw(headers: Mapping[str, str]) -> _RawHeaders:
    """Return an error's headers; those of the host never replace ours."""
    raw = {
        name.lower().encode("latin-1"): value.encode("latin-1", "replace")
        for name, value in headers.items()
    }
    return [(name, value) for name, value in raw.items() if name not in _FIXED]
