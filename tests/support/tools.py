"""One call of a tool on a real scope, with its dependencies and without the runtime."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, cast

from anyio.to_thread import run_sync
from pydantic_core import to_json
from starlette.types import Message, Scope

from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Cancellation
from fastapi_carmy.context import AgentContext
from fastapi_carmy.injection import Guards, HttpOpened
from fastapi_carmy.injection.solver import analyse, stub
from fastapi_carmy.tool import Tool, ToolKind

ToolCall = Callable[[], Any]


def scope_of(
    headers: Mapping[str, str] | None = None,
    *,
    query: str = "",
    path_params: Mapping[str, object] | None = None,
    app: object = None,
) -> Scope:
    """Return the scope of a request, as Starlette's router hands it on."""
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/agent/execute",
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(key.encode(), value.encode()) for key, value in (headers or {}).items()],
        "path_params": dict(path_params or {}),
    }
    return scope if app is None else {**scope, "app": app}


async def receive() -> Message:
    """Return the end of an empty body."""
    return {"type": "http.request", "body": b"", "more_body": False}


def opened_on(scope: Scope, guards: Guards | None = None) -> HttpOpened:
    """Prepare one call's dependencies; the route has none of its own unless given."""
    return HttpOpened(scope, receive, guards or Guards(analyse(stub("route", ()), (), path="/")))


def context_of(tool: Tool, caller: Caller | None = None) -> AgentContext:
    """Return the context of one execution."""
    return AgentContext(
        execution_id="exec_1",
        tool=tool.spec.name,
        request_id=None,
        caller=caller or Caller(),
        cancellation=Cancellation(),
    )


def validate(tool: Tool, arguments: object) -> dict[str, object]:
    """Return the validated arguments of one call."""
    envelope = {"tool": tool.spec.name, "arguments": arguments, "request_id": "r"}
    return tool.input.validate_json(to_json(envelope))["arguments"]


async def call(
    tool: Tool,
    arguments: object,
    *,
    opened: HttpOpened | None = None,
    caller: Caller | None = None,
) -> Any:
    """Call a tool as the runtime does: validate, guards, dependencies, function, closing."""
    opened = opened or opened_on(scope_of())
    context = context_of(tool, caller)
    values = validate(tool, arguments)
    await opened.guards(tool, lambda: context)
    values |= await opened.dependencies(tool, lambda: context, values)
    values |= dict.fromkeys(tool.context_parameters, context)
    values |= dict.fromkeys(tool.caller_parameters, context.caller)

    try:
        result = await run(tool, partial(tool.call, **values))
    except BaseException as error:
        await opened.aclose(error)
        raise

    await opened.aclose(None)
    return result


async def run(tool: Tool, tool_call: ToolCall) -> Any:
    """Run a prepared call as its kind asks for."""
    if tool.kind is ToolKind.ASYNC:
        return await tool_call()

    if tool.kind is ToolKind.ASYNC_GENERATOR:
        return [item async for item in tool_call()]

    if tool.kind is ToolKind.THREAD_GENERATOR:
        return await run_sync(lambda: list(tool_call()))

    result = await run_sync(tool_call)
    return await result if isawaitable(result) else result


def names_of(schema: Mapping[str, object]) -> Sequence[str]:
    """Return the properties of an object's schema, in order."""
    return list(cast("dict[str, object]", schema["properties"]))
