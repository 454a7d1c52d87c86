"""FastAPI's dependency solver, as far as it is not public.

Works on FastAPI 0.137 and later. Beside this module, `current` (routers inside routers),
`http.remembered` (the notes in a scope),
`opened` and `steps` (the keys of the solver's cache), `stacks` (the scope's keys) and
`agui.endpoint.dependencies` rely on what FastAPI does not document. What differs between
its versions is looked up by name. A name that decides who gets in is never optional: when it
moves, registration fails, or `guards` refuses the request.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Annotated, Any

from fastapi import Depends, params
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import SolvedDependency, get_dependant, solve_dependencies
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, iter_route_contexts
from fastapi.utils import create_model_field
from starlette.background import BackgroundTasks
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Host, Mount
from starlette.types import Scope

__all__ = (
    "INCLUSION",
    "NOTES",
    "PLACE",
    "Dependant",
    "DependencyCall",
    "Overrides",
    "analyse",
    "dependant_of",
    "dependants_in",
    "overrides_in",
    "path_with",
    "place_of",
    "solve",
    "solve_one",
    "stand_in",
    "stub",
)

DependencyCall = Callable[..., Any]
Overrides = Mapping[DependencyCall, DependencyCall]
"""What the host puts in the place of some dependencies: callable → replacement."""

NOTES = "fastapi"
"""Where FastAPI keeps in a scope what it has found out, under the two keys that follow."""
INCLUSION = "included_router"
PLACE = "effective_route_context"

_NO_OVERRIDES: Overrides = {}
_SOLVE_TAKES = inspect.signature(solve_dependencies).parameters
_TAKES_CONCURRENCY = "concurrency" in inspect.signature(get_dependant).parameters


def overrides_in(scope: Scope) -> Overrides:
    """Return the `dependency_overrides` that count for a request, as they are now."""
    place = scope[NOTES].get(PLACE) if NOTES in scope else None
    provider = getattr(place, "dependency_overrides_provider", None) or scope.get("app")
    return getattr(provider, "dependency_overrides", None) or _NO_OVERRIDES


def place_of(scope: Scope) -> Any:
    """Return what stands for the place where a route is included, `None` where there is none."""
    return scope[NOTES].get(PLACE) if NOTES in scope else None


def dependant_of(route: APIRoute, scope: Scope) -> Dependant:
    """Return what `route` depends on where this request reached it, includes and all."""
    context = place_of(scope)

    if context is not None and getattr(context, "original_route", None) is route:
        dependant: Dependant = context.dependant
        return dependant

    return route.dependant


def dependants_in(scope: Scope, route: APIRoute) -> Iterator[Dependant]:
    """Yield what `route` depends on in each place where the request's application has it."""
    for root in (scope.get("app"), scope.get("router")):
        yield from _dependants_in(root, route)


def _dependants_in(root: object, route: APIRoute) -> Iterator[Dependant]:
    routes: Sequence[BaseRoute] = getattr(root, "routes", None) or ()

    for context in iter_route_contexts(routes):
        if context.original_route is route:
            yield context.dependant
        elif isinstance(context.original_route, Mount | Host):
            yield from _dependants_in(context.original_route, route)


def path_with(names: Sequence[str]) -> str:
    """Return a path with these parameters: FastAPI takes them from there, never the query."""
    return "/" + "/".join(f"{{{name}}}" for name in names)


def stub(name: str, parameters: Sequence[Parameter]) -> DependencyCall:
    """Return a function for FastAPI to analyse, which is never called."""

    def analysed() -> None: ...

    keyword_only = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    analysed.__signature__ = Signature(keyword_only)  # type: ignore[attr-defined]
    analysed.__name__ = name
    return analysed


def analyse(
    call: DependencyCall,
    parameters: Sequence[Parameter],
    *,
    path: str,
    name: str | None = None,
    depends: params.Depends | None = None,
    parent_scopes: Sequence[str] = (),
) -> Dependant:
    """Return a dependant for `call` that takes only `parameters`.

    Args:
        call: What the solver will call.
        parameters: Its parameters that FastAPI fills; no `Depends` among them.
        path: The route's path, for the names of its parameters.
        name: The parameter that takes the value.
        depends: How the value was asked for.
        parent_scopes: Security scopes of those who ask.
    """
    options: dict[str, Any] = {}

    if depends is not None:
        options = {
            "own_oauth_scopes": list(getattr(depends, "scopes", None) or ()),
            "use_cache": depends.use_cache,
            "scope": depends.scope,
        }

        if _TAKES_CONCURRENCY:
            options["concurrency"] = getattr(depends, "_concurrency", None)

    dependant = get_dependant(
        path=path,
        call=stub(name or "dependency", parameters),
        name=name,
        parent_oauth_scopes=list(parent_scopes),
        **options,
    )
    dependant.call = call
    return dependant


def stand_in(name: str, key: str) -> Any:
    """Return a body field that hands on a value which is validated already.

    Args:
        name: The parameter that takes it.
        key: Where it stands in the body given to `solve`.
    """
    # `Any` accepts every value as it is, so this field has no errors.
    field_info = params.Body(default=None, annotation=Any, alias=key)
    return create_model_field(name=name, type_=Any, default=None, alias=key, field_info=field_info)


async def solve(
    request: HTTPConnection,
    dependant: Dependant,
    *,
    body: Mapping[str, object] | None = None,
    cache: dict[Any, Any],
    background: BackgroundTasks | None = None,
    response: Response | None = None,
    overrides: Overrides | None = None,
    scopes_cache: dict[int, Any] | None = None,
) -> SolvedDependency:
    """Call a dependant's dependencies.

    Args:
        request: Its scope holds the stacks of `stack_keys`.
        dependant: What to solve; its own callable is not called.
        body: Values for stand-ins, by key.
        cache: Values by dependency, shared by the solves of one execution.
        background: Tasks that dependencies added so far.
        response: The response that dependencies set headers on.
        overrides: Replacements which FastAPI applies itself.
        scopes_cache: Kept with `dependant`; saves looking for security scopes again.

    Raises:
        RequestValidationError: If a header, cookie, path or query parameter is wrong.
        Exception: Whatever a dependency raises.
    """
    options: dict[str, Any] = {}

    if scopes_cache is not None and "_uses_scopes_cache" in _SOLVE_TAKES:
        options["_uses_scopes_cache"] = scopes_cache

    if overrides:
        options["dependency_overrides_provider"] = SimpleNamespace(dependency_overrides=overrides)

    solved = await solve_dependencies(
        # A WebSocket or a `Request`: all that ever carries stacks.
        request=request,  # type: ignore[arg-type]
        dependant=dependant,
        body=body or {},
        background_tasks=background,
        response=response,
        dependency_cache=cache,
        # Required, and ignored: the scope's stacks count.
        async_exit_stack=AsyncExitStack(),
        embed_body_fields=True,
        **options,
    )

    if solved.errors:
        raise RequestValidationError(solved.errors)

    return solved


async def solve_one(
    connection: HTTPConnection, call: DependencyCall, *, cache: dict[Any, Any] | None = None
) -> object:
    """Call one dependency on a request whose scope holds stacks.

    Args:
        connection: The request.
        call: The dependency.
        cache: As for `solve`.
    """
    parameter = Parameter("value", Parameter.KEYWORD_ONLY, annotation=Annotated[Any, Depends(call)])
    dependant = get_dependant(
        path=path_with(list(connection.path_params)), call=stub("endpoint", [parameter])
    )
    solved = await solve(
        connection,
        dependant,
        cache={} if cache is None else cache,
        overrides=overrides_in(connection.scope),
    )
    return solved.values["value"]
