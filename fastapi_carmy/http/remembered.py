"""A router that remembers where FastAPI found the routes of carmy.

FastAPI asks an included router twice a request which of its routes is meant, and rebuilds
what it passes down. For a path without parameters the answer is always the same, so here it
is asked once. Wherever FastAPI keeps its notes in another way, nothing is remembered.
"""

from typing import Any, NamedTuple
from weakref import ref

from fastapi import APIRouter
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from fastapi_carmy.http.route import AgentRoute
from fastapi_carmy.injection import INCLUSION, NOTES, PLACE

__all__ = ("RememberingRouter",)

_MAX_REMEMBERED = 64
"""A router has few routes, and is included in few places."""

_FOUND = "fastapi_carmy_found"
"""Where `matches` leaves its answer for `handle`, among the notes of FastAPI."""


class _Found(NamedTuple):
    """One of our routes, as FastAPI found it. It does not keep the application alive."""

    route: AgentRoute
    endpoint: Any
    inclusion: "ref[object]"
    place: "ref[object]"
    root_path: str
    routes: int
    """How many the router had: those that come or go change the answer."""


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

        if found is None or not self._still_holds(found, scope):
            return super().matches(scope)

        # For `handle`, which comes next.
        scope[NOTES][_FOUND] = found
        return Match.FULL, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request to the route that is meant."""
        notes: dict[str, Any] = scope.get(NOTES, {})
        found: _Found | None = notes.pop(_FOUND, None)

        if (
            found is not None
            and found is self._found.get(scope["path"])
            and (place := found.place()) is not None
        ):
            notes[PLACE] = place
            scope["path_params"] = {}
            scope["endpoint"] = found.endpoint
            scope["route"] = found.route
            await found.route.handle(scope, receive, send)
            return

        inclusion = notes.get(INCLUSION)
        # As it is before FastAPI finds the route.
        path, root_path = scope["path"], scope.get("root_path", "")

        try:
            await super().handle(scope, receive, send)
        finally:
            if inclusion is not None and scope["type"] == "http":
                self._remember(path, root_path, inclusion, scope)

    def _still_holds(self, found: _Found, scope: Scope) -> bool:
        notes = scope.get(NOTES)
        return (
            notes is not None
            and found.inclusion() is notes.get(INCLUSION)
            and found.root_path == scope.get("root_path", "")
            and found.routes == len(self.routes)
            and scope["type"] == "http"
            and not scope.get("path_params")
            # What FastAPI tells its spans is FastAPI's to tell.
            and "fastapi.telemetry" not in scope
        )

    def _remember(self, path: str, root_path: str, inclusion: object, scope: Scope) -> None:
        place: object = scope[NOTES].get(PLACE)
        route = getattr(place, "original_route", None)

        if scope.get("route") is not route or scope.get("path_params"):
            return

        if isinstance(route, AgentRoute) and any(own is route for own in self.routes):
            if len(self._found) >= _MAX_REMEMBERED:
                self._found.clear()

            self._found[path] = _Found(
                route, scope["endpoint"], ref(inclusion), ref(place), root_path, len(self.routes)
            )
