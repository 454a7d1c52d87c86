"""How a function is called: in which way, with which values, and what it returns."""

import inspect
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
from inspect import Parameter, Signature
from typing import Any, get_args, get_origin

from fastapi_carmy.errors import ToolError
from fastapi_carmy.signature.annotations import resolved_signature, without_partial
from fastapi_carmy.signature.parameters import ReadParameter
from fastapi_carmy.tool import ToolKind

__all__ = ("calling_by_name", "kind_of", "read_returns")

_Call = Callable[..., Any]


def kind_of(call: _Call) -> ToolKind:
    """Tell how a function is run, by itself or by what it wraps."""
    outer = without_partial(call)

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
    returns = resolved_signature(tool, call, names, with_return=True).return_annotation

    if kind in (ToolKind.ASYNC_GENERATOR, ToolKind.THREAD_GENERATOR):
        item = _item_type(tool, returns)
        # A variable is no type to a checker.
        items: Any = list
        return items[item], item

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


def calling_by_name(call: _Call, parameters: tuple[ReadParameter, ...], *, exact: bool) -> _Call:
    """Return what calls a function, whatever its parameters, with every value by name.

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
        return call

    def call_by_name(**values: object) -> Any:
        given = [values[name] for name in positional]
        return call(*given, **{name: values[name] for name in named})

    return call_by_name
