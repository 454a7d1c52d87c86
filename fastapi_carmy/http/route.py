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
from fastapi_carmy.injection import Guards, guards_of, to_agent_error
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

    async def respond(self, scope: Scope, receive: Receive, send: Send, guards: Guards) -> None:
        """Answer one request, whose method is one of `methods`.

        Args:
            scope: ASGI's.
            receive: ASGI's.
            send: ASGI's.
            guards: What the route depends on where it was included.
        """
        ...

    async def refuse(self, send: Send, error: AgentError) -> None:
        """Answer with an error, before anything else was sent."""
        ...


class AgentRoute(APIRoute):
    """One path of ours. Source: carmy/1, section 1.

    Attributes:
        answers: What stands behind the path; FastAPI's own endpoint only documents it.
    """

    def __init__(
        self, path: str, endpoint: Callable[..., object], *, answers: Endpoint, **options: Any
    ) -> None:
        """Put `answers` on `path`; `endpoint` has the signature that FastAPI reads."""
        super().__init__(path, endpoint, **options)
        self.answers = answers
        # What every path that matches ends with, wherever the route is included.
        self._tail = path[path.rfind("}") + 1 :]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path with and without a trailing slash, whatever the method."""
        path: str = scope["path"]
        slashless = path.removesuffix("/")

        # FastAPI asks every route twice; most requests are none of ours.
        if not slashless.endswith(self._tail):
            return Match.NONE, {}

        match, child_scope = super().matches(
            scope if slashless == path else {**scope, "path": slashless}
        )

        # A method that does not work here is refused by `handle`, not by the host.
        return (Match.FULL if match is Match.PARTIAL else match), child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, errors included."""
        endpoint = self.answers
        is_head = scope["method"] == "HEAD"
        has_started = False

        def send_once(message: Message) -> Awaitable[None]:
            nonlocal has_started
            has_started = True

            if is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}

            return send(message)

        if scope["method"] not in endpoint.methods:
            await endpoint.refuse(send_once, method_not_allowed(", ".join(endpoint.methods)))
            return

        try:
            await endpoint.respond(scope, receive, send_once, guards_of(self, scope))
        except Exception as error:
            # The edge of a request: whatever was not answered yet is answered here.
            if has_started:
                raise

            await endpoint.refuse(send_once, _refusal(error))


def _refusal(error: Exception) -> AgentError:
    known = to_agent_error(error)

    if known is not None:
        return known

    correlation_id = uuid4().hex
    _logger.error(
        "A request failed unexpectedly (correlation_id %s).", correlation_id, exc_info=error
    )
    return tool_panic(correlation_id)
