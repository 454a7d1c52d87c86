"""What counts as an agent, and how it is called."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, get_args, get_origin

from fastapi_carmy.agui.context import RunContext

__all__ = ("Agent", "BoundAgent", "agent_of")

BoundAgent = Callable[[RunContext[Any]], Awaitable[object] | AsyncIterator[object]]
"""An agent that needs nothing but the run."""

_EXPECTED = (
    "an agent is an async function that takes the run, an object with `async run(run)`, or an "
    "async generator function that yields events of ag_ui.core"
)


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, ready to be called for any number of runs at once.

    Attributes:
        function: What is called.
        name: What it is called in OpenAPI.
        documentation: Its docstring.
        run_parameter: The parameter that takes the run.
        others: Its further parameters; their values come from dependencies.
        state_type: What its annotation says of the state, `None` if nothing.
    """

    function: Callable[..., Any]
    name: str
    documentation: str | None
    run_parameter: Parameter
    others: tuple[Parameter, ...]
    state_type: Any

    def bind(self, values: dict[str, Any] | None = None) -> BoundAgent:
        """Fix the further parameters' values."""
        return partial(self._call, values or {})

    def _call(self, values: dict[str, Any], run: RunContext[Any]) -> Any:
        if self.run_parameter.kind is Parameter.POSITIONAL_ONLY:
            return self.function(run, **values)

        return self.function(**{self.run_parameter.name: run}, **values)


def agent_of(candidate: object, names: Mapping[str, Any] | None = None) -> Agent:
    """Return `candidate` as an agent.

    Args:
        candidate: A function or an object.
        names: Local names that its annotations may use.

    Raises:
        TypeError: If it is none; the message says what is expected.
    """
    function = _function_of(candidate)
    parameters = _parameters_of(function, names)
    run_parameter = _run_parameter(candidate, parameters)
    named = _without_partials(candidate)

    return Agent(
        function=function,
        name=getattr(named, "__name__", type(named).__name__),
        documentation=getattr(named, "__doc__", None),
        run_parameter=run_parameter,
        others=tuple(one for one in parameters if one is not run_parameter),
        state_type=next(iter(get_args(_plain(run_parameter.annotation))), None),
    )


def _parameters_of(
    function: Callable[..., Any], names: Mapping[str, Any] | None
) -> list[Parameter]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:
        # A class that is defined beside the agent, inside a function.
        signature = inspect.signature(function, eval_str=True, locals=dict(names or {}))

    return list(signature.parameters.values())


def _plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _function_of(candidate: object) -> Callable[..., Any]:
    method = None if inspect.isclass(candidate) else getattr(candidate, "run", None)

    for function in (candidate, method):
        if callable(function) and _is_async(function):
            found: Callable[..., Any] = function
            return found

    raise TypeError(f"{candidate!r} is no agent: {_EXPECTED}.")


def _is_async(function: Callable[..., Any]) -> bool:
    inner = _innermost(function)

    return inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)


def _innermost(function: Any) -> Any:
    """Return what runs in the end, behind decorators, `partial` and `__call__`."""
    function = _without_partials(function)

    if callable(function):
        function = inspect.unwrap(function)

    if inspect.isfunction(function) or inspect.ismethod(function) or inspect.isclass(function):
        return function

    return type(function).__call__


def _run_parameter(candidate: object, parameters: list[Parameter]) -> Parameter:
    annotated = [
        one
        for one in parameters
        if (get_origin(_plain(one.annotation)) or _plain(one.annotation)) is RunContext
    ]
    usable = [
        one
        for one in annotated or parameters[:1]
        if one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]

    if len(usable) != 1:
        raise TypeError(f"{candidate!r} takes no run: {_EXPECTED}.")

    return usable[0]


def _without_partials(candidate: Any) -> Any:
    while isinstance(candidate, partial):
        candidate = candidate.func

    return candidate
