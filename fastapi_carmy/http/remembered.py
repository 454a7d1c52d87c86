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

_Key = tuple[int, str, str, int]


class _Found(NamedTuple):
    """One of our routes, as FastAPI found it. It does not keep the application alive."""

    route: AgentRoute
    endpoint: Any
    inclusion: "ref[object]"
    place: "ref[object]"


class RememberingRouter(APIRouter):
    """Finds its routes as FastAPI does, the first time that a path is asked for."""

    # APIRouter's own, which differ between the versions of FastAPI.
    def __init__(self, **options: Any) -> None:
        """Remember nothing yet; for the options see `APIRouter`."""
        super().__init__(**options)
        self._found: dict[_Key, _Found] = {}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tell whether one of the routes is meant."""
        return super().matches(scope) if self._recall(scope) is None else (Match.FULL, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request to the route that is meant."""
        found = self._recall(scope)
        place = None if found is None else found.place()

        if found is not None and place is not None:
            scope[NOTES][PLACE] = place
            scope["path_params"] = {}
            scope["endpoint"] = found.endpoint
            scope["route"] = found.route
            await found.route.handle(scope, receive, send)
            return

        inclusion = scope.get(NOTES, {}).get(INCLUSION)
        # As it is before FastAPI finds the route.
        key = id(inclusion), scope["path"], scope.get("root_path", ""), len(self.routes)

        try:
            await super().handle(scope, receive, send)
        finally:
            if inclusion is not None:
                self._remember(key, inclusion, scope)

    def _recall(self, scope: Scope) -> _Found | None:
        notes = scope.get(NOTES)

        if notes is None:
            return None

        inclusion = notes.get(INCLUSION)
        # Routes that come or go change the answer.
        found = self._found.get(
            (id(inclusion), scope["path"], scope.get("root_path", ""), len(self.routes))
        )

        if (
            found is None
            or found.inclusion() is not inclusion
            or scope["type"] != "http"
            or scope.get("path_params")
            # What FastAPI tells its spans is FastAPI's to tell.
            or "fastapi.telemetry" in scope
        ):
            return None

        return found

    def _remember(self, key: _Key, inclusion: object, scope: Scope) -> None:
        place: object = scope[NOTES].get(PLACE)
        route = getattr(place, "original_route", None)

        if not isinstance(route, AgentRoute) or route is not scope.get("route"):
            return

        if scope.get("path_params") or not any(own is route for own in self.routes):
            return

        if len(self._found) >= _MAX_REMEMBERED:
            self._found.clear()

        self._found[key] = _Found(route, scope["endpoint"], ref(inclusion), ref(place))
