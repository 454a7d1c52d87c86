"""A router that remembers where FastAPI found the routes of carmy.

FastAPI asks an included router twice a request which of its routes is meant, and rebuilds
what it passes down. For a path without parameters the answer is always the same, so here it
is asked once. Wherever FastAPI keeps its notes in another way, nothing is remembered.
"""

from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from weakref import ref

from fastapi import APIRouter
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.http.route import AgentRoute
from fastapi_carmy.injection import INCLUSION, NOTES, PLACE, Guards

__all__ = ("RememberingRouter",)

_MAX_REMEMBERED = 64
"""A router has few routes, and is included in few places."""

# Looked up in its enum each time that it is named.
_FULL = Match.FULL

_FOUND = "fastapi_carmy_found"
"""Where `matches` leaves its answer for `handle`, among the notes of FastAPI."""


@dataclass(frozen=True, slots=True)
class _Found:
    """One of our routes, as FastAPI found it. It does not keep the application alive."""

    route: AgentRoute
    guards: Guards
    endpoint: Any
    inclusion: "ref[object]"
    place: "ref[object]"
    root_path: str
    routes: list[BaseRoute]
    """All that the router had: those that come or go change the answer."""


class RememberingRouter(APIRouter):
    """Finds its routes as FastAPI does, the first time that a path is asked for."""

    # APIRouter's own, which differ between the versions of FastAPI.
    def __init__(self, **options: Any) -> None:
        """Remember nothing yet; for the options see `APIRouter`."""
        super().__init__(**options)
        # Path → what was found there last.
        self._found: dict[str, _Found] = {}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tell whether one of the routes is meant."""
        found = self._found.get(scope["path"])
        notes = scope.get(NOTES)

        if (
            found is None
            or notes is None
            or found.inclusion() is not notes.get(INCLUSION)
            or found.root_path != scope.get("root_path", "")
            or found.routes != self.routes
            or scope["type"] != "http"
            or scope.get("path_params")
            # What FastAPI tells its spans is FastAPI's to tell.
            or "fastapi.telemetry" in scope
        ):
            return super().matches(scope)

        # For `handle`, which comes next.
        notes[_FOUND] = found
        return _FULL, {}

    def handle(self, scope: Scope, receive: Receive, send: Send) -> Any:
        """Return what hands the request to the route that is meant: a coroutine."""
        notes: dict[str, Any] = scope.get(NOTES, {})
        found: _Found | None = notes.pop(_FOUND, None)

        if (
            found is None
            or found is not self._found.get(scope["path"])
            or (place := found.place()) is None
        ):
            return self._find(scope, receive, send)

        notes[PLACE] = place
        scope["path_params"] = {}
        scope["endpoint"] = found.endpoint
        scope["route"] = found.route
        return found.route.serve(scope, receive, send, found.guards)

    async def _find(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let FastAPI find the route, and remember it."""
        inclusion = scope.get(NOTES, {}).get(INCLUSION)
        # As it is before FastAPI finds the route.
        path, root_path = scope["path"], scope.get("root_path", "")

        await super().handle(scope, receive, send)

        if inclusion is not None and scope["type"] == "http":
            self._remember(path, root_path, inclusion, scope)

    def _remember(self, path: str, root_path: str, inclusion: object, scope: Scope) -> None:
        place: object = scope[NOTES].get(PLACE)
        route = getattr(place, "original_route", None)

        if scope.get("route") is not route or scope.get("path_params"):
            return

        # Ours answer every method; a route of the host before them may answer some.
        before = takewhile(lambda own: own is not route, self.routes)

        if isinstance(route, AgentRoute) and all(isinstance(own, AgentRoute) for own in before):
            try:
                guards = route.guards.of(scope)
            except ConfigurationError:
                # Refused, each time anew.
                return

            if len(self._found) >= _MAX_REMEMBERED:
                self._found.clear()

            self._found[path] = _Found(
                route,
                guards,
                scope["endpoint"],
                ref(inclusion),
                ref(place),
                root_path,
                list(self.routes),
            )
