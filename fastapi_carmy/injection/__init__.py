"""FastAPI's dependency injection behind one seam.

Nothing outside this package knows how dependencies are read, solved or closed.
"""

from fastapi_carmy.injection.current import CurrentCaller, CurrentContext
from fastapi_carmy.injection.host_errors import to_agent_error
from fastapi_carmy.injection.opened import HostOpened, Opened
from fastapi_carmy.injection.registration import (
    caller_plan,
    check_route,
    for_overrides,
    make_tool,
    needs_request,
    with_guards,
)
from fastapi_carmy.injection.solver import dependant_of, overrides_in

__all__ = (
    "CurrentCaller",
    "CurrentContext",
    "HostOpened",
    "Opened",
    "caller_plan",
    "check_route",
    "dependant_of",
    "for_overrides",
    "make_tool",
    "needs_request",
    "overrides_in",
    "to_agent_error",
    "with_guards",
)
