"""`AgentRouter`: tools from dependency-injected functions, served over carmy/1.

Past the usual size, because options are spelled out where users write them: once for the
decorator and once for the plain form of each, so that editors and type checkers know them.
"""

import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, TypeVar, cast
from weakref import WeakSet, ref

from fastapi import APIRouter, params
from starlette.requests import Request
from starlette.types import Lifespan

from fastapi_carmy import hosting
from fastapi_carmy.audit import AuditSink, compile_sinks
from fastapi_carmy.caller import Caller
from fastapi_carmy.catalog import Catalog
from fastapi_carmy.envelope import nearest_name
from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.events import Event
from fastapi_carmy.hosting import HostCall
from fastapi_carmy.http.adoption import OrdinaryRoutes
from fastapi_carmy.http.agents import AgUiRoutes
from fastapi_carmy.http.application import check_application
from fastapi_carmy.http.protocol import Protocol
from fastapi_carmy.injection import (
    HostOpened,
    make_tool,
    to_agent_error,
    with_guards,
    with_overrides,
)
from fastapi_carmy.policies import Policy, compile_policies
from fastapi_carmy.result import ExecutionResult
from fastapi_carmy.runtime import Runtime
from fastapi_carmy.schemas import UnresolvedAnnotationError
from fastapi_carmy.seams import Settings
from fastapi_carmy.service import Service
from fastapi_carmy.stores import IdempotencyStore, open_store
from fastapi_carmy.threads import LoopLimiter
from fastapi_carmy.tool import Confirmation, Effect, OnDisconnect, Tool, ToolSpec
from fastapi_carmy.turns import Turns

__all__ = ("AgentRouter",)

_logger = logging.getLogger(__name__)
_MAX_BODY_BYTES = 2**20
_MAX_THREADS = 40
_FINISH_SECONDS = 5.0
_STOP_SECONDS = 5.0
_Function = TypeVar("_Function", bound=Callable[..., object])


class AgentRouter(AgUiRoutes):
    """A router that serves tools to AI agents, beside routes of its own.

    It is used as any router: `app.include_router(agent_router)`. Its lifespan builds the
    catalog, so a mistake in a tool stops the application while it starts.

    Attributes:
        store: Remembers calls with a `request_id`; to reconcile abandoned ones.
    """

    def __init__(
        self,
        *,
        server: str = "carmy",
        caller: Callable[..., object] | None = None,
        policies: Sequence[Policy] = (),
        store: IdempotencyStore | str | None = None,
        timeout_seconds: float = 30.0,
        max_body_bytes: int = _MAX_BODY_BYTES,
        on_disconnect: OnDisconnect = "cancel",
        audit: Sequence[AuditSink] = (),
        per_caller_catalog: bool = False,
        max_threads: int = _MAX_THREADS,
        finish_seconds: float = _FINISH_SECONDS,
        stop_seconds: float = _STOP_SECONDS,
        # APIRouter's own, which differ between the versions of FastAPI.
        **options: Any,
    ) -> None:
        """Make a router with the three routes of carmy/1 and no tools.

        Args:
            server: The server's name, told by discovery.
            caller: A dependency that returns a `Caller`, or `None` for an anonymous one.
            policies: Who may run what, and how often; asked in this order.
            store: An idempotency store, or its URL; `None` means `memory://`.
            timeout_seconds: Deadline of one execution; each tool may have its own.
            max_body_bytes: Limit of a request's body.
            on_disconnect: What a hang-up does: `cancel` the tool, or let it `finish`.
            audit: Sinks that get one record a call.
            per_caller_catalog: Show each caller only the tools that the policies list.
            max_threads: How many sync tools and dependencies run at once in an event loop.
            finish_seconds: Limit for closing dependencies and recording after a tool.
            stop_seconds: How long a stopping application waits for live executions.
            **options: Whatever `APIRouter` takes.

        Raises:
            ConfigurationError: If an option makes no sense.
        """
        for name, seconds in (
            ("timeout_seconds", timeout_seconds),
            ("finish_seconds", finish_seconds),
            ("stop_seconds", stop_seconds),
        ):
            if not seconds > 0:
                raise ConfigurationError(f"{name} is more than 0, not {seconds!r}.")

        super().__init__(**options)
        self._user_lifespan = self.lifespan_context
        self.lifespan_context = cast("Lifespan[Any]", self._lifespan)
        self.store = open_store("memory://" if store is None else store)
        self.carmy_caller = caller
        """The `caller` dependency; `CurrentCaller` finds it here."""
        # What one request has one of, and its outermost router decides.
        self._own_rules = [
            name
            for name, is_own in (
                ("caller", caller is not None),
                ("policies", bool(policies)),
                ("store", store is not None),
                ("audit", bool(audit)),
                ("max_body_bytes", max_body_bytes != _MAX_BODY_BYTES),
                ("per_caller_catalog", per_caller_catalog),
                ("max_threads", max_threads != _MAX_THREADS),
                ("finish_seconds", finish_seconds != _FINISH_SECONDS),
                ("stop_seconds", stop_seconds != _STOP_SECONDS),
            )
            if is_own
        ]
        self._policies = compile_policies(policies)
        self._timeout_seconds = timeout_seconds
        self._on_disconnect: OnDisconnect = on_disconnect
        self._audit = compile_sinks(audit)
        self._per_caller = per_caller_catalog
        self._limiter = LoopLimiter(max_threads)
        self._finish_seconds = finish_seconds
        self._stop_seconds = stop_seconds
        self._tools: list[Tool | Callable[[], Tool]] = []
        self._children: list[tuple[AgentRouter, Sequence[params.Depends]]] = []
        self._parents: list[AgentRouter] = []
        self._service: Service | None = None
        self._building = threading.Lock()
        self._known_apps: WeakSet[object] = WeakSet()
        # The one that was asked for last is known without a search.
        self._last_app: Callable[[], object] = lambda: None
        self._running_apps: list[object] = []
        self._protocol = Protocol(
            self,
            self._serve,
            server=server,
            caller=caller,
            max_body_bytes=max_body_bytes,
            per_caller=per_caller_catalog,
            has_agents=self._has_agents,
        )
        self._protocol.add_routes(self, lambda: self.tools)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the catalog lists, sorted by name.

        Raises:
            ToolError: If a tool is wrong.
        """
        return tuple(tool.spec for tool in self._catalog().tools.values())

    @property
    def tools_version(self) -> str:
        """SHA-256 of the catalog's body, lowercase hex; the same in every process."""
        return self._catalog().version

    def tool(
        self,
        *,
        effect: Effect | str,
        name: str | None = None,
        description: str | None = None,
        idempotent: bool = False,
        parallel_safe: bool = False,
        confirmation: Confirmation = "none",
        timeout_seconds: float | None = None,
        on_disconnect: OnDisconnect | None = None,
        dependencies: Sequence[params.Depends] = (),
        tags: Sequence[str] = (),
    ) -> Callable[[_Function], _Function]:
        """Register the decorated function as a tool, and return it unchanged.

        See `add_tool` for the options.
        """

        def register(function: _Function) -> _Function:
            self._register(
                function,
                _locals_of(inspect.currentframe()),
                effect=effect,
                name=name,
                description=description,
                idempotent=idempotent,
                parallel_safe=parallel_safe,
                confirmation=confirmation,
                timeout_seconds=timeout_seconds,
                on_disconnect=on_disconnect,
                dependencies=dependencies,
                tags=tags,
            )
            return function

        return register

    def add_tool(
        self,
        function: Callable[..., object],
        *,
        effect: Effect | str,
        name: str | None = None,
        description: str | None = None,
        idempotent: bool = False,
        parallel_safe: bool = False,
        confirmation: Confirmation = "none",
        timeout_seconds: float | None = None,
        on_disconnect: OnDisconnect | None = None,
        dependencies: Sequence[params.Depends] = (),
        tags: Sequence[str] = (),
    ) -> None:
        """Register a function as a tool.

        Args:
            function: What FastAPI would inject is injected, the rest are arguments.
            effect: What running it does to the world; there is no default.
            name: Defaults to the function's own name.
            description: Defaults to the docstring without its sections.
            idempotent: Running it twice with the same arguments does no more than once.
            parallel_safe: Two executions of it may overlap.
            confirmation: `required` when a person must confirm each call.
            timeout_seconds: Deadline of one execution; defaults to the router's.
            on_disconnect: What a hang-up does; defaults to the router's.
            dependencies: Guards of this tool, run on every call.
            tags: For the host's own use.

        Raises:
            ToolError: If the tool can't be served; names the parameter and the mend.
        """
        self._register(
            function,
            _locals_of(inspect.currentframe()),
            effect=effect,
            name=name,
            description=description,
            idempotent=idempotent,
            parallel_safe=parallel_safe,
            confirmation=confirmation,
            timeout_seconds=timeout_seconds,
            on_disconnect=on_disconnect,
            dependencies=dependencies,
            tags=tags,
        )

    def include_router(self, router: APIRouter, **options: Any) -> None:
        """Include another router, as `APIRouter.include_router` does.

        An `AgentRouter` gives its tools, with their guards and limits, and its ordinary
        routes; the routes of carmy/1 stay this router's.

        Raises:
            ConfigurationError: If it has an option of its own that would not count, such as
                a caller, policies, a store or an audit.
        """
        if not isinstance(router, AgentRouter):
            super().include_router(router, **options)
            return

        if router._own_rules:
            raise ConfigurationError(
                f"An AgentRouter with its own {', '.join(router._own_rules)} can't be included "
                "in another AgentRouter: give these to the outer one, or include both in the "
                "application under different prefixes."
            )

        self._refuse_late("A router")
        router._parents.append(self)
        self._children.append((router, tuple(options.get("dependencies") or ())))
        ordinary = OrdinaryRoutes(router, lifespan=router._user_lifespan)
        super().include_router(ordinary, **options)

    def well_known(self, prefix: str) -> APIRouter:
        """Return a router that serves discovery at its own root, for the origin's root.

        Args:
            prefix: What the other paths start with, such as `/api`.

        Raises:
            ConfigurationError: If `prefix` is no path, or one that depends on the request.
        """
        if (prefix and not prefix.startswith("/")) or "{" in prefix:
            raise ConfigurationError(
                f"The prefix is a path such as '/api', without parameters, not {prefix!r}."
            )

        root = APIRouter(dependencies=self.dependencies, tags=self.tags)
        self._protocol.add_discovery(root, prefix=prefix.rstrip("/"))
        return root

    async def execute(
        self,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        caller: Caller | None = None,
        request_id: str | None = None,
        request: Request | None = None,
        app: object = None,
    ) -> ExecutionResult:
        """Run a tool through the same pipeline as over HTTP, without HTTP.

        Guards are skipped, because the host vouches for the caller; policies run.

        Args:
            tool: Its name.
            arguments: By name; values as JSON or pydantic can hold them.
            caller: Who calls; anonymous by default.
            request_id: Makes a repeated call safe.
            request: Where dependencies read headers and the like. Without one, a tool that
                takes something from an HTTP request is refused as `INVALID_REQUEST`.
            app: The application whose overrides and state count, where there is no
                `request`; needed only when several include this router.

        Returns:
            The answer; a failure is data too, nothing is raised for it.

        Raises:
            ConfigurationError: If it is one of several applications, and which is not said.
        """
        return await hosting.execute(
            self._build(),
            self._host_call(
                tool,
                arguments,
                caller=caller,
                request_id=request_id,
                request=request,
                app=app,
            ),
        )

    async def aclose(self) -> None:
        """Stop live runs and executions and close the store, where no lifespan does."""
        await self._stop_agents(self._stop_seconds)

        if self._service is not None:
            await self._service.runtime.stop(self._stop_seconds)

        await self.store.aclose()

    def stream(
        self,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        caller: Caller | None = None,
        request_id: str | None = None,
        request: Request | None = None,
        app: object = None,
    ) -> AsyncGenerator[Event, None]:
        """Run a tool as `execute` does, and yield what its execution reports.

        The last event is `ExecutionCompleted`, with the answer. Closing the iterator
        earlier stops the execution on purpose: its dependencies roll back, and it is
        recorded as cancelled.

        Raises:
            ConfigurationError: As from `execute`.
        """
        return hosting.stream(
            self._build(),
            self._host_call(
                tool,
                arguments,
                caller=caller,
                request_id=request_id,
                request=request,
                app=app,
            ),
        )

    def _register(
        self, function: Callable[..., object], caller_locals: Mapping[str, object], **options: Any
    ) -> None:
        self._refuse_late("A tool")
        make = partial(
            make_tool, function, caller_locals=dict(caller_locals), limiter=self._limiter, **options
        )

        try:
            tool = make()
        except UnresolvedAnnotationError:
            # A class that is defined further down: known once the application starts.
            self._tools.append(make)
        else:
            self._tools.append(tool)

    def _refuse_late(self, what: str) -> None:
        if self._is_built():
            raise ConfigurationError(
                f"{what} was added after the catalog was built; add it before the application "
                "serves its first request."
            )

    def _is_built(self) -> bool:
        return self._service is not None or any(parent._is_built() for parent in self._parents)

    def _all_tools(self) -> Iterator[Tool]:
        # Resolved once; then nothing keeps the names of where a tool was registered.
        self._tools = [tool if isinstance(tool, Tool) else tool() for tool in self._tools]
        yield from (tool for tool in self._tools if isinstance(tool, Tool))

        for child, dependencies in self._children:
            for tool in child._all_tools():
                spec = replace(
                    tool.spec,
                    timeout_seconds=tool.spec.timeout_seconds or child._timeout_seconds,
                    on_disconnect=tool.spec.on_disconnect or child._on_disconnect,
                )
                yield with_guards(replace(tool, spec=spec), (*dependencies, *child.dependencies))

    def _catalog(self) -> Catalog:
        return Catalog(self._all_tools()) if self._service is None else self._service.catalog

    def _has_agents(self) -> bool:
        return bool(self._agents) or any(child._has_agents() for child, _ in self._children)

    def _serve(self, app: object) -> Service:
        """Return what this router serves in `app`, which is looked at once.

        Raises:
            ConfigurationError: If the router is put together wrongly, or can't be there.
        """
        service = self._service

        if service is not None and app is self._last_app():
            return service

        service = self._build()

        if app is not None:
            if app not in self._known_apps:
                tools = service.catalog.tools.values()
                check_application(self, app, tools, has_caller=self.carmy_caller is not None)
                self._known_apps.add(app)

            self._last_app = ref(app)

        return service

    def _build(self) -> Service:
        """Return what this router serves; built once, whoever asks first."""
        service = self._service

        if service is not None:
            return service

        with self._building:
            if self._service is None:
                catalog = Catalog(self._all_tools())
                self._service = Service(catalog, self._runtime(catalog), with_overrides)

            return self._service

    def _runtime(self, catalog: Catalog) -> Runtime:
        return Runtime(
            Settings(
                store=self.store,
                policies=self._policies,
                turns=Turns(),
                limiter=self._limiter,
                translate=to_agent_error,
                nearest=partial(self._nearest, catalog),
                timeout_seconds=self._timeout_seconds,
                on_disconnect=self._on_disconnect,
                finish_seconds=self._finish_seconds,
                audit=self._audit,
            )
        )

    def _nearest(self, catalog: Catalog, name: str, caller: Caller) -> str | None:
        # What a caller does not get to see is not told by a guess either.
        return nearest_name(
            name,
            (
                tool.spec.name
                for tool in catalog.tools.values()
                if not self._per_caller or self._policies.shows(caller, tool.spec)
            ),
        )

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncGenerator[Mapping[str, Any] | None]:
        service = self._serve(app)

        async with self._user_lifespan(app) as state:
            self._running_apps.append(app)

            try:
                yield state
            finally:
                self._running_apps.remove(app)

                # Two applications can share a router, and do not stop together.
                if not self._running_apps:
                    if not await self._stop_agents(self._stop_seconds):
                        _logger.error("Agents did not stop within %s s.", self._stop_seconds)

                    if not await service.runtime.stop(self._stop_seconds):
                        _logger.error(
                            "%d executions did not stop within %s s.",
                            service.runtime.live,
                            self._stop_seconds,
                        )

                    await self.store.aclose()

    async def _stop_agents(self, seconds: float) -> bool:
        stopped = [await child._stop_agents(seconds) for child, _ in self._children]
        return await super()._stop_agents(seconds) and all(stopped)

    def _host_call(
        self,
        tool: str,
        arguments: Mapping[str, object] | None,
        *,
        caller: Caller | None,
        request_id: str | None,
        request: Request | None,
        app: object,
    ) -> HostCall:
        if app is None and request is None:
            app = self._only_app()

        return HostCall(
            tool=tool,
            arguments=arguments or {},
            caller=caller or Caller(),
            request_id=request_id,
            opened=HostOpened(app, request, caller or Caller()),
        )

    def _only_app(self) -> object:
        """Return the application that a call of the host means, if there is just one."""
        # One that was let go may not be collected yet; whoever runs is meant.
        apps = {id(app): app for app in self._running_apps or self._known_apps}

        if len(apps) > 1:
            raise ConfigurationError(
                "Several applications include this AgentRouter: say which one the call is for, "
                "by `app=` or `request=`."
            )

        return next(iter(apps.values()), None)


def _locals_of(frame: FrameType | None) -> Mapping[str, object]:
    """Return the local names where a tool is registered; its annotations may use them."""
    return {} if frame is None or frame.f_back is None else frame.f_back.f_locals
