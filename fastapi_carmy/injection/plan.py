"""How one tool's dependencies are solved: read once, when the tool is registered.

Two sides. *Guards* are the tool's `dependencies` and every `Security`, wherever it stands;
they run on every call, and take their scalars from path and query as in FastAPI. *Ordinary*
dependencies run with the tool, and take theirs from the call's arguments.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter
from typing import Any

from fastapi import params

from fastapi_carmy.docstrings import read_docstring
from fastapi_carmy.errors import ToolError
from fastapi_carmy.injection.nodes import Node, read_node
from fastapi_carmy.injection.solver import (
    Dependant,
    DependencyCall,
    Overrides,
    analyse,
    path_with,
    stand_in,
    stub,
)
from fastapi_carmy.injection.steps import Steps, steps_of
from fastapi_carmy.injection.threads import in_own_thread
from fastapi_carmy.schemas import Argument
from fastapi_carmy.signature import ReadParameter, name_of
from fastapi_carmy.threads import LoopLimiter

__all__ = ("Plan", "Solvable")

_MAX_PATHS = 16
"""A router is included in few places; a plan remembers this many of them."""


@dataclass(slots=True)
class Solvable:
    """A dependant, and what the solver remembers about it."""

    dependant: Dependant
    scopes_cache: dict[int, Any] = field(default_factory=dict[int, Any])
    steps: Steps | None = None
    """How to do without the solver, where that is possible."""


class Plan:
    """How one tool's dependencies are solved."""

    def __init__(
        self,
        tool: str,
        parameters: Iterable[ReadParameter],
        guards: Sequence[params.Depends] = (),
        *,
        names: Mapping[str, Any] | None = None,
        overrides: Overrides | None = None,
        limiter: LoopLimiter | None = None,
    ) -> None:
        """Read everything that the tool depends on.

        Args:
            tool: The tool's name.
            parameters: The tool's parameters that are injected.
            guards: Its `dependencies`.
            names: Local names that annotations may use.
            overrides: Callable → replacement.
            limiter: Threads for sync dependencies; FastAPI's own if it is `None`.

        Raises:
            ToolError: If a dependency asks for something that it can't get.
        """
        self.tool = tool
        self._limiter = limiter
        self._plain = tuple(read.parameter for read in parameters if read.depends is None)
        self._guards = tuple(
            read_node(tool, f"*{place}", depends, is_guard=True, names=names, overrides=overrides)
            for place, depends in enumerate(guards)
        )
        nodes = [
            read_node(
                tool, read.name, read.depends, is_guard=False, names=names, overrides=overrides
            )
            for read in parameters
            if read.depends is not None
        ]
        self._securities = tuple(node for node in nodes if node.is_guard)
        self._ordinary = tuple(node for node in nodes if not node.is_guard)
        self._keys = _keys(self._ordinary)
        self.security_names = tuple(node.name for node in self._securities)
        self.arguments = self._read_arguments()
        self._refuse_two_sides()
        self._by_path: dict[tuple[str, ...], tuple[Solvable | None, Solvable | None]] = {}
        self._securities_by_path: dict[tuple[str, ...], Solvable] = {}

        # Mistakes show now, not at the first call.
        self.solvables(())

    @property
    def has_guards(self) -> bool:
        """Whether anything runs on every call."""
        return bool(self._guards) or any(node.is_guard for node in self._nodes(guards=False))

    @property
    def has_dependencies(self) -> bool:
        """Whether the tool takes anything that is injected."""
        return bool(self._plain or self._ordinary or self._securities)

    @property
    def calls(self) -> frozenset[DependencyCall]:
        """Everything that an override may replace; what has no hash can't be."""
        asked = (node.depends.dependency for node in self._nodes())
        return frozenset(call for call in asked if call is not None and _has_hash(call))

    @property
    def argument_takers(self) -> list[DependencyCall]:
        """Dependencies that take scalars from the arguments."""
        return [
            node.call for node in self._nodes(guards=False) if node.scalars and not node.is_guard
        ]

    @cached_property
    def needs_request(self) -> bool:
        """Whether the tool can't run without an HTTP request."""
        dependants = [
            analyse(node.call, node.parameters, path="/")
            for node in self._nodes(guards=False)
            if not node.is_own and not node.is_guard
        ]
        dependants.append(analyse(stub(self.tool, ()), self._plain, path="/"))
        return any(node.is_guard for node in self._nodes(guards=False)) or any(
            dependant.request_param_name
            or dependant.http_connection_param_name
            or dependant.header_params
            or dependant.cookie_params
            for dependant in dependants
        )

    def solvables(self, path_names: tuple[str, ...]) -> tuple[Solvable | None, Solvable | None]:
        """Return what to solve for the guards, and for the tool itself.

        Args:
            path_names: The route's path parameters: guards take those from the path.
        """
        found = self._by_path.get(path_names)

        if found is None:
            if len(self._by_path) >= _MAX_PATHS:
                self._by_path.clear()

            found = self._by_path[path_names] = self._build(path_with(path_names))

        return found

    def securities(self, path_names: tuple[str, ...]) -> Solvable:
        """Return what gives the tool's own `Security` parameters where no guards ran."""
        found = self._securities_by_path.get(path_names)

        if found is None:
            if len(self._securities_by_path) >= _MAX_PATHS:
                self._securities_by_path.clear()

            root = analyse(stub(self.tool, ()), (), path="/")
            path = path_with(path_names)
            root.dependencies = [self._dependant(node, path, []) for node in self._securities]
            found = self._securities_by_path[path_names] = Solvable(root)

        return found

    # ---- reading

    def _nodes(self, *, guards: bool = True) -> Iterator[Node]:
        roots = (*(self._guards if guards else ()), *self._securities, *self._ordinary)

        for root in roots:
            yield from root.walk()

    def _read_arguments(self) -> tuple[Argument, ...]:
        arguments: dict[str, Argument] = {}

        for root in self._ordinary:
            for node in root.walk():
                if node.is_guard:
                    continue

                for read in node.scalars:
                    key = self._key(node, read)
                    arguments.setdefault(key, _argument(read, key, node.call))

        return tuple(arguments.values())

    def _key(self, node: Node, read: ReadParameter) -> str:
        # No parameter has a dot in its name, so these never meet the tool's own.
        return f"{self._keys[id(node.call)]}.{read.name}"

    def _refuse_two_sides(self) -> None:
        takers = {id(call) for call in self.argument_takers}

        for node in self._nodes():
            if node.is_guard and node.scalars and id(node.call) in takers:
                raise ToolError(
                    self.tool,
                    f"{name_of(node.call)!r} takes parameters, and is both a guard, which reads"
                    " them from path and query, and a dependency, which reads them from the"
                    " arguments; use two functions",
                    parameter=node.scalars[0].name,
                )

    # ---- building

    def _build(self, path: str) -> tuple[Solvable | None, Solvable | None]:
        hoisted: list[Dependant] = []
        ordinary = None

        if self._plain or self._ordinary:
            ordinary = analyse(stub(self.tool, ()), self._plain, path="/")
            ordinary.dependencies = [
                self._dependant(node, path, hoisted) for node in self._ordinary
            ]

        roots = [self._dependant(node, path, []) for node in (*self._guards, *self._securities)]

        if not roots and not hoisted:
            return None, _solvable(ordinary)

        guards = analyse(stub(self.tool, ()), (), path="/")
        guards.dependencies = [*roots, *hoisted]
        return Solvable(guards), _solvable(ordinary)

    def _dependant(
        self,
        node: Node,
        path: str,
        hoisted: list[Dependant],
        parent_scopes: Sequence[str] = (),
        *,
        is_hoisted: bool = False,
    ) -> Dependant:
        parameters = list(node.parameters)

        if node.is_guard:
            parameters.extend(read.parameter for read in node.scalars)

        dependant = _analysed(self.tool, node, parameters, path, parent_scopes)

        if self._limiter is not None:
            dependant.call = in_own_thread(node.call, self._limiter)

        if not node.is_guard:
            dependant.body_params.extend(
                stand_in(read.name, self._key(node, read)) for read in node.scalars
            )

        scopes = [*parent_scopes, *(getattr(node.depends, "scopes", None) or ())]
        dependant.dependencies = [
            self._dependant(child, path, hoisted, scopes, is_hoisted=is_hoisted or node.is_guard)
            for child in node.children
        ]

        if node.is_guard and not is_hoisted:
            # Both have one place in the cache; without a name, its value is nobody's parameter.
            hoisted.append(replace(dependant, name=None))

        return dependant


def _solvable(dependant: Dependant | None) -> Solvable | None:
    return None if dependant is None else Solvable(dependant, steps=steps_of(dependant))


def _analysed(
    tool: str,
    node: Node,
    parameters: Sequence[Parameter],
    path: str,
    parent_scopes: Sequence[str],
) -> Dependant:
    try:
        dependant = analyse(
            node.call,
            parameters,
            path=path if node.is_guard else "/",
            name=node.name,
            depends=node.depends,
            parent_scopes=parent_scopes,
        )
    except Exception as error:
        # FastAPI reports mistakes by several unrelated classes, assertions among them.
        raise ToolError(
            tool, f"FastAPI can't read {name_of(node.call)!r}: {error}", parameter=node.name
        ) from error

    if dependant.body_params:
        raise ToolError(
            tool,
            f"the guard {name_of(node.call)!r} can't take a body; take scalars from path or query",
            parameter=dependant.body_params[0].name,
        )

    return dependant


def _keys(roots: Iterable[Node]) -> dict[int, int]:
    keys: dict[int, int] = {}

    for root in roots:
        for node in root.walk():
            keys.setdefault(id(node.call), len(keys))

    return keys


def _argument(read: ReadParameter, key: str, call: DependencyCall) -> Argument:
    return Argument(
        name=read.name,
        key=key,
        annotation=read.parameter.annotation,
        default=read.parameter.default,
        description=read_docstring(getattr(call, "__doc__", None)).arguments.get(read.name),
    )


def _has_hash(call: DependencyCall) -> bool:
    return getattr(type(call), "__hash__", None) is not None
