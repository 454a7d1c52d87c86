"""Dependencies as they are asked for: read from signatures, not yet FastAPI's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from fastapi import params

from fastapi_carmy.errors import ToolError
from fastapi_carmy.injection.solver import DependencyCall, Overrides
from fastapi_carmy.signature import (
    ReadParameter,
    Role,
    kind_of,
    name_of,
    read_parameters,
    refuse_bare,
)
from fastapi_carmy.tool import ToolKind

__all__ = ("Node", "read_node")

_GENERATORS = (ToolKind.ASYNC_GENERATOR, ToolKind.THREAD_GENERATOR)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One dependency, as somebody asks for it, with those it asks for itself."""

    call: DependencyCall
    depends: params.Depends
    name: str
    """The parameter that takes its value."""
    is_guard: bool
    parameters: tuple[Parameter, ...]
    """What FastAPI fills by itself."""
    scalars: tuple[ReadParameter, ...]
    """What comes from path and query for a guard, and from the arguments otherwise."""
    children: tuple["Node", ...]
    is_own: bool
    """Whether it is one of the package's aliases, which need no real request."""

    def walk(self) -> Iterator["Node"]:
        """Yield this node and all below it."""
        yield self

        for child in self.children:
            yield from child.walk()


def read_node(
    tool: str,
    name: str,
    depends: params.Depends,
    *,
    is_guard: bool,
    names: Mapping[str, Any] | None = None,
    overrides: Overrides | None = None,
) -> Node:
    """Read a dependency and all that it depends on.

    Args:
        tool: The tool's name, for errors.
        name: The parameter that asks for it.
        depends: How it asks.
        is_guard: Whether it runs with the guards.
        names: Local names that annotations may use.
        overrides: Callable → replacement.

    Raises:
        ToolError: If it asks for something that it can't get.
    """
    asked = depends.dependency
    call = (overrides or {}).get(asked, asked) if asked is not None else None

    if call is None:
        raise ToolError(tool, "`Depends()` names no callable", parameter=name)

    is_guard = is_guard or isinstance(depends, params.Security)
    plain: list[Parameter] = []
    scalars: list[ReadParameter] = []
    children: list[Node] = []

    for read in read_parameters(tool, call, names=names):
        refuse_bare(tool, read)

        if read.depends is not None:
            children.append(
                read_node(
                    tool,
                    read.name,
                    read.depends,
                    is_guard=is_guard,
                    names=names,
                    overrides=overrides,
                )
            )
        elif read.role is Role.ARGUMENT:
            scalars.append(read)
        elif read.role is Role.WHOLE:
            raise ToolError(tool, "a dependency can't take `Arguments`", parameter=read.name)
        else:
            plain.append(read.parameter)

    node = Node(
        call=call,
        depends=depends,
        name=name,
        is_guard=is_guard,
        parameters=tuple(plain),
        scalars=tuple(scalars),
        children=tuple(children),
        is_own=hasattr(call, "carmy_role"),
    )
    _check_scopes(tool, node)
    return node


def _check_scopes(tool: str, node: Node) -> None:
    """Refuse what would outlive a dependency that it uses."""
    outlives = kind_of(node.call) in _GENERATORS and node.depends.scope != "function"

    for child in node.children:
        if outlives and child.depends.scope == "function":
            raise ToolError(
                tool,
                f"{name_of(node.call)!r} lives for the whole request, and can't depend on"
                " something that lives for the function only",
                parameter=child.name,
            )
