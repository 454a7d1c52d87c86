"""The execution's own objects, for dependencies and for plain endpoints.

A tool takes `AgentContext` and `Caller` by their bare classes. FastAPI knows neither, and
would fill them from the request; so whatever FastAPI itself calls takes these aliases.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Protocol

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.types import Scope

from fastapi_carmy.caller import Caller
from fastapi_carmy.context import AgentContext
from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.injection.solver import DependencyCall, solve_one
from fastapi_carmy.signature import Role

__all__ = ("SCOPE_KEY", "Current", "CurrentCaller", "CurrentContext", "as_caller", "caller_of")

SCOPE_KEY = "fastapi_carmy"
"""Where an execution's scope holds its `Current`."""


class Current(Protocol):
    """What an execution puts on its own copy of the scope."""

    @property
    def context(self) -> AgentContext | None:
        """The execution's context, once there is one."""
        ...

    async def resolve_caller(self) -> Caller:
        """Return who calls, asking the host's dependency once."""
        ...


class _Context:
    """The dependency behind `CurrentContext`."""

    __slots__ = ()
    carmy_role = Role.CONTEXT

    async def __call__(self, connection: HTTPConnection) -> AgentContext:
        """Return the running execution's context."""
        current: Current | None = connection.scope.get(SCOPE_KEY)

        if current is None or current.context is None:
            raise ConfigurationError("`CurrentContext` exists only while a tool is executed.")

        return current.context


class _Caller:
    """The dependency behind `CurrentCaller`."""

    __slots__ = ()
    carmy_role = Role.CALLER

    async def __call__(self, connection: HTTPConnection) -> Caller:
        """Return who calls the running execution, or else the plain endpoint."""
        current: Current | None = connection.scope.get(SCOPE_KEY)

        if current is not None:
            return await current.resolve_caller()

        call = caller_of(connection.scope)
        return Caller() if call is None else as_caller(await solve_one(connection, call))


CurrentContext = Annotated[AgentContext, Depends(_Context())]
"""The running execution, for a dependency's parameter."""

CurrentCaller = Annotated[Caller, Depends(_Caller())]
"""Who calls, for a dependency's or an endpoint's parameter.

In a plain endpoint: what the `caller` dependency of the endpoint's own `AgentRouter` says;
for an endpoint outside of any, the application's, if it has just one; else nobody.
"""


def as_caller(value: object) -> Caller:
    """Return what a `caller` dependency gave; `None` means nobody in particular.

    Raises:
        ConfigurationError: If it is something else.
    """
    if value is None:
        return Caller()

    if not isinstance(value, Caller):
        raise ConfigurationError(
            f"The caller dependency returns a `Caller` or `None`, not {type(value).__name__!r}."
        )

    return value


def caller_of(scope: Scope) -> DependencyCall | None:
    """Return the `caller` dependency that counts for a request, if there is one."""
    router = getattr(scope.get("app"), "router", None)
    route = scope.get("route")
    callers: list[DependencyCall] = []

    for inner in _routers(router):
        call: DependencyCall | None = getattr(inner, "carmy_caller", None)

        if call is None:
            continue

        # By identity: routes with one path and endpoint are equal.
        if any(own is route for nested in _routers(inner) for own in nested.routes):
            return call

        if call not in callers:
            callers.append(call)

    return callers[0] if len(callers) == 1 else None


def _routers(router: Any) -> Iterator[Any]:
    """Yield a router and those included in it, outermost first."""
    if router is None:
        return

    yield router

    for route in router.routes:
        yield from _routers(getattr(route, "original_router", None))
