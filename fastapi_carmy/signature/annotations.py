"""Signatures with their annotations resolved."""

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Signature
from typing import Annotated, Any, ForwardRef, Literal, get_args, get_origin, get_type_hints

from fastapi_carmy.errors import ToolError
from fastapi_carmy.schemas import UnresolvedAnnotationError

__all__ = ("name_of", "resolved_signature", "without_partial")

_Call = Callable[..., Any]


class _BadAnnotationError(Exception):
    def __init__(self, parameter: str, error: Exception) -> None:
        super().__init__(str(error))
        self.parameter = parameter


class _UnresolvedNameError(_BadAnnotationError): ...


def name_of(call: _Call) -> str:
    """Return what a callable is called: a function's name, or an instance's class."""
    inner = without_partial(call)
    return getattr(inner, "__name__", None) or type(inner).__name__


def without_partial(call: _Call) -> _Call:
    """Return what a `partial` is made of; any other callable as it is."""
    while isinstance(call, partial):
        call = call.func

    return call


def resolved_signature(
    tool: str, call: _Call, names: Mapping[str, Any] | None = None, *, with_return: bool = False
) -> Signature:
    """Return a function's signature, without strings among its annotations.

    Args:
        tool: The tool's name, for errors.
        call: The function.
        names: Local names that annotations may use, where the module's do not do.
        with_return: Whether the return annotation matters.

    Raises:
        UnresolvedAnnotationError: If an annotation names something that isn't defined.
        ToolError: If there is no signature.
    """
    problem = f"the signature of {name_of(call)!r} can't be read"

    try:
        signature = inspect.signature(call)

        try:
            return _evaluated(call, signature, None, with_return=with_return)
        except _UnresolvedNameError:
            if names is None:
                raise

            # A class that is local to where the tool is registered.
            return _evaluated(call, signature, names, with_return=with_return)
    except _UnresolvedNameError as error:
        raise UnresolvedAnnotationError(
            tool, f"{problem}: {error}", parameter=error.parameter
        ) from None
    except _BadAnnotationError as error:
        raise ToolError(tool, f"{problem}: {error}", parameter=error.parameter) from error
    except NameError as error:
        # Since Python 3.14, asking for a signature may evaluate its annotations.
        raise UnresolvedAnnotationError(tool, f"{problem}: {error}") from None
    except (TypeError, ValueError) as error:
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

    hints = {name: _resolved(call, name, annotations[name], names) for name in annotations}
    return signature.replace(
        parameters=[
            parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
            for parameter in signature.parameters.values()
        ],
        return_annotation=hints.get("return", signature.return_annotation),
    )


def _resolved(call: _Call, name: str, annotation: Any, names: Mapping[str, Any] | None) -> Any:
    def holder() -> None: ...

    # One at a time, so that a mistake is told by its parameter's name.
    holder.__annotations__ = {name: annotation}

    try:
        hints = get_type_hints(
            holder, _globals_of(call), dict(names) if names else None, include_extras=True
        )
    except NameError as error:
        raise _UnresolvedNameError(name, error) from None
    except (TypeError, ValueError, SyntaxError, AttributeError) as error:
        raise _BadAnnotationError(name, error) from error

    return hints[name]


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
    inner = inspect.unwrap(without_partial(call))

    if inspect.isclass(inner):
        inner = inner.__init__ if inspect.isfunction(inner.__init__) else inner
    elif not inspect.isroutine(inner):
        inner = inspect.unwrap(type(inner).__call__)

    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    return getattr(inner, "__globals__", None) or (vars(module) if module else {})
