"""What an execute request says in its head, and its body, read with a limit."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from starlette.types import Message, Receive, Scope

from fastapi_carmy.runtime_errors import cancelled, invalid_request, payload_too_large

__all__ = ("Inbox", "RequestHead", "disconnected")

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


class Inbox:
    """One request's messages, for two readers of its body: us, and what it depends on.

    A guard may read the body before us, a dependency after us; neither takes it from the
    other, and neither gets past the limit.
    """

    __slots__ = ("_has_ended", "_max_bytes", "_parts", "_receive", "_size", "_taken")

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        """Own `receive`; nothing is read yet.

        Args:
            receive: ASGI's.
            max_bytes: Limit of the body.
        """
        self._receive = receive
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._has_ended = False
        self._taken = 0

    async def body(self) -> bytes:
        """Return the whole body, reading no further than the limit.

        Raises:
            AgentError: `PAYLOAD_TOO_LARGE` past the limit; `CANCELLED` when the client left.
        """
        while not self._has_ended:
            if (await self._next())["type"] == "http.disconnect":
                raise cancelled()

        if len(self._parts) == 1:
            return self._parts[0]

        return b"".join(self._parts)

    async def receive(self) -> Message:
        """Return the next message, as ASGI's `receive`, for guards and dependencies.

        Raises:
            AgentError: `PAYLOAD_TOO_LARGE` past the limit.
        """
        if self._taken == len(self._parts):
            if self._has_ended:
                return await self._receive()

            message = await self._next()
            self._taken = len(self._parts)
            return message

        self._taken += 1
        return {
            "type": "http.request",
            "body": self._parts[self._taken - 1],
            "more_body": self._taken < len(self._parts) or not self._has_ended,
        }

    async def _next(self) -> Message:
        # Who goes on after a refusal gets no further.
        self._check_size()
        message = await self._receive()
        part: bytes = message.get("body", b"")
        self._size += len(part)
        self._check_size()

        if message["type"] == "http.request":
            self._parts.append(part)
            self._has_ended = not message.get("more_body", False)

        return message

    def _check_size(self) -> None:
        if self._size > self._max_bytes:
            raise payload_too_large(self._max_bytes)


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
