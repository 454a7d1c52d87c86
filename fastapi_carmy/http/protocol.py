"""The routes of carmy/1, and how they are put on a router."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends

from fastapi_carmy.http.documents import (
    DISCOVERY_PATH,
    EXECUTE_PATH,
    TOOLS_PATH,
    CatalogEndpoint,
    DiscoveryEndpoint,
)
from fastapi_carmy.http.execute import ExecuteEndpoint
from fastapi_carmy.http.openapi import (
    LazyOperation,
    document_responses,
    execute_operation,
    execute_responses,
)
from fastapi_carmy.http.route import AgentRoute, Endpoint
from fastapi_carmy.injection.solver import stub
from fastapi_carmy.service import Service
from fastapi_carmy.tool import ToolSpec

__all__ = ("Protocol",)

_TAG = "agent"


class Protocol:
    """What one router answers on the paths of carmy/1."""

    def __init__(
        self,
        owner: object,
        service: Callable[[object], Service],
        *,
        server: str,
        caller: Callable[..., object] | None,
        max_body_bytes: int,
        per_caller: bool,
        has_agents: Callable[[], bool],
    ) -> None:
        """Answer for `owner`.

        Args:
            owner: The router.
            service: Application → what is served; made when it is first needed.
            server: The server's name.
            caller: The dependency that says who calls.
            max_body_bytes: Limit of an execute request.
            per_caller: Whether each caller has a catalog of its own.
            has_agents: Whether AG-UI agents are mounted beside the tools.
        """
        self._owner = owner
        self._service = service
        self._server = server
        self._caller = caller
        self._max_body_bytes = max_body_bytes
        self._per_caller = per_caller
        self._has_agents = has_agents

    def add_routes(self, router: APIRouter, tools: Callable[[], Sequence[ToolSpec]]) -> None:
        """Put the three routes on `router`."""
        # Routes are tried in order, and this one is asked for most.
        self._add(
            router,
            EXECUTE_PATH,
            ExecuteEndpoint(
                self._owner,
                self._service,
                max_body_bytes=self._max_body_bytes,
            ),
            name="execute_tool",
            summary="Run one tool",
            description=(
                "Runs one tool. With a `request_id` the call can be made again safely: it is "
                "answered, and never run twice. `Accept: text/event-stream` asks for the events "
                "of the execution instead of JSON."
            ),
            responses=execute_responses(has_caller=self._caller is not None),
            openapi_extra=LazyOperation(lambda: execute_operation(tools())),
            with_caller=True,
        )
        self._add(
            router,
            TOOLS_PATH,
            CatalogEndpoint(self._owner, self._service, per_caller=self._per_caller),
            name="list_tools",
            summary="List the tools",
            description="The catalog: each tool's schemas, effect and limits.",
            responses=document_responses(),
            with_caller=self._per_caller,
        )
        self.add_discovery(router, prefix=None)

    def add_discovery(self, router: APIRouter, *, prefix: str | None) -> None:
        """Put the discovery route on `router`.

        Args:
            router: Where it goes.
            prefix: What the other paths start with; `None` when they stand beside it.
        """
        self._add(
            router,
            DISCOVERY_PATH,
            DiscoveryEndpoint(
                self._owner,
                self._service,
                server=self._server,
                capabilities=self._capabilities,
                prefix=prefix,
                per_caller=self._per_caller,
            ),
            name="discover_agent",
            summary="Discover what agents can do here",
            description="Where the catalog and the execute route are, and what is switched on.",
            responses=document_responses(),
            with_caller=self._per_caller,
        )

    def _capabilities(self) -> list[str]:
        """Return what is switched on. Source: carmy/1, section 1.1."""
        agents = ["ag-ui"] if self._has_agents() else []
        return ["tools", "streaming", "idempotency", *agents]

    def _add(
        self,
        router: APIRouter,
        path: str,
        endpoint: Endpoint,
        *,
        with_caller: bool,
        **options: Any,
    ) -> None:
        parameters: list[Parameter] = []

        if with_caller and self._caller is not None:
            # FastAPI then overrides and documents it like any dependency.
            annotation = Annotated[object, Depends(self._caller)]
            parameters = [Parameter("caller", Parameter.KEYWORD_ONLY, annotation=annotation)]

        router.add_api_route(
            path,
            stub(options["name"], parameters),
            methods=[endpoint.methods[0]],
            response_model=None,
            route_class_override=cast("type[AgentRoute]", partial(AgentRoute, answers=endpoint)),
            tags=[] if router.tags else [_TAG],
            **options,
        )
