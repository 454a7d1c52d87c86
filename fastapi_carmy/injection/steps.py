"""Plain dependencies, called one after the other without FastAPI's solver.

Most tools depend on async functions that take other dependencies and headers. For those
the solver's answer is known beforehand: which to call, in which order, and where it keeps
their values. Whatever is more than that, or goes wrong, is left to the solver.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fastapi.dependencies import models, utils
from fastapi.dependencies.models import Dependant
from starlette.datastructures import Headers
from starlette.types import Scope

from fastapi_carmy.signature import kind_of
from fastapi_carmy.tool import ToolKind

__all__ = ("Steps", "steps_of")

# Everything else that a dependant may say must be left unsaid.
_UNDERSTOOD = frozenset(("call", "dependencies", "header_params", "name", "path"))


@dataclass(frozen=True, slots=True)
class _Step:
    """One dependency to call."""

    call: Callable[..., Awaitable[Any]]
    key: Any
    """Its place in the solver's cache."""
    keys: Mapping[str, Any]
    """The parameters that take other dependencies → their places."""
    headers: Sequence[Any]
    """The parameters that take headers, as FastAPI knows them."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A tree of plain dependencies, in the order in which the solver calls them."""

    _steps: Sequence[_Step]
    _keys: Mapping[str, Any]

    async def values(self, scope: Scope, cache: dict[Any, Any]) -> dict[str, object] | None:
        """Call the dependencies.

        Args:
            scope: The request's; its headers are read.
            cache: Values by dependency. What is in it is not called again, neither here nor
                by the solver.

        Returns:
            Parameter name → value; `None` when a header is wrong, which the solver tells.
        """
        headers = Headers(scope=scope)

        for step in self._steps:
            if step.key in cache:
                continue

            values = {name: cache[key] for name, key in step.keys.items()}

            if step.headers:
                found, errors = utils.request_params_to_args(step.headers, headers)

                if errors:
                    return None

                values.update(found)

            cache[step.key] = await step.call(**values)

        return {name: cache[key] for name, key in self._keys.items()}


def steps_of(root: Dependant) -> Steps | None:
    """Return how the dependencies of `root` are called; `None` where it takes the solver."""
    key_of = _key_of()

    if key_of is None or root.header_params or not _is_plain(root):
        return None

    steps: list[_Step] = []

    for dependant in root.dependencies:
        if not _add(steps, dependant, key_of):
            return None

    return Steps(steps, _keys(root, key_of))


def _add(steps: list[_Step], dependant: Dependant, key_of: Callable[[Dependant], object]) -> bool:
    call = dependant.call

    if call is None or not _is_plain(dependant) or kind_of(call) is not ToolKind.ASYNC:
        return False

    if not all(_add(steps, child, key_of) for child in dependant.dependencies):
        return False

    keys = _keys(dependant, key_of)
    steps.append(_Step(call, key_of(dependant), keys, dependant.header_params))
    return True


def _is_plain(dependant: Dependant) -> bool:
    blank = Dependant()
    return not any(
        (getattr(dependant, field.name) or None) != (getattr(blank, field.name) or None)
        for field in fields(dependant)
        if field.name not in _UNDERSTOOD
    )


def _keys(dependant: Dependant, key_of: Callable[[Dependant], object]) -> dict[str, Any]:
    return {child.name: key_of(child) for child in dependant.dependencies if child.name}


def _key_of() -> Callable[[Dependant], object] | None:
    """Return what names a dependant's place in the cache, which FastAPI has moved before."""
    function: Callable[..., object] | None = getattr(models, "_get_cache_key", None)

    if function is not None:
        return lambda dependant: function(dependant=dependant)

    if hasattr(Dependant, "cache_key"):
        return lambda dependant: getattr(dependant, "cache_key", None)

    return None
