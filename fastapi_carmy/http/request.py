"""What an execute request says in its head, and its body, read with a limit."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from starlette.types import Receive, Scope

from fastapi_carmy.runtime_errors import cancelled, invalid_request, payload_too_large

__all__ = ("RequestHead", "disconnected", "read_body")

_JSON = re.compile(r"application/(?:[^;\s]+\+)?json", re.IGNORECASE)
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')


class RequestHead(NamedTuple):
    """The headers that decide how a request is handled."""

    content_length: int | None
    content_type: str
    accept: str
    idempotency_keys: tuple[str | None, ...]
    """Each `Idempotency-Key` as the key that it holds; `None` for one that holds none."""

    @classmethod
    def of(cls, scope: Scope) -> "RequestHead":
        """Read the head of an HTTP request."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        found = dict(headers)

        if len(found) < len(headers):
            found = _joined(headers)

        keys: tuple[str | None, ...] = ()

        if b"idempotency-key" in found:
            keys = tuple(_key(value) for name, value in headers if name == b"idempotency-key")

        return cls(
            _content_length(found.get(b"content-length")),
            found.get(b"content-type", b"").decode("latin-1"),
            found.get(b"accept", b"").decode("latin-1"),
            keys,
        )

    def check_length(self, max_bytes: int) -> None:
        """Refuse a declared length over the limit, before anything else.

        Raises:
            AgentError: `PAYLOAD_TOO_LARGE`.
        """
        if self.content_length is not None and self.content_length > max_bytes:
            raise payload_too_large(max_bytes)

    def check_content_type(self) -> None:
        """Refuse a body that does not say it is JSON.

        Raises:
            AgentError: `INVALID_REQUEST`.

        Source: carmy/1, section 2.1.
        """
        # The one spelling that nearly every client sends.
        if self.content_type == "application/json":
            return

        if _JSON.fullmatch(self.content_type.partition(";")[0].strip()) is None:
            raise invalid_request("the content type must be application/json")


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """Return the request's body, reading no further than the limit.

    Raises:
        AgentError: `PAYLOAD_TOO_LARGE` past `max_bytes`; `CANCELLED` when the client left.
    """
    parts: list[bytes] = []
    size = 0

    while True:
        message = await receive()

        if message["type"] == "http.disconnect":
            raise cancelled()

        part: bytes = message.get("body", b"")
        size += len(part)

        if size > max_bytes:
            raise payload_too_large(max_bytes)

        if not message.get("more_body", False):
            return b"".join((*parts, part)) if parts else part

        parts.append(part)


async def disconnected(receive: Receive) -> None:
    """Return once the client has left; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return headers by name; those of one name as a list, but for the length, which is one."""
    found: dict[bytes, bytes] = {}

    for name, value in headers:
        is_list = name in found and name != b"content-length"
        found[name] = found[name] + b"," + value if is_list else value

    return found


def _content_length(value: bytes | None) -> int | None:
    # A server refuses any other spelling itself; an absurd length is over every limit.
    return int(value[:20]) if value is not None and value.isdigit() else None


def _key(value: bytes) -> str | None:
    try:
        text = value.decode().strip()
    except UnicodeDecodeError:
        return None

    if not text.startswith('"'):
        return text

    quoted = _QUOTED.fullmatch(text)
    return None if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])
