"""Our routes: they answer every method and the slash form, and render their own errors.

FastAPI's handler is not used: its dependencies are solved where the execution lives, and
an exception of ours never meets the host's exception handlers.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol
from uuid import uuid4
from weakref import ref

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from fastapi_carmy.errors import AgentError
from fastapi_carmy.injection import Guards, RouteGuards, place_of, to_agent_error
from fastapi_carmy.runtime_errors import method_not_allowed, tool_panic

__all__ = ("AgentRoute", "Endpoint")

_logger = logging.getLogger(__name__)
_MAX_KNOWN = 16
"""A route is included in few places."""


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
        # Path and root path → where that matched, and what it adds to a scope. A place belongs
        # to its application, which a router does not keep alive.
        self._known: dict[tuple[str, str], tuple[ref[object], Scope]] = {}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path with and without a trailing slash, whatever the method."""
        path: str = scope["path"]
        slashless = path.removesuffix("/")

        if scope["type"] != "http" or not slashless.endswith(self._tail):
            return Match.NONE, {}

        # FastAPI asks each route twice a request, and nearly always for the same path.
        place = place_of(scope)
        key = slashless, scope.get("root_path", "")
        known = self._known.get(key)

        if known is not None and known[0]() is place and not scope.get("path_params"):
            return Match.FULL, {**known[1], "path_params": {}}

        match, child_scope = super().matches(
            scope if slashless == path else {**scope, "path": slashless}
        )

        if match is Match.NONE:
            return match, child_scope

        if place is not None and not child_scope["path_params"] and len(self._known) < _MAX_KNOWN:
            self._known[key] = ref(place), child_scope

        # A method that does not work here is refused by `handle`, not by the host.
        return Match.FULL, child_scope

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
            await endpoint.respond(scope, receive, send_once, self.guards.of(scope))
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
