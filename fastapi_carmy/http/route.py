"""Our routes: they answer every method and the slash form, and render their own errors.

FastAPI's handler is not used: its dependencies are solved where the execution lives, and
an exception of ours never meets the host's exception handlers.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol
from uuid import uuid4

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from fastapi_carmy.errors import AgentError
from fastapi_carmy.http.responses import Answer
from fastapi_carmy.injection import Guards, RouteGuards, to_agent_error
from fastapi_carmy.runtime_errors import method_not_allowed, tool_panic

__all__ = ("AgentRoute", "Endpoint")

_logger = logging.getLogger(__name__)


class Endpoint(Protocol):
    """What stands behind one of our routes."""

    @property
    def methods(self) -> Sequence[str]:
        """The methods that work here."""
        ...

    @property
    def owner(self) -> object:
        """The router that the endpoint belongs to."""
        ...

    @property
    def is_agent(self) -> bool:
        """Whether this is an agent's, not a part of carmy/1."""
        ...

    def respond(self, scope: Scope, receive: Receive, guards: Guards) -> Awaitable[Answer]:
        """Return what answers one request, whose method is one of `methods`.

        Args:
            scope: ASGI's.
            receive: ASGI's.
            guards: What the route depends on where it was included.

        Raises:
            Exception: What the request is refused with.
        """
        ...

    async def refuse(self, send: Send, error: AgentError) -> None:
        """Answer with an error, before anything else was sent."""
        ...


class AgentRoute(APIRoute):
    """One path of ours. Source: carmy/1, section 1.

    Attributes:
        answers: What stands behind the path; FastAPI's own endpoint only documents it.
        guards: What it depends on, wherever it is included.
    """

    def __init__(
        self, path: str, endpoint: Callable[..., object], *, answers: Endpoint, **options: Any
    ) -> None:
        """Put `answers` on `path`; `endpoint` has the signature that FastAPI reads."""
        super().__init__(path, endpoint, **options)
        self.answers = answers
        self.guards = RouteGuards(self)
        # What every path that matches ends with, wherever the route is included.
        self._tail = path[path.rfind("}") + 1 :]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path with and without a trailing slash, whatever the method."""
        path: str = scope["path"]
        slashless = path.removesuffix("/")

        if scope["type"] != "http" or not slashless.endswith(self._tail):
            return Match.NONE, {}

        match, child_scope = super().matches(
            scope if slashless == path else {**scope, "path": slashless}
        )

        # A method that does not work here is refused by `handle`, not by the host.
        return (Match.NONE if match is Match.NONE else Match.FULL), child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request that FastAPI has brought here."""
        await self.serve(scope, receive, send, None)

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, guards: Guards | None
    ) -> None:
        """Answer one request, errors included.

        Args:
            scope: ASGI's.
            receive: ASGI's.
            send: ASGI's.
            guards: What the route depends on where it was reached, if that is known.
        """
        endpoint = self.answers

        if scope["method"] == "HEAD":
            send = _without_body(send)

        if scope["method"] not in endpoint.methods:
            await endpoint.refuse(send, method_not_allowed(", ".join(endpoint.methods)))
            return

        try:
            answer = await endpoint.respond(scope, receive, guards or self.guards.of(scope))
        except Exception as error:  # noqa: BLE001
            # The edge of a request: whatever was not answered yet is answered here.
            await endpoint.refuse(send, _refusal(error))
        else:
            if callable(answer):
                await answer(send)
                return

            for message in answer:
                await send(message)


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}

        await send(message)

    return send_head


def _refusal(error: Exception) -> AgentError:
    known = to_agent_error(error)

    if known is not None:
        return known

    correlation_id = uuid4().hex
    _logger.error(
        "A request failed unexpectedly (correlation_id %s).", correlation_id, exc_info=error
    )
    return tool_panic(correlation_id)
