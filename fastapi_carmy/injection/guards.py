"""What our routes depend on where they are included: guards that must never be missed."""

from dataclasses import dataclass, field
from typing import Any

from fastapi.routing import APIRoute
from starlette.types import Scope

from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.injection.solver import Dependant, dependant_of, dependants_in

__all__ = ("Guards", "RouteGuards")


@dataclass(slots=True)
class Guards:
    """What one of our routes depends on, as it is included in the application."""

    dependant: Dependant
    scopes_cache: dict[int, Any] = field(default_factory=dict[int, Any])
    has_any: bool = field(init=False)
    """Whether the route depends on anything at all."""

    def __post_init__(self) -> None:
        """Look once at what is asked for every request."""
        self.has_any = bool(self.dependant.dependencies)


class RouteGuards:
    """What one route depends on, in each of the places where it is included."""

    __slots__ = ("_known", "_route")

    def __init__(self, route: APIRoute) -> None:
        """Belong to `route`; nothing is looked at yet."""
        self._route = route
        # No id is used again while its dependant is kept.
        self._known: dict[int, Guards] = {}

    def remember(self, dependant: Dependant) -> Guards:
        """Know what the application says that the route depends on in one place."""
        return self._known.setdefault(id(dependant), Guards(dependant))

    def of(self, scope: Scope) -> Guards:
        """Return what a request depends on: the route's own guards and its includes'.

        Raises:
            ConfigurationError: If the application includes the route, and nowhere like
                this. The guards of the includes would be missed.
        """
        dependant = dependant_of(self._route, scope)
        known = self._known.get(id(dependant))
        return self._look_up(dependant, scope) if known is None else known

    def _look_up(self, dependant: Dependant, scope: Scope) -> Guards:
        """Look at the application as it is now: routers may be included at any time."""
        included = list(dependants_in(scope, self._route))

        # Where the application does not know the route, the host serves its router by itself.
        if included and not any(one is dependant for one in included):
            raise ConfigurationError(
                f"What {self._route.path!r} depends on can't be told with this version of "
                "FastAPI, so the request is refused."
            )

        return self.remember(dependant)
