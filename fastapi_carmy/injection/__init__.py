"""FastAPI's dependency injection behind one seam.

Nothing outside this package knows how dependencies are read, solved or closed.
"""

from fastapi_carmy.injection.current import CurrentCaller, CurrentContext
from fastapi_carmy.injection.guards import Guards, RouteGuards
from fastapi_carmy.injection.host_errors import to_agent_error
from fastapi_carmy.injection.opened import HostOpened, HttpOpened
from fastapi_carmy.injection.registration import (
    check_route,
    make_tool,
    needs_request,
    with_guards,
    with_overrides,
)
from fastapi_carmy.injection.solver import INCLUSION, NOTES, PLACE, dependant_of, stub
from fastapi_carmy.injection.vary import headers_read

__all__ = (
    "INCLUSION",
    "NOTES",
    "PLACE",
    "CurrentCaller",
    "CurrentContext",
    "Guards",
    "HostOpened",
    "HttpOpened",
    "RouteGuards",
    "check_route",
    "dependant_of",
    "headers_read",
    "make_tool",
    "needs_request",
    "stub",
    "to_agent_error",
    "with_guards",
    "with_overrides",
)
