"""Putting agents on a router."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from ag_ui.core import AgentCapabilities
from fastapi import APIRouter, Response

from fastapi_carmy.agui.agents import agent_of
from fastapi_carmy.agui.capabilities import derived_capabilities
from fastapi_carmy.agui.endpoint.dependencies import RouteDependencies
from fastapi_carmy.agui.endpoint.openapi import (
    capabilities_responses,
    run_operation,
    run_responses,
)
from fastapi_carmy.agui.endpoint.serving import (
    AgentEndpoint,
    CapabilitiesEndpoint,
    EndpointOptions,
)
from fastapi_carmy.agui.run import RunOptions
from fastapi_carmy.agui.state import StateType
from fastapi_carmy.agui.transform import TransformerFactory
from fastapi_carmy.docstrings import read_docstring
from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.http.route import AgentRoute, Endpoint

__all__ = ("add_agent",)

_TAG = "agent"


def add_agent(
    router: APIRouter,
    path: str,
    agent: object,
    *,
    owner: object,
    caller: Callable[..., object] | None = None,
    state: Any = None,
    transformers: Sequence[TransformerFactory] = (),
    keep_alive_seconds: float | None = 15.0,
    timeout_seconds: float | None = None,
    echo_input: bool = False,
    verify: bool = True,
    max_body_bytes: int = 2 * 2**20,
    require_content_type: bool = False,
    disconnect_grace_seconds: float = 0.5,
    expose_errors: bool = False,
    capabilities: bool | AgentCapabilities = False,
    names: Mapping[str, Any] | None = None,
    **route: Any,
) -> AgentEndpoint:
    """Put an agent on `path` of `router`.

    Args:
        router: Where the route goes.
        path: The route's path.
        agent: See `AgentRouter.agui`, for the options as well.
        owner: The `AgentRouter`.
        caller: Its `caller` dependency.
        state: See `AgentRouter.agui`; so are the others.
        transformers: …
        keep_alive_seconds: …
        timeout_seconds: …
        echo_input: …
        verify: …
        max_body_bytes: …
        require_content_type: …
        disconnect_grace_seconds: …
        expose_errors: …
        capabilities: …
        names: Local names that the agent's annotations may use.
        **route: Whatever `APIRouter.add_api_route` takes.

    Returns:
        What answers on the path; its `stop` ends the runs that are live.

    Raises:
        TypeError: If `agent` is no agent, or a transformer is no factory.
        ConfigurationError: If a parameter of the agent, or an option, makes no sense.
    """
    found = agent_of(agent, names)
    _check(transformers, keep_alive_seconds, timeout_seconds, disconnect_grace_seconds)
    dependencies = RouteDependencies(found, path, caller=caller)
    endpoint = AgentEndpoint(
        owner,
        found,
        dependencies,
        EndpointOptions(
            run=RunOptions(
                state_type=StateType(found.state_type if state is None else state),
                transformers=tuple(transformers),
                echo_input=echo_input,
                verify=verify,
                timeout_seconds=timeout_seconds,
                grace_seconds=disconnect_grace_seconds,
                expose_errors=expose_errors,
            ),
            keep_alive_seconds=keep_alive_seconds,
            max_body_bytes=max_body_bytes,
            require_content_type=require_content_type,
        ),
    )
    route = {
        "name": found.name,
        "description": read_docstring(found.documentation).description,
        "tags": [] if router.tags else [_TAG],
        **{name: value for name, value in route.items() if value is not None},
    }
    _add(
        router,
        path,
        endpoint,
        dependencies.endpoint,
        # One without a media type, so that JSON is not documented beside the events.
        response_class=Response,
        responses=run_responses(),
        openapi_extra=run_operation(),
        **route,
    )

    if capabilities is not False:
        told = capabilities
        if isinstance(told, bool):
            told = derived_capabilities(found.name, route["description"])

        kept = ("tags", "dependencies", "include_in_schema")
        _add(
            router,
            f"{path.rstrip('/')}/capabilities",
            CapabilitiesEndpoint(owner, told),
            RouteDependencies(found, path, caller=caller, only_guards=True).endpoint,
            responses=capabilities_responses(),
            name=f"{route['name']}_capabilities",
            description="What the agent can do.",
            **{name: route[name] for name in kept if name in route},
        )

    return endpoint


def _add(
    router: APIRouter,
    path: str,
    endpoint: Endpoint,
    documented: Callable[..., object],
    **route: Any,
) -> None:
    router.add_api_route(
        path,
        documented,
        methods=[endpoint.methods[0]],
        response_model=None,
        route_class_override=cast("type[AgentRoute]", partial(AgentRoute, answers=endpoint)),
        **route,
    )


def _check(
    transformers: Sequence[TransformerFactory],
    keep_alive_seconds: float | None,
    timeout_seconds: float | None,
    disconnect_grace_seconds: float,
) -> None:
    for factory in transformers:
        if not callable(factory):
            raise TypeError(
                f"{factory!r} is no factory: pass a function that makes a transformer for each run,"
                " such as `lambda: FilterToolCalls.deny(…)`."
            )

    for name, seconds in (
        ("keep_alive_seconds", keep_alive_seconds),
        ("timeout_seconds", timeout_seconds),
    ):
        if seconds is not None and not seconds > 0:
            raise ConfigurationError(f"{name} is more than 0 or None, not {seconds!r}.")

    if not disconnect_grace_seconds >= 0:
        raise ConfigurationError(
            f"disconnect_grace_seconds is 0 or more, not {disconnect_grace_seconds!r}."
        )
