"""A request as it comes in."""

import re
from collections.abc import Iterable
from typing import cast

from starlette.types import Message, Receive, Scope

from fastapi_carmy.cancellation import Task, join, start_task
from fastapi_carmy.runtime_errors import cancelled, invalid_request, payload_too_large

__all__ = ("Inbox", "disconnected")

_JSON = re.compile(r"application/(?:[^;\s]+\+)?json", re.IGNORECASE)
_MAX_DIGITS = 20
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')


class Inbox:
    """One request as it comes in: its head, and its body, read with a limit.

    The body has two readers: us, and what the request depends on. A guard may read it before
    us, a dependency after us; neither takes it from the other, and neither gets past the limit.
    """

    __slots__ = (
        "_found",
        "_headers",
        "_is_shared",
        "_max_bytes",
        "_parts",
        "_pending",
        "_receive",
        "_size",
        "_taken",
        "body",
        "declared_length",
        "has_accept",
        "has_ended",
        "has_idempotency_key",
        "is_json",
        "next_message",
    )

    def __init__(self, scope: Scope, receive: Receive, max_bytes: int) -> None:
        """Own `receive`; nothing of the body is read yet.

        Args:
            scope: ASGI's.
            receive: ASGI's.
            max_bytes: Limit of the body.
        """
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        found = dict(headers)

        if len(found) < len(headers):
            found = _joined(headers)

        self._headers = headers
        self._found = found
        self.declared_length = found.get(b"content-length", b"")
        """As sent; empty when it was not."""
        # The one spelling that nearly every client sends.
        self.is_json = found.get(b"content-type") == b"application/json"
        """Whether the body surely says that it is JSON; else `check_content_type` looks."""
        self.has_accept = b"accept" in found
        """Whether the client says what it takes."""
        self.has_idempotency_key = b"idempotency-key" in found
        """Whether `idempotency_keys` holds any."""
        self._receive = receive
        self._is_shared = False
        self._pending: Task[object] | None = None
        self.next_message: Receive = receive
        """ASGI's `receive`, whose messages `keep` takes."""
        self.has_ended = False
        """Whether `body` is whole."""
        self.body = b""
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._taken = 0

    @property
    def content_type(self) -> str:
        """As sent; empty when it was not."""
        return self._found.get(b"content-type", b"").decode("latin-1")

    @property
    def accept(self) -> str:
        """As sent; empty when it was not."""
        return self._found.get(b"accept", b"").decode("latin-1")

    @property
    def idempotency_keys(self) -> tuple[str | None, ...]:
        """Each `Idempotency-Key` as the key that it holds; `None` for one that holds none."""
        return tuple(_key(value) for name, value in self._headers if name == b"idempotency-key")

    def check_length(self) -> None:
        """Refuse a declared length over the limit, before anything else.

        Raises:
            AgentError: `PAYLOAD_TOO_LARGE`.
        """
        length = self.declared_length

        # A server refuses any other spelling itself; an absurd length is over every limit.
        if length.isdigit() and int(length[:_MAX_DIGITS]) > self._max_bytes:
            raise payload_too_large(self._max_bytes)

    def check_content_type(self) -> None:
        """Refuse a body that does not say it is JSON.

        Raises:
            AgentError: `INVALID_REQUEST`.

        Source: carmy/1, section 2.1.
        """
        if _JSON.fullmatch(self.content_type.partition(";")[0].strip()) is None:
            raise invalid_request("the content type must be application/json")

    def keep(self, message: Message) -> None:
        """Keep the part of the body that a message holds; `body` is whole once `has_ended`.

        Raises:
            AgentError: `PAYLOAD_TOO_LARGE` past the limit; `CANCELLED` when the client left.
        """
        if message["type"] == "http.disconnect":
            raise cancelled()

        part: bytes = message.get("body", b"")
        self._size += len(part)

        if self._size > self._max_bytes:
            # Who goes on after a refusal gets no further, whichever of the two readers it is.
            self._is_shared = True
            self.next_message = self._refuse
            raise payload_too_large(self._max_bytes)

        self._parts.append(part)

        if not message.get("more_body", False):
            self.has_ended = True
            self.body = part if len(self._parts) == 1 else b"".join(self._parts)

    async def receive(self) -> Message:
        """Return the next message, as ASGI's `receive`, for guards and dependencies.

        Raises:
            AgentError: `PAYLOAD_TOO_LARGE` past the limit.
        """
        if self._taken == len(self._parts):
            if not self._is_shared:
                self._is_shared = True
                self.next_message = self._next_shared

            message = await self.next_message()

            if not self.has_ended and message["type"] == "http.request":
                self.keep(message)
                self._taken = len(self._parts)

            return message

        self._taken += 1
        return {
            "type": "http.request",
            "body": self._parts[self._taken - 1],
            "more_body": self._taken < len(self._parts) or not self.has_ended,
        }

    async def disconnected(self) -> None:
        """Return once the client has left; the body must have been read."""
        await disconnected(self.next_message)

    async def _next_shared(self) -> Message:
        """Return the next message; whoever gives up waiting takes it from nobody.

        `Request.is_disconnected` gives up at once, and may have the body in its hands by then.
        """
        pending = self._pending

        if pending is None:
            pending = self._pending = start_task(self._next())

        # Interrupted here, the message is kept for whoever asks next.
        message = await join(pending)

        if self._pending is pending:
            self._pending = None

        return cast("Message", message)

    async def _next(self) -> Message:
        return await self._receive()

    async def _refuse(self) -> Message:
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


def _key(value: bytes) -> str | None:
    try:
        text = value.decode().strip()
    except UnicodeDecodeError:
        return None

    if not text.startswith('"'):
        return text

    quoted = _QUOTED.fullmatch(text)
    return None if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])
