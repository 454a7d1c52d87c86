"""An AgentRouter inside another one: what of it is included as ordinary routes."""

from fastapi import APIRouter
from starlette.routing import BaseRoute
from starlette.types import Lifespan

from fastapi_carmy.http.route import AgentRoute

__all__ = ("OrdinaryRoutes",)


class OrdinaryRoutes(APIRouter):
    """A router's routes and agents without those of carmy/1, which its parent answers itself."""

    def __init__(self, child: APIRouter, *, lifespan: Lifespan[object]) -> None:
        """Show the routes of `child`; those it gets before the application starts too."""
        # Before the base class, which sets `routes`.
        self._child = child
        super().__init__(
            prefix=child.prefix,
            tags=child.tags,
            dependencies=child.dependencies,
            default_response_class=child.default_response_class,
            responses=child.responses,
            callbacks=child.callbacks,
            deprecated=child.deprecated,
            include_in_schema=child.include_in_schema,
            lifespan=lifespan,
        )

    @property
    def routes(self) -> list[BaseRoute]:
        """The child's routes, as they are now."""
        return [
            route
            for route in self._child.routes
            if not isinstance(route, AgentRoute) or route.answers.is_agent
        ]

    @routes.setter
    def routes(self, routes: list[BaseRoute]) -> None:
        """Refuse nothing: the base class sets its own empty list."""
