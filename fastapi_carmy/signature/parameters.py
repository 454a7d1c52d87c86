"""A function's parameters: what is injected, and what is an argument.

Knows FastAPI's markers and parameter types; solves nothing.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from inspect import Parameter
from typing import Annotated, Any, Literal, TypeGuard, get_args, get_origin

from fastapi import BackgroundTasks, Response, UploadFile, WebSocket, params
from fastapi.security import SecurityScopes
from pydantic.fields import FieldInfo
from starlette.background import BackgroundTasks as StarletteBackgroundTasks
from starlette.datastructures import UploadFile as StarletteUploadFile
from starlette.requests import HTTPConnection
from typing_extensions import TypeAliasType

from fastapi_carmy.caller import Caller
from fastapi_carmy.context import AgentContext
from fastapi_carmy.errors import ToolError
from fastapi_carmy.signature.annotations import name_of, resolved_signature, without_partial

__all__ = ("Arguments", "ReadParameter", "Role", "read_parameters", "refuse_bare")


class Arguments:
    """Marks the one parameter whose model is the whole arguments object.

    `order: Annotated[OrderIn, Arguments]` makes the fields of `OrderIn` the tool's
    arguments; without it they would stand under `order`.
    """


class Role(Enum):
    """Where a parameter's value comes from."""

    ARGUMENT = auto()
    """The call's arguments."""
    WHOLE = auto()
    """All of the call's arguments at once."""
    INJECTED = auto()
    """The request, or a dependency."""
    GUARD = auto()
    """A `Security` dependency, which runs on every call."""
    CONTEXT = auto()
    """The execution's `AgentContext`."""
    CALLER = auto()
    """The `Caller`."""


@dataclass(frozen=True, slots=True)
class ReadParameter:
    """One parameter, with its annotation resolved."""

    parameter: Parameter
    role: Role
    depends: params.Depends | None = None
    """Its `Depends` or `Security`, with the callable filled in."""

    @property
    def name(self) -> str:
        """Its name in the function."""
        return self.parameter.name


_INJECTED: tuple[type, ...] = (
    HTTPConnection,
    Response,
    BackgroundTasks,
    StarletteBackgroundTasks,
    SecurityScopes,
)
_DIRECT: Mapping[type, Role] = {AgentContext: Role.CONTEXT, Caller: Role.CALLER}
_ALIASES: Mapping[type, str] = {AgentContext: "CurrentContext", Caller: "CurrentCaller"}
_FILES: tuple[type, ...] = (UploadFile, StarletteUploadFile)
_INJECTING_MARKERS = (params.Depends, params.Header, params.Cookie)

_Call = Callable[..., Any]


def read_parameters(
    tool: str, call: _Call, *, names: Mapping[str, Any] | None = None
) -> tuple[ReadParameter, ...]:
    """Tell the parameters of a tool, or of a dependency of it, apart.

    Args:
        tool: The tool's name, for errors.
        call: The function.
        names: Local names that annotations may use, where the module's do not do.

    Raises:
        UnresolvedAnnotationError: If an annotation names something that isn't defined.
        ToolError: If a parameter can't be filled from JSON or by FastAPI.
    """
    signature = resolved_signature(tool, call, names)
    parameters = list(signature.parameters.values())

    if parameters and _is_unbound(call, parameters[0]):
        raise ToolError(
            tool,
            f"{name_of(call)!r} is a method without its object; take the bound method of an"
            " instance",
            parameter=parameters[0].name,
        )

    return tuple(_read(tool, parameter) for parameter in parameters)


def _is_unbound(call: _Call, first: Parameter) -> bool:
    owner = getattr(inspect.unwrap(without_partial(call)), "__qualname__", "").rpartition(".")[0]
    return (
        first.name in ("self", "cls")
        and first.annotation is Parameter.empty
        and not inspect.ismethod(call)
        and bool(owner)
        and not owner.endswith("<locals>")
    )


def _read(tool: str, parameter: Parameter) -> ReadParameter:
    if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        raise ToolError(
            tool,
            "a tool can't take any number of arguments; name each one",
            parameter=parameter.name,
        )

    annotation = _without_alias(parameter.annotation)
    parameter = parameter.replace(annotation=annotation)
    base, *metadata = get_args(annotation) if _is_annotated(annotation) else (annotation,)
    marker = _marker(parameter.default, metadata)

    if isinstance(marker, params.Depends):
        return _read_dependency(tool, parameter, marker, base)

    role = _role(tool, parameter, base, marker, metadata)
    return ReadParameter(parameter, role)


def _marker(default: object, metadata: list[Any]) -> object:
    """Return FastAPI's marker; the last one counts, as in FastAPI."""
    kinds = (params.Depends, params.Param, params.Body)
    marker = next((item for item in reversed(metadata) if isinstance(item, kinds)), None)

    if marker is None and isinstance(default, params.Depends | FieldInfo):
        return default

    return marker


def _read_dependency(
    tool: str, parameter: Parameter, marker: params.Depends, base: Any
) -> ReadParameter:
    call = marker.dependency or base

    if inspect.isclass(call) and issubclass(call, tuple(_ALIASES)):
        raise _use_alias(tool, call, parameter.name)

    role = getattr(call, "carmy_role", None)

    if isinstance(role, Role):
        return ReadParameter(parameter, role, marker)

    depends = marker

    if marker.dependency is None:
        kind = type(marker)
        depends = kind(call, **_options(marker))

    is_guard = isinstance(marker, params.Security)
    return ReadParameter(parameter, Role.GUARD if is_guard else Role.INJECTED, depends)


def _options(marker: params.Depends) -> dict[str, Any]:
    names = ("use_cache", "scope", "scopes", "max_concurrency")
    return {name: getattr(marker, name) for name in names if hasattr(marker, name)}


def _role(tool: str, parameter: Parameter, base: Any, marker: object, metadata: list[Any]) -> Role:
    if isinstance(marker, params.Header | params.Cookie):
        return Role.INJECTED

    if marker is None and inspect.isclass(base):
        if issubclass(base, _INJECTED) and not issubclass(base, WebSocket):
            return Role.INJECTED

        for kind, role in _DIRECT.items():
            if issubclass(base, kind):
                return role

    _refuse_what_json_lacks(tool, parameter, marker)

    if any(item is Arguments or isinstance(item, Arguments) for item in metadata):
        return Role.WHOLE

    return Role.ARGUMENT


def _refuse_what_json_lacks(tool: str, parameter: Parameter, marker: object) -> None:
    problem = _FILE_PROBLEM if isinstance(marker, params.File) else None

    for part in _parts(parameter.annotation):
        problem = problem or _problem_of(part)

    if problem is not None:
        raise ToolError(tool, problem, parameter=parameter.name)


_FILE_PROBLEM = "a file can't come from JSON; take its URL or id"

_PROBLEMS: tuple[tuple[tuple[type, ...], str], ...] = (
    (_FILES, _FILE_PROBLEM),
    ((WebSocket,), "a tool has no WebSocket; take the `Request`, if at all"),
    (_INJECTED, "what is injected can't be optional, or part of another type"),
    (
        tuple(_ALIASES),
        "it would be taken from the call's arguments; annotate it with the bare class",
    ),
)


def _problem_of(part: Any) -> str | None:
    """Return why JSON can't fill a part of an annotation."""
    if isinstance(part, _INJECTING_MARKERS):
        return "a marker inside a type is not seen; put it around the whole type"

    if isinstance(part, params.File):
        return _FILE_PROBLEM

    if _is_pydantic_v1(part):
        return "models of pydantic 1 are not supported; use one of pydantic 2"

    return next((problem for kinds, problem in _PROBLEMS if _is_subclass(part, kinds)), None)


def _use_alias(tool: str, kind: type, parameter: str) -> ToolError:
    alias = next(name for base, name in _ALIASES.items() if issubclass(kind, base))
    return ToolError(
        tool,
        f"FastAPI would fill it from the request; annotate it with `{alias}` instead",
        parameter=parameter,
    )


def refuse_bare(tool: str, read: ReadParameter) -> None:
    """Refuse the bare `AgentContext` or `Caller` in a dependency.

    Raises:
        ToolError: Naming the alias that works there.
    """
    if read.role in _DIRECT.values() and read.depends is None:
        base = read.parameter.annotation
        base = get_args(base)[0] if _is_annotated(base) else base
        raise _use_alias(tool, base, read.name)


def _parts(annotation: Any, inside: tuple[TypeAliasType, ...] = ()) -> Iterable[Any]:
    """Yield an annotation and everything inside it, metadata too.

    Args:
        annotation: What to look into.
        inside: The aliases it stands in; one may refer to itself.
    """
    yield annotation

    if isinstance(annotation, TypeAliasType):
        if annotation not in inside:
            yield from _parts(annotation.__value__, (*inside, annotation))

        return

    if get_origin(annotation) is Literal:
        return

    if _is_annotated(annotation):
        base, *metadata = get_args(annotation)
        yield from _parts(base, inside)
        yield from metadata
        return

    for arg in get_args(annotation):
        yield from _parts(arg, inside)


def _is_annotated(annotation: Any) -> bool:
    return get_origin(annotation) is Annotated


def _is_subclass(part: Any, kinds: type | tuple[type, ...]) -> TypeGuard[type]:
    return inspect.isclass(part) and issubclass(part, kinds)


def _is_pydantic_v1(part: Any) -> bool:
    return inspect.isclass(part) and any(
        base.__module__.startswith("pydantic.v1.") and base.__name__ == "BaseModel"
        for base in part.__mro__
    )


def _without_alias(annotation: Any) -> Any:
    """Open a type alias that carries a marker; others keep their name in the schema."""
    if not isinstance(annotation, TypeAliasType) or not _is_annotated(annotation.__value__):
        return annotation

    metadata = get_args(annotation.__value__)[1:]
    kinds = (params.Depends, FieldInfo, Arguments)
    is_marked = any(item is Arguments or isinstance(item, kinds) for item in metadata)
    # One that refers to itself, as `JsonValue` does, means something by its name alone.
    return annotation.__value__ if is_marked else annotation
