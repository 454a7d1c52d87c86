"""Plain dependencies, called one after the other without FastAPI's solver.

Most tools depend on async functions that take other dependencies and headers. For those
the solver's answer is known beforehand: which to call, in which order, and where it keeps
their values. Whatever is more than that, or goes wrong, is left to the solver.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from fastapi.dependencies import models, utils
from fastapi.dependencies.models import Dependant
from starlette.datastructures import Headers
from starlette.types import Scope

from fastapi_carmy.signature import kind_of
from fastapi_carmy.tool import ToolKind

__all__ = ("Steps", "steps_of")

# Everything else that a dependant may say must be left unsaid.
_UNDERSTOOD = frozenset(("call", "dependencies", "header_params", "name", "path"))


class _PlainHeader(NamedTuple):
    """A header that is taken as the text it is."""

    parameter: str
    name: bytes
    default: str | None
    is_required: bool


@dataclass(frozen=True, slots=True)
class _Step:
    """One dependency to call."""

    call: Callable[..., Awaitable[Any]]
    key: Any
    """Its place in the solver's cache."""
    keys: Sequence[tuple[str, Any]]
    """The parameters that take other dependencies, and their places."""
    plain_headers: Sequence[_PlainHeader]
    headers: Sequence[Any]
    """The other parameters that take headers, as FastAPI knows them."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A tree of plain dependencies, in the order in which the solver calls them."""

    _steps: Sequence[_Step]
    _keys: Sequence[tuple[str, Any]]

    async def values(self, scope: Scope, cache: dict[Any, Any]) -> dict[str, object] | None:
        """Call the dependencies.

        Args:
            scope: The request's; its headers are read.
            cache: Values by dependency. What is in it is not called again, neither here nor
                by the solver.

        Returns:
            Parameter name → value; `None` when a header is wrong, which the solver tells.
        """
        # The first of a name counts.
        sent: dict[bytes, bytes] = dict(reversed(scope["headers"]))

        for step in self._steps:
            if step.key in cache:
                continue

            values = {name: cache[key] for name, key in step.keys} if step.keys else {}

            for parameter, name, default, is_required in step.plain_headers:
                text = sent.get(name)

                if text is None and is_required:
                    return None

                values[parameter] = default if text is None else text.decode("latin-1")

            if step.headers:
                found, errors = utils.request_params_to_args(step.headers, Headers(scope=scope))

                if errors:
                    return None

                values.update(found)

            cache[step.key] = await step.call(**values)

        return {name: cache[key] for name, key in self._keys}


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

    plain: list[_PlainHeader] = []
    others: list[Any] = []

    for field in dependant.header_params:
        header = _plain_header(field)
        others.append(field) if header is None else plain.append(header)

    steps.append(_Step(call, key_of(dependant), _keys(dependant, key_of), plain, others))
    return True


def _plain_header(field: Any) -> _PlainHeader | None:
    """Return how a header is read that is a text, as FastAPI reads it when asked to."""
    info = field.field_info

    if info.metadata or info.annotation not in (str, str | None):
        return None

    if info.default_factory is not None or info.validation_alias not in (None, field.alias):
        return None

    name = str(field.alias).lower().encode("latin-1", "replace")
    present, wrong = utils.request_params_to_args([field], Headers(raw=[(name, b"x")]))
    absent, missing = utils.request_params_to_args([field], Headers(raw=[]))
    default = absent.get(field.name)

    if wrong or present != {field.name: "x"} or not isinstance(default, str | None):
        return None

    return _PlainHeader(field.name, name, default, bool(missing))


def _is_plain(dependant: Dependant) -> bool:
    blank = Dependant()
    return not any(
        (getattr(dependant, field.name) or None) != (getattr(blank, field.name) or None)
        for field in fields(dependant)
        if field.name not in _UNDERSTOOD
    )


def _keys(dependant: Dependant, key_of: Callable[[Dependant], object]) -> list[tuple[str, Any]]:
    return [(child.name, key_of(child)) for child in dependant.dependencies if child.name]


def _key_of() -> Callable[[Dependant], object] | None:
    """Return what names a dependant's place in the cache, which FastAPI has moved before."""
    function: Callable[..., object] | None = getattr(models, "_get_cache_key", None)

    if function is not None:
        return lambda dependant: function(dependant=dependant)

    if hasattr(Dependant, "cache_key"):
        return lambda dependant: getattr(dependant, "cache_key", None)

    return None
