"""What an agent's route depends on: guards before the body is read, the rest with the agent."""

import copy
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Annotated, Any, get_args, get_origin

from fastapi import Depends, params
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_dependant
from fastapi.exceptions import RequestValidationError

from fastapi_carmy.agui.agents import Agent
from fastapi_carmy.agui.errors import RefusedRequestError
from fastapi_carmy.caller import Caller
from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.injection import CurrentCaller, Guards, HttpOpened, stub

__all__ = ("AgentOpened", "RouteDependencies")

_CALLER = "caller"
_PREFIX = "agent_"
"""Goes before the names of the agent's dependencies, so that they meet nobody else's."""

_PARAMETERS = ("path_params", "query_params", "header_params", "cookie_params")


class RouteDependencies:
    """Reads an agent's further parameters as those of an endpoint.

    `Security`, like the route's and the router's `dependencies`, is a guard.
    """

    def __init__(
        self,
        agent: Agent,
        path: str,
        *,
        caller: Callable[..., object] | None = None,
        only_guards: bool = False,
    ) -> None:
        """Read the agent's parameters.

        Args:
            agent: Whose.
            path: The route's path, for the names of its parameters.
            caller: The router's `caller` dependency.
            only_guards: Whether everything but guards is left out.

        Raises:
            ConfigurationError: If a parameter would come from the body, which is the run's.
        """
        self.is_needed = bool(agent.others)
        """Whether the agent takes anything but the run."""
        self._names: dict[str, str] = {}
        """Parameter of the agent → parameter of the stub, where they differ."""
        self._guards: set[str] = set()
        self._split: dict[int, tuple[Guards, Guards]] = {}
        parameters = [self._read(one) for one in agent.others]

        if only_guards:
            parameters = [one for one in parameters if one.name in self._guards]

        if caller is not None:
            asked = Annotated[object, Depends(caller)]
            parameters.append(Parameter(_CALLER, Parameter.KEYWORD_ONLY, annotation=asked))

        self.endpoint = stub(agent.name, parameters)
        """What FastAPI reads and documents; never called."""
        _refuse_body(agent, get_dependant(path=path, call=self.endpoint))

    def split(self, route: Guards) -> tuple[Guards, Guards]:
        """Return the guards, and what the agent itself depends on.

        Args:
            route: All that the route depends on where it is included.
        """
        found = self._split.get(id(route))

        if found is None:
            found = self._split[id(route)] = (
                Guards(self._guarding(route.dependant)),
                Guards(self._feeding(route.dependant)),
            )

        return found

    def for_agent(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the solved values under the names of the agent's parameters."""
        prefixed = frozenset(self._names.values())

        return {
            name.removeprefix(_PREFIX) if name in prefixed else name: value
            for name, value in values.items()
        }

    def _read(self, parameter: Parameter) -> Parameter:
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise ConfigurationError(f"An agent can't take *{parameter.name}.")

        if parameter.annotation is Caller:
            parameter = parameter.replace(annotation=CurrentCaller)

        depends = _depends_of(parameter)

        if depends is None:
            return parameter.replace(kind=Parameter.KEYWORD_ONLY)

        name = self._names[parameter.name] = _PREFIX + parameter.name

        if isinstance(depends, params.Security):
            self._guards.add(name)

        return parameter.replace(name=name, kind=Parameter.KEYWORD_ONLY)

    def _guarding(self, dependant: Dependant) -> Dependant:
        own = set(self._names.values()) - self._guards
        guarding = copy.copy(dependant)
        guarding.dependencies = [one for one in dependant.dependencies if one.name not in own]

        for name in _PARAMETERS:
            setattr(guarding, name, [])

        return guarding

    def _feeding(self, dependant: Dependant) -> Dependant:
        own = set(self._names.values())
        feeding = copy.copy(dependant)
        feeding.dependencies = [one for one in dependant.dependencies if one.name in own]

        return feeding


class AgentOpened(HttpOpened):
    """A run's dependencies: guards first, then what the agent takes."""

    __slots__ = ()

    async def agent_values(self, guards: Guards) -> dict[str, Any]:
        """Open what the agent depends on; it closes before the guards do.

        Raises:
            RefusedRequestError: If a header, cookie, path or query parameter is wrong.
            Exception: Whatever a dependency raises.
        """
        try:
            return await self._solve(
                self._open(anew=True),
                guards.dependant,
                scopes_cache=guards.scopes_cache,
                overrides=self.overrides,
            )
        except RequestValidationError as error:
            raise _refused(error.errors()) from None


def _depends_of(parameter: Parameter) -> params.Depends | None:
    found = [one for one in get_args(parameter.annotation)[1:] if isinstance(one, params.Depends)]

    if get_origin(parameter.annotation) is Annotated and found:
        return found[-1]

    return parameter.default if isinstance(parameter.default, params.Depends) else None


def _refuse_body(agent: Agent, dependant: Dependant) -> None:
    for field in dependant.body_params:
        raise ConfigurationError(
            f"The agent {agent.name!r} can't take {field.name!r} from the body, which holds the "
            "run's input: use `Depends`, or `run.forwarded_props`."
        )

    for inner in dependant.dependencies:
        _refuse_body(agent, inner)


def _refused(errors: Sequence[Any]) -> RefusedRequestError:
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"])

    return RefusedRequestError(400, "INVALID_REQUEST", f"{place}: {first['msg']}.")
