"""AG-UI agents on a router; `fastapi_carmy.agui` is imported when the first one is mounted."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from fastapi_carmy.http.remembered import RememberingRouter

if TYPE_CHECKING:
    from ag_ui.core import AgentCapabilities

    from fastapi_carmy.agui.endpoint import AgentEndpoint
    from fastapi_carmy.agui.transform import TransformerFactory

__all__ = ("AgUiRoutes",)

_Agent = TypeVar("_Agent")


class AgUiRoutes(RememberingRouter):
    """A router on which AG-UI agents can be mounted."""

    carmy_caller: Callable[..., object] | None = None

    # APIRouter's own, which differ between the versions of FastAPI.
    def __init__(self, **options: Any) -> None:
        """Make a router without agents; for the options see `APIRouter`."""
        super().__init__(**options)
        self._agents: list[AgentEndpoint] = []

    def agui(
        self,
        path: str,
        *,
        state: Any = None,
        transformers: "Sequence[TransformerFactory]" = (),
        keep_alive_seconds: float | None = 15.0,
        timeout_seconds: float | None = None,
        echo_input: bool = False,
        verify: bool = True,
        max_body_bytes: int = 2 * 2**20,
        require_content_type: bool = False,
        disconnect_grace_seconds: float = 0.5,
        expose_errors: bool = False,
        capabilities: "bool | AgentCapabilities" = False,
        **route: Any,
    ) -> Callable[[_Agent], _Agent]:
        """Mount the decorated agent, and return it unchanged.

        See `add_agui_route` for the options.
        """

        def mount(agent: _Agent) -> _Agent:
            self._mount(
                path,
                agent,
                _caller_locals(),
                state=state,
                transformers=transformers,
                keep_alive_seconds=keep_alive_seconds,
                timeout_seconds=timeout_seconds,
                echo_input=echo_input,
                verify=verify,
                max_body_bytes=max_body_bytes,
                require_content_type=require_content_type,
                disconnect_grace_seconds=disconnect_grace_seconds,
                expose_errors=expose_errors,
                capabilities=capabilities,
                **route,
            )
            return agent

        return mount

    def add_agui_route(
        self,
        path: str,
        agent: object,
        *,
        state: Any = None,
        transformers: "Sequence[TransformerFactory]" = (),
        keep_alive_seconds: float | None = 15.0,
        timeout_seconds: float | None = None,
        echo_input: bool = False,
        verify: bool = True,
        max_body_bytes: int = 2 * 2**20,
        require_content_type: bool = False,
        disconnect_grace_seconds: float = 0.5,
        expose_errors: bool = False,
        capabilities: "bool | AgentCapabilities" = False,
        **route: Any,
    ) -> None:
        """Serve an AG-UI 1.0 agent: `POST {path}`, answered with the run's events.

        An agent is an async function that takes the run, an object with `async run(run)`,
        or an async generator function that yields events of `ag_ui.core`. Its further
        parameters are filled as those of any endpoint. It ends by returning `None`,
        `run.interrupt(…)` or a JSON value.

        Args:
            path: The route's path.
            agent: Shared by all runs, so it keeps nothing of a run.
            state: The type of the state that agent and client share; any JSON by default.
            transformers: Each makes one run's transformer, in this order.
            keep_alive_seconds: Silence after which a comment is sent; `None` for never.
            timeout_seconds: How long a run may take; `None` for ever.
            echo_input: Whether RUN_STARTED repeats the input.
            verify: Whether events out of order are refused.
            max_body_bytes: Limit of a request's body.
            require_content_type: Whether a body without a Content-Type is refused; for
                agents whose callers are known by a cookie.
            disconnect_grace_seconds: How long an agent may go on after its client left, or
                after it was told to stop, before it is cancelled.
            expose_errors: Whether the text of unexpected exceptions is told; for
                development.
            capabilities: Whether, or what, `GET {path}/capabilities` answers.
            **route: What `APIRouter.add_api_route` takes: `tags`, `dependencies`,
                `operation_id`, `name`, `include_in_schema` …

        Raises:
            TypeError: If `agent` is no agent, or a transformer no factory.
            ConfigurationError: If a parameter of the agent, or an option, makes no sense.
            ImportError: If the extra `agui` is not installed.
        """
        self._mount(
            path,
            agent,
            _caller_locals(),
            state=state,
            transformers=transformers,
            keep_alive_seconds=keep_alive_seconds,
            timeout_seconds=timeout_seconds,
            echo_input=echo_input,
            verify=verify,
            max_body_bytes=max_body_bytes,
            require_content_type=require_content_type,
            disconnect_grace_seconds=disconnect_grace_seconds,
            expose_errors=expose_errors,
            capabilities=capabilities,
            **route,
        )

    def _mount(self, path: str, agent: object, names: Mapping[str, Any], **options: Any) -> None:
        # Only who uses it needs the extra.
        from fastapi_carmy.agui.endpoint import add_agent  # noqa: PLC0415

        endpoint = add_agent(
            self, path, agent, owner=self, caller=self.carmy_caller, names=names, **options
        )
        self._agents.append(endpoint)

    async def _stop_agents(self, seconds: float) -> bool:
        """End live runs with the outcome `cancelled`; tell whether all have ended in time."""
        late: list[AgentEndpoint] = []

        async def stop(endpoint: "AgentEndpoint") -> None:
            if not await endpoint.stop(seconds):
                late.append(endpoint)

        async with anyio.create_task_group() as tasks:
            for endpoint in self._agents:
                tasks.start_soon(stop, endpoint)

        return not late


def _caller_locals() -> Mapping[str, Any]:
    """Return the local names where the router's method was called."""
    frame = inspect.currentframe()

    for _ in range(2):
        frame = None if frame is None else frame.f_back

    return {} if frame is None else dict(frame.f_locals)
