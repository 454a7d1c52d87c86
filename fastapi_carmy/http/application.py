"""What is checked of the whole application, once its routers are known."""

import logging
from collections.abc import Collection

from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute

from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.http.documents import EXECUTE_PATH
from fastapi_carmy.http.route import AgentRoute
from fastapi_carmy.injection import check_route
from fastapi_carmy.tool import Tool

__all__ = ("check_application",)

_logger = logging.getLogger(__name__)


def check_application(
    owner: object, app: object, tools: Collection[Tool], *, has_caller: bool
) -> None:
    """Look at all the routes that `app` serves, for `owner`, a router with these `tools`.

    A router with guards and no `caller` is only warned about: all its callers share one
    namespace of `request_id`.

    Raises:
        ConfigurationError: If another router answers on the same paths, or a guard of the
            router's routes asks for something that it can't get.
    """
    routes: list[BaseRoute] = getattr(app, "routes", [])
    owners: dict[str, object] = {}

    for context in iter_route_contexts(routes):
        route = context.original_route

        if not isinstance(route, AgentRoute):
            continue

        route.guards.remember(context.dependant)
        path = context.path or ""
        first = owners.setdefault(path, route.answers.owner)

        if first is not route.answers.owner:
            raise ConfigurationError(
                f"Two AgentRouters answer on {path!r}: include one of them with a prefix, or "
                "include it in the other one."
            )

        if route.answers.owner is not owner:
            continue

        check_route(context.dependant, tools)
        has_guards = bool(context.dependant.dependencies)

        if has_guards and not has_caller and path.endswith(EXECUTE_PATH):
            _logger.warning(
                "%s has guards, but its AgentRouter has no `caller`: all callers share one "
                "namespace of request_id, so one may be answered with another's result.",
                path,
            )
