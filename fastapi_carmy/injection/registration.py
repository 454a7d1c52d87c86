"""From a function to a `Tool`."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import params

from fastapi_carmy.catalog import check_name
from fastapi_carmy.docstrings import Documentation, read_docstring
from fastapi_carmy.errors import ConfigurationError, ToolError
from fastapi_carmy.injection.plan import Plan
from fastapi_carmy.injection.solver import Dependant, Overrides
from fastapi_carmy.schemas import (
    SCHEMA_FAILURES,
    Argument,
    UnresolvedAnnotationError,
    build_input,
    build_output,
    schema_error,
)
from fastapi_carmy.signature import (
    ReadParameter,
    Role,
    calling_by_name,
    kind_of,
    name_of,
    read_parameters,
    read_returns,
    refuse_bare,
)
from fastapi_carmy.threads import LoopLimiter
from fastapi_carmy.tool import (
    Confirmation,
    Effect,
    Input,
    OnDisconnect,
    Output,
    Tool,
    ToolKind,
    ToolSpec,
)

__all__ = (
    "check_route",
    "make_tool",
    "needs_request",
    "with_guards",
    "with_overrides",
)

_MAX_OVERRIDDEN = 8
"""Tests make a new replacement each time; only the last ones are kept."""


class _ToolPlan(Plan):
    """A plan that knows how to be made again, with other guards or overrides."""

    def __init__(self, source: "_Source", guards: Sequence[params.Depends], **options: Any) -> None:
        super().__init__(
            source.name,
            source.injected,
            guards,
            names=source.names,
            limiter=source.limiter,
            **options,
        )
        self.source = source
        self.guards = tuple(guards)
        self.replaceable = self.calls
        self.overridden: dict[frozenset[tuple[int, int]], tuple[Tool, Overrides]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What a tool is made of."""

    name: str
    call: Callable[..., Any]
    parameters: tuple[ReadParameter, ...]
    documentation: Documentation
    names: Mapping[str, Any] | None = field(repr=False)
    limiter: LoopLimiter | None

    @property
    def injected(self) -> list[ReadParameter]:
        """The parameters that FastAPI's solver fills."""
        roles = (Role.INJECTED, Role.GUARD)
        return [read for read in self.parameters if read.role in roles]

    def named(self, role: Role) -> tuple[str, ...]:
        """Return the names of the parameters of one role."""
        return tuple(read.name for read in self.parameters if read.role is role)


def make_tool(
    call: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | str,
    idempotent: bool = False,
    parallel_safe: bool = False,
    confirmation: Confirmation = "none",
    timeout_seconds: float | None = None,
    on_disconnect: OnDisconnect | None = None,
    dependencies: Sequence[params.Depends] = (),
    tags: Iterable[str] = (),
    caller_locals: Mapping[str, Any] | None = None,
    limiter: LoopLimiter | None = None,
) -> Tool:
    """Return the tool that `call` is.

    Args:
        call: A function, a bound method, a callable instance or a `partial`.
        name: Defaults to the function's own name.
        description: Defaults to the docstring without its sections.
        effect: What running it does to the world.
        idempotent: Whether running it twice is the same as once.
        parallel_safe: Whether several calls may run at once.
        confirmation: Whether a person must agree.
        timeout_seconds: Deadline of one execution; `None` means the router's.
        on_disconnect: What a hang-up does; `None` means the router's.
        dependencies: Guards of this tool alone.
        tags: Free labels.
        caller_locals: Local names of where it is registered, for annotations that use them.
        limiter: Threads for its sync dependencies; FastAPI's own if it is `None`.

    Raises:
        UnresolvedAnnotationError: If an annotation names something that isn't defined yet.
        ToolError: If anything else about it is wrong.
    """
    name = name_of(call) if name is None else name
    _check(name, call)
    _check_limits(name, timeout_seconds, on_disconnect, confirmation)
    kind = kind_of(call)

    def read(names: Mapping[str, Any] | None) -> tuple[_ToolPlan, Output, dict[str, object]]:
        source = _Source(
            name=name,
            call=call,
            parameters=read_parameters(name, call, names=names),
            documentation=read_docstring(_docstring(call)),
            names=names,
            limiter=limiter,
        )
        return _ToolPlan(source, dependencies), *_output(name, call, kind, names)

    try:
        plan, output, output_schema = read(None)
    except UnresolvedAnnotationError:
        if not caller_locals:
            raise

        # Kept with the plan, so only where an annotation needs them.
        plan, output, output_schema = read(caller_locals)

    source = plan.source
    validator, input_schema = _input(source, plan)
    spec = ToolSpec(
        name=name,
        description=source.documentation.description if description is None else description,
        input_schema=input_schema,
        output_schema=output_schema,
        effect=_effect(name, effect),
        idempotent=idempotent,
        parallel_safe=parallel_safe,
        confirmation=confirmation,
        timeout_seconds=timeout_seconds,
        on_disconnect=on_disconnect,
        tags=tuple(tags),
    )
    return Tool(
        spec=spec,
        input=validator,
        output=output,
        kind=kind,
        call=calling_by_name(call, source.parameters, exact=not plan.arguments),
        plan=plan,
        has_guards=plan.has_guards,
        has_dependencies=plan.has_dependencies,
        context_parameters=source.named(Role.CONTEXT),
        caller_parameters=source.named(Role.CALLER),
    )


def with_guards(tool: Tool, dependencies: Sequence[params.Depends]) -> Tool:
    """Return `tool` with more guards, which run before its own.

    Raises:
        ToolError: If they don't go together.
    """
    if not dependencies:
        return tool

    plan = _plan_of(tool)
    added = _ToolPlan(plan.source, [*dependencies, *plan.guards])
    return replace(tool, plan=added, has_guards=added.has_guards)


def with_overrides(tool: Tool, overrides: Overrides) -> Tool:
    """Return `tool` as it is where the application overrides some dependencies.

    An override's own parameters come from the arguments as well, so such a tool
    validates others than the catalog shows; the catalog never changes.
    """
    plan = _plan_of(tool)

    if not overrides or plan.replaceable.isdisjoint(overrides):
        return tool

    key = frozenset((id(call), id(replacement)) for call, replacement in overrides.items())
    found = plan.overridden.get(key)

    if found is None:
        if len(plan.overridden) >= _MAX_OVERRIDDEN:
            del plan.overridden[next(iter(plan.overridden))]

        # Kept with what its key is made of, so that no id is ever used again.
        found = plan.overridden[key] = (_overridden(tool, plan, overrides), dict(overrides))

    return found[0]


def _overridden(tool: Tool, plan: _ToolPlan, overrides: Overrides) -> Tool:
    source = plan.source
    replaced = _ToolPlan(source, plan.guards, overrides=overrides)
    validator, _ = _input(source, replaced)
    return replace(
        tool,
        input=validator,
        call=calling_by_name(source.call, source.parameters, exact=not replaced.arguments),
        plan=replaced,
        has_guards=replaced.has_guards,
        has_dependencies=replaced.has_dependencies,
    )


def needs_request(tool: Tool) -> bool:
    """Tell whether `tool` takes something from the HTTP request, so that it needs one."""
    return _plan_of(tool).needs_request


def check_route(dependant: Dependant, tools: Iterable[Tool] = ()) -> None:
    """Check the guards of a route against the tools that are served through it.

    Args:
        dependant: The route's effective one.
        tools: The tools.

    Raises:
        ConfigurationError: If a guard asks for something that it can't get.
        ToolError: If a guard and a tool's dependency are the same, and take parameters.
    """
    takers: set[int] = set()
    _check_guards(dependant, takers)

    for tool in tools:
        for call in _plan_of(tool).argument_takers:
            if id(call) in takers:
                raise ToolError(
                    tool.spec.name,
                    f"{name_of(call)!r} takes parameters, and is both a guard of the router,"
                    " which reads them from path and query, and a dependency, which reads them"
                    " from the arguments; use two functions",
                )


def _check_guards(dependant: Dependant, takers: set[int]) -> None:
    for guard in dependant.dependencies:
        call = guard.call
        assert call is not None

        try:
            for read in read_parameters("guard", call):
                refuse_bare("guard", read)
        except ToolError as error:
            raise ConfigurationError(f"The guard {name_of(call)!r}: {error.problem}") from error

        if guard.body_params:
            raise ConfigurationError(f"The guard {name_of(call)!r} can't take a body.")

        if guard.path_params or guard.query_params:
            takers.add(id(call))

        _check_guards(guard, takers)


def _check(name: str, call: Callable[..., Any]) -> None:
    check_name(name)

    if inspect.isclass(call):
        raise ToolError(name, "a tool is a function or a callable instance, not a class")


def _check_limits(
    name: str, timeout_seconds: object, on_disconnect: object, confirmation: object
) -> None:
    if timeout_seconds is not None and not (
        isinstance(timeout_seconds, int | float) and 0 < timeout_seconds < math.inf
    ):
        raise ToolError(name, f"timeout_seconds is a number above 0, not {timeout_seconds!r}")

    if on_disconnect not in (None, "cancel", "finish"):
        raise ToolError(name, f"on_disconnect is 'cancel' or 'finish', not {on_disconnect!r}")

    if confirmation not in ("none", "required"):
        raise ToolError(name, f"confirmation is 'none' or 'required', not {confirmation!r}")


def _effect(name: str, effect: Effect | str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        choices = ", ".join(repr(choice.value) for choice in Effect)
        raise ToolError(name, f"its effect is one of {choices}") from None


def _docstring(call: Callable[..., Any]) -> str | None:
    if inspect.isroutine(call):
        return inspect.getdoc(call)

    # The docstring of `partial` itself describes no tool.
    inner = getattr(call, "func", None)

    if inner is not None and callable(inner):
        return _docstring(inner)

    return inspect.getdoc(type(call).__call__) or inspect.getdoc(type(call))


def _input(source: _Source, plan: Plan) -> tuple[Input, dict[str, object]]:
    own = {read.name: _argument(source, read) for read in source.parameters}
    whole = next((own[name] for name in source.named(Role.WHOLE)), None)
    arguments = [*(own[name] for name in source.named(Role.ARGUMENT)), *plan.arguments]
    _refuse_clashes(source.name, arguments)

    if whole is not None and (arguments or len(source.named(Role.WHOLE)) > 1):
        raise ToolError(
            source.name,
            "it is the whole arguments object, so there can't be other arguments",
            parameter=whole.name,
        )

    return build_input(source.name, arguments, whole=whole)


def _argument(source: _Source, read: ReadParameter) -> Argument:
    return Argument(
        name=read.name,
        key=read.name,
        annotation=read.parameter.annotation,
        default=read.parameter.default,
        description=source.documentation.arguments.get(read.name),
    )


def _refuse_clashes(tool: str, arguments: Sequence[Argument]) -> None:
    owners: dict[str, Argument] = {}

    for argument in arguments:
        for name in argument.wire_names:
            if owners.setdefault(name, argument) is not argument:
                raise ToolError(
                    tool,
                    f"two arguments are called {name!r}; rename one, or give it an alias",
                    parameter=argument.name,
                )


def _output(
    name: str, call: Callable[..., Any], kind: ToolKind, names: Mapping[str, Any] | None
) -> tuple[Output, dict[str, object]]:
    returns, item = read_returns(name, call, kind, names=names)

    try:
        return build_output(returns, item=item)
    except SCHEMA_FAILURES as error:
        raise schema_error(name, error, parameter="return") from error


def _plan_of(tool: Tool) -> _ToolPlan:
    plan = tool.plan
    assert isinstance(plan, _ToolPlan)
    return plan
