"""One execution's dependencies: solved on its own copy of the scope, closed together."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from starlette.background import BackgroundTasks
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from fastapi_carmy.caller import Caller
from fastapi_carmy.context import AgentContext
from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.injection.current import SCOPE_KEY, as_caller, caller_of
from fastapi_carmy.injection.guards import Guards
from fastapi_carmy.injection.plan import Plan
from fastapi_carmy.injection.solver import (
    Dependant,
    Overrides,
    overrides_in,
    solve,
    solve_one,
)
from fastapi_carmy.injection.stacks import Stack, stack_keys
from fastapi_carmy.result import ExecutionResult
from fastapi_carmy.tool import Tool

__all__ = ("HostOpened", "HttpOpened")

_CALLER = "caller"
"""The parameter of our routes that takes what the `caller` dependency returns."""


class _Opened:
    """A call's dependencies: opened step by step, closed together. See `seams.Opened`.

    Open and close it in one task. The scope it is given is never changed.
    """

    __slots__ = (
        "_cache",
        "_guard_values",
        "_is_asking_caller",
        "_receive",
        "_request",
        "_route_guards",
        "_scope",
        "_stacks",
        "background",
        "caller",
        "context",
        "has_router_guards",
        "headers",
        "is_open",
        "overrides",
        "response",
    )

    def __init__(
        self, scope: Scope, receive: Receive | None, route_guards: Guards | None = None
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            scope: The request's.
            receive: For dependencies that read from the request.
            route_guards: What the route depends on, as from `RouteGuards.of`.
        """
        self._scope = scope
        self._receive = receive
        self._route_guards = route_guards
        self.has_router_guards = route_guards is not None and route_guards.has_any
        """Whether the route itself depends on anything."""
        self.overrides: Overrides = overrides_in(scope)
        """The application's `dependency_overrides`, as they are for this call."""
        self.is_open = False
        """Whether there is anything to close."""
        self.caller: Caller | None = None
        """Who calls; `None` when the host names nobody."""
        self.context: AgentContext | None = None
        """The execution's context, once there is one."""
        self.background: BackgroundTasks | None = None
        """Tasks that dependencies or the tool asked for."""
        self.response: Response | None = None
        """What dependencies set headers and cookies on."""
        self.headers: Iterable[tuple[bytes, bytes]] = ()
        """What they set."""
        self._request: Request | None = None
        self._guard_values: dict[str, Any] | None = None
        self._is_asking_caller = False
        self._cache: dict[Any, Any] = {}
        self._stacks: list[AsyncExitStack] = []

    async def resolve_caller(self) -> Caller:
        """Return who calls, for `CurrentCaller`."""
        return self.caller or Caller()

    async def guards(self, tool: Tool, context: Callable[[], AgentContext]) -> None:
        """Run the tool's own guards. See `seams.Opened.guards`."""
        self.context = context()
        solvable, _ = _plan_of(tool).solvables(self._path_names())

        if solvable is not None:
            self._guard_values = await self._solve(
                self._open(), solvable.dependant, scopes_cache=solvable.scopes_cache
            )

    async def dependencies(
        self, tool: Tool, context: Callable[[], AgentContext], arguments: Mapping[str, object]
    ) -> dict[str, object]:
        """Open the tool's remaining dependencies. See `seams.Opened.dependencies`."""
        plan = _plan_of(tool)
        _, solvable = plan.solvables(self._path_names())
        steps = None if solvable is None else solvable.steps

        # None of them asks for the context.
        if steps is not None and not plan.security_names:
            solved = await steps.values(self._scope, self._cache)

            if solved is not None:
                return solved

        self.context = context()
        values: dict[str, object] = {}

        if plan.security_names:
            guarded = await self._security_values(plan)
            values = {name: guarded[name] for name in plan.security_names}

        if solvable is None:
            return values

        request = self._open(anew=True)
        return values | await self._solve(
            request, solvable.dependant, body=arguments, scopes_cache=solvable.scopes_cache
        )

    async def aclose(self, error: BaseException | None) -> None:
        """Close everything, last opened first. See `seams.Opened.aclose`."""
        seen = error

        while self._stacks:
            stack = self._stacks.pop()

            try:
                if seen is None:
                    await stack.__aexit__(None, None, None)
                else:
                    await stack.__aexit__(type(seen), seen, seen.__traceback__)
            except BaseException as raised:  # noqa: BLE001
                # The others must close as well, and see the failure; it is raised below.
                seen = raised

        self.is_open = False

        if seen is not None and seen is not error:
            raise seen

    async def run_background(self, result: ExecutionResult) -> None:
        """Run the background tasks of a call that succeeded just now."""
        if self.background is not None and result.error is None and not result.replayed:
            await self.background()

    def _path_names(self) -> tuple[str, ...]:
        return tuple(self._scope.get("path_params") or ())

    def _open(self, *, anew: bool = False) -> Request:
        """Return the request to solve on, `anew` with stacks that close before those so far."""
        request = self._request

        if request is None:
            # A copy: parallel executions would meet on each other's stacks.
            scope = {**self._scope, SCOPE_KEY: self, **self._new_stacks()}
            request = Request(scope) if self._receive is None else Request(scope, self._receive)
            self._request = request
        elif anew:
            request.scope.update(self._new_stacks())

        return request

    def _new_stacks(self) -> dict[str, object]:
        inner, function = Stack(), Stack()
        self._stacks += (inner, function)
        self.is_open = True
        return stack_keys(inner, function)

    async def _solve(
        self,
        request: Request,
        dependant: Dependant,
        *,
        body: Mapping[str, object] | None = None,
        scopes_cache: dict[int, Any] | None = None,
        overrides: Overrides | None = None,
    ) -> dict[str, Any]:
        solved = await solve(
            request,
            dependant,
            body=body,
            cache=self._cache,
            background=self.background,
            response=self.response,
            overrides=overrides,
            scopes_cache=scopes_cache,
        )
        self.background = solved.background_tasks
        self.response = solved.response
        self.headers = solved.response.raw_headers
        return solved.values

    async def _security_values(self, plan: Plan) -> dict[str, Any]:
        if self._guard_values is None:
            solvable = plan.securities(self._path_names())
            self._guard_values = await self._solve(
                self._open(), solvable.dependant, scopes_cache=solvable.scopes_cache
            )

        return self._guard_values


class HttpOpened(_Opened):
    """The dependencies of a call over HTTP."""

    __slots__ = ()

    async def router_guards(self) -> Caller | None:
        """Run what the route itself depends on: the router's, its includes', the application's.

        Returns:
            What the `caller` dependency says; `None` where the route does not ask.

        Raises:
            ConfigurationError: If that is something else than a caller.
            Exception: Whatever a guard refuses with.
        """
        guards = self._route_guards

        if guards is None or not guards.has_any:
            return None

        values = await self._solve(
            self._open(),
            guards.dependant,
            scopes_cache=guards.scopes_cache,
            overrides=self.overrides,
        )

        if self.overrides:
            self._share_overridden()

        if _CALLER in values:
            self.caller = as_caller(values[_CALLER])

        return self.caller

    async def resolve_caller(self) -> Caller:
        """Return who calls; for a guard that asks before it is known, ask the host now.

        Raises:
            ConfigurationError: If the `caller` dependency asks for itself, or returns
                something else than a caller.
        """
        if self.caller is None:
            if self._is_asking_caller:
                raise ConfigurationError("The caller dependency can't depend on `CurrentCaller`.")

            self._is_asking_caller = True

            try:
                call = caller_of(self._scope)
                value = call and await solve_one(self._open(), call, cache=self._cache)
                self.caller = as_caller(value)
            finally:
                self._is_asking_caller = False

        return self.caller

    def _share_overridden(self) -> None:
        """Keep what FastAPI ran for an overridden guard for whoever asks for the override."""
        for (call, scopes, _), value in list(self._cache.items()):
            replacement = self.overrides.get(call)

            if replacement is not None:
                for scope in ("", "request", "function"):
                    self._cache.setdefault((replacement, scopes, scope), value)


class HostOpened(_Opened):
    """The dependencies of a call that the host makes itself, and vouches for."""

    __slots__ = ("lacks_request",)

    def __init__(self, app: object, request: Request | None, caller: Caller) -> None:
        """Prepare; nothing is opened yet.

        Args:
            app: The application, if it is known.
            request: Where dependencies read from; an empty one if it is `None`.
            caller: Who calls.
        """
        scope = _empty_scope(app) if request is None else request.scope
        receive = None if request is None else _Again(request).receive
        super().__init__(scope, receive)
        self.caller = caller
        self.lacks_request = request is None
        """Whether a tool that takes something from a request can't run: see `needs_request`."""

    async def guards(
        self,
        tool: Tool,  # noqa: ARG002
        context: Callable[[], AgentContext],
    ) -> None:
        """Pass: the host vouches for the caller."""
        self.context = context()


class _Again:
    """The messages of a request whose body the host may have read already."""

    __slots__ = ("_has_body", "_request")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._has_body = False

    async def receive(self) -> Message:
        if self._has_body:
            return await self._request.receive()

        # Kept by the host's request, whoever reads it first.
        body = await self._request.body()
        self._has_body = True
        return {"type": "http.request", "body": body, "more_body": False}


def _empty_scope(app: object) -> Scope:
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "path_params": {},
    }
    return scope if app is None else {**scope, "app": app}


def _plan_of(tool: Tool) -> Plan:
    plan = tool.plan
    assert isinstance(plan, Plan)
    return plan
