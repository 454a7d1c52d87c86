"""What is checked of the whole application, once its routers are known."""

import logging

from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute

from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.http.documents import EXECUTE_PATH
from fastapi_carmy.http.route import AgentRoute

__all__ = ("check_application",)

_logger = logging.getLogger(__name__)


def check_application(owner: object, app: object, *, has_caller: bool) -> None:
    """Look at all the routes that `app` serves for `owner`, a router.

    A router with guards and no `caller` is only warned about: all its callers share one
    namespace of `request_id`.

    Raises:
        ConfigurationError: If another router answers on the same paths.
    """
    routes: list[BaseRoute] = getattr(app, "routes", [])
    owners: dict[str, object] = {}

    for context in iter_route_contexts(routes):
        route = context.original_route

        if not isinstance(route, AgentRoute):
            continue

        path = context.path or ""
        first = owners.setdefault(path, route.answers.owner)

        if first is not route.answers.owner:
            raise ConfigurationError(
                f"Two AgentRouters answer on {path!r}: include one of them with a prefix, or "
                "include it in the other one."
            )

        is_ours = route.answers.owner is owner and path.endswith(EXECUTE_PATH)

        if is_ours and not has_caller and context.dependant.dependencies:
            _logger.warning(
                "%s has guards, but its AgentRouter has no `caller`: all callers share one "
                "namespace of request_id, so one may be answered with another's result.",
                path,
            )
