"""A function's signature, as a tool reads it: what is injected, and what is an argument.

Knows FastAPI's markers and parameter types; solves nothing.
"""

import inspect
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from inspect import Parameter, Signature
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    TypeGuard,
    get_args,
    get_origin,
    get_type_hints,
)

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
from fastapi_carmy.schemas import UnresolvedAnnotationError
from fastapi_carmy.tool import ToolKind

__all__ = (
    "Arguments",
    "ReadParameter",
    "Role",
    "binder",
    "kind_of",
    "name_of",
    "read_parameters",
    "read_returns",
    "refuse_bare",
)


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


def name_of(call: _Call) -> str:
    """Return what a callable is called: a function's name, or an instance's class."""
    inner = _without_partial(call)
    return getattr(inner, "__name__", None) or type(inner).__name__


# ---- parameters


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
    signature = _resolved(tool, call, names, with_return=False)
    parameters = list(signature.parameters.values())

    if parameters and _is_unbound(call, parameters[0]):
        raise ToolError(
            tool,
            f"{name_of(call)!r} is a method without its object; take the bound method of an"
            " instance",
            parameter=parameters[0].name,
        )

    return tuple(_read(tool, parameter) for parameter in parameters)


def _resolved(
    tool: str, call: _Call, names: Mapping[str, Any] | None, *, with_return: bool
) -> Signature:
    problem = f"the signature of {name_of(call)!r} can't be read"

    try:
        signature = inspect.signature(call)

        try:
            return _evaluated(call, signature, None, with_return=with_return)
        except NameError:
            if names is None:
                raise

            # A class that is local to where the tool is registered.
            return _evaluated(call, signature, names, with_return=with_return)
    except NameError as error:
        raise UnresolvedAnnotationError(tool, f"{problem}: {error}") from None
    except (TypeError, ValueError, SyntaxError, AttributeError) as error:
        raise ToolError(tool, f"{problem}: {error}") from error


def _evaluated(
    call: _Call, signature: Signature, names: Mapping[str, Any] | None, *, with_return: bool
) -> Signature:
    annotations = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if _has_forward_reference(parameter.annotation)
    }

    # A dependency's return type matters to nobody, and may exist for type checkers only.
    if with_return and _has_forward_reference(signature.return_annotation):
        annotations["return"] = signature.return_annotation

    if not annotations:
        return signature

    def holder() -> None: ...

    holder.__annotations__ = annotations
    hints = get_type_hints(
        holder, _globals_of(call), dict(names) if names else None, include_extras=True
    )
    return signature.replace(
        parameters=[
            parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
            for parameter in signature.parameters.values()
        ],
        return_annotation=hints.get("return", signature.return_annotation),
    )


def _has_forward_reference(annotation: Any) -> bool:
    """Tell whether it is a string, or one hides in it: `list["Item"]`."""
    if isinstance(annotation, str):
        return True

    origin = get_origin(annotation)

    if origin is Annotated:
        return _has_forward_reference(get_args(annotation)[0])

    # A literal's strings are its values.
    if origin is None or origin is Literal:
        return isinstance(annotation, ForwardRef)

    return any(_has_forward_reference(arg) for arg in get_args(annotation))


def _globals_of(call: _Call) -> dict[str, Any]:
    inner = inspect.unwrap(_without_partial(call))

    if inspect.isclass(inner):
        inner = inner.__init__ if inspect.isfunction(inner.__init__) else inner
    elif not inspect.isroutine(inner):
        inner = inspect.unwrap(type(inner).__call__)

    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    return getattr(inner, "__globals__", None) or (vars(module) if module else {})


def _is_unbound(call: _Call, first: Parameter) -> bool:
    owner = getattr(inspect.unwrap(_without_partial(call)), "__qualname__", "").rpartition(".")[0]
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


def _role(
    tool: str, parameter: Parameter, base: Any, marker: object, metadata: list[Any]
) -> Role:
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
    name = parameter.name

    if isinstance(marker, params.File):
        raise ToolError(tool, "a file can't come from JSON; take its URL or id", parameter=name)

    for part in _parts(parameter.annotation):
        if isinstance(part, _INJECTING_MARKERS):
            raise ToolError(
                tool,
                "a marker inside a type is not seen; put it around the whole type",
                parameter=name,
            )

        if isinstance(part, params.File) or _is_subclass(part, _FILES):
            raise ToolError(tool, "a file can't come from JSON; take its URL or id", parameter=name)

        if _is_subclass(part, WebSocket):
            raise ToolError(
                tool, "a tool has no WebSocket; take the `Request`, if at all", parameter=name
            )

        if _is_subclass(part, _INJECTED):
            raise ToolError(tool, "what is injected can't be optional", parameter=name)

        if _is_subclass(part, tuple(_ALIASES)):
            raise ToolError(
                tool,
                "it would be taken from the call's arguments; annotate it with the bare class",
                parameter=name,
            )

        if _is_pydantic_v1(part):
            raise ToolError(tool, "models of pydantic 1 are not supported", parameter=name)


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


def _parts(annotation: Any) -> Iterable[Any]:
    """Yield an annotation and everything inside it, metadata too."""
    yield annotation

    if isinstance(annotation, TypeAliasType):
        yield from _parts(annotation.__value__)
        return

    if get_origin(annotation) is Literal:
        return

    if _is_annotated(annotation):
        base, *metadata = get_args(annotation)
        yield from _parts(base)
        yield from metadata
        return

    for arg in get_args(annotation):
        yield from _parts(arg)


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
    if isinstance(annotation, TypeAliasType) and _is_annotated(annotation.__value__):
        return annotation.__value__

    return annotation


# ---- how it is run, and what it returns


def kind_of(call: _Call) -> ToolKind:
    """Tell how a function is run, by itself or by what it wraps."""
    outer = _without_partial(call)

    for candidate in (outer, inspect.unwrap(outer), type(outer).__call__):
        if inspect.isasyncgenfunction(candidate):
            return ToolKind.ASYNC_GENERATOR

        if inspect.iscoroutinefunction(candidate):
            return ToolKind.ASYNC

        if inspect.isgeneratorfunction(candidate):
            return ToolKind.THREAD_GENERATOR

    return ToolKind.THREAD


_ITERABLES = (AsyncGenerator, AsyncIterator, AsyncIterable, Generator, Iterator, Iterable)


def read_returns(
    tool: str, call: _Call, kind: ToolKind, *, names: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """Return the type of a tool's result, and of one item if it is a generator.

    Raises:
        ToolError: If a generator promises something else than items.
    """
    returns = _resolved(tool, call, names, with_return=True).return_annotation

    if kind in (ToolKind.ASYNC_GENERATOR, ToolKind.THREAD_GENERATOR):
        item = _item_type(tool, returns)
        return list[item], item

    if get_origin(returns) is Awaitable:
        returns = get_args(returns)[0]
    elif get_origin(returns) is Coroutine:
        returns = get_args(returns)[2]

    return (Any if returns is Signature.empty else returns), None


def _item_type(tool: str, returns: Any) -> Any:
    if returns is Signature.empty or returns is Any or returns in _ITERABLES:
        return Any

    if get_origin(returns) not in _ITERABLES:
        raise ToolError(
            tool, "a generator's return type names its items; annotate `-> AsyncIterator[Item]`"
        )

    arguments = get_args(returns)
    return arguments[0] if arguments else Any


def binder(
    call: _Call, parameters: tuple[ReadParameter, ...], *, exact: bool
) -> Callable[[dict[str, object]], Callable[[], object]]:
    """Return what prepares a call from values by parameter name.

    Args:
        call: The function.
        parameters: Its parameters.
        exact: Whether the values hold nothing but the function's own parameters.
    """
    positional = tuple(
        read.name for read in parameters if read.parameter.kind is Parameter.POSITIONAL_ONLY
    )
    named = tuple(read.name for read in parameters if read.name not in positional)

    if not positional and exact:
        return lambda values: partial(call, **values)

    def bind(values: dict[str, object]) -> Callable[[], object]:
        given = [values[name] for name in positional]
        return partial(call, *given, **{name: values[name] for name in named})

    return bind


def _without_partial(call: _Call) -> _Call:
    while isinstance(call, partial):
        call = call.func

    return call
