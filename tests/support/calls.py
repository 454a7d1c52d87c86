"""Calls to a router that a test puts together, and answers as a test looks at them."""

from collections.abc import Mapping
from typing import Annotated, Any

import httpx2
from fastapi import FastAPI, Header
from fastapi.testclient import TestClient

from fastapi_carmy import AgentRouter, Caller
from tests.support.asgi import execute
from tests.support.sse import Frame, parse_frames

__all__ = ("answer", "app_of", "caller_from_headers", "code", "events", "post", "stream")

STREAM = {"Accept": "text/event-stream"}


def app_of(agent: AgentRouter, **options: Any) -> FastAPI:
    """Return an application that includes `agent` and nothing else."""
    app = FastAPI()
    app.include_router(agent, **options)
    return app


def caller_from_headers(
    x_principal: Annotated[str | None, Header()] = None,
    x_session: Annotated[str | None, Header()] = None,
    x_permissions: Annotated[str, Header()] = "",
) -> Caller:
    """Believe what the request says of its caller; a router's `caller`, for tests only."""
    permissions = frozenset(x_permissions.split())
    return Caller(principal=x_principal, session=x_session, permissions=permissions)


def post(
    client: TestClient,
    tool: str,
    arguments: object = None,
    *,
    request_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    path: str = "/agent/execute",
) -> httpx2.Response:
    """Execute one tool."""
    body: dict[str, object] = {"tool": tool, "arguments": {} if arguments is None else arguments}
    if request_id is not None:
        body["request_id"] = request_id

    return client.post(path, json=body, headers=headers)


def stream(
    client: TestClient,
    tool: str,
    arguments: object = None,
    *,
    request_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Frame]:
    """Execute one tool and return the events of its execution, once it is over."""
    sent = {**STREAM, **(headers or {})}
    response = post(client, tool, arguments, request_id=request_id, headers=sent)
    assert response.headers["content-type"] == "text/event-stream", response.text
    return list(parse_frames([response.content]))


async def answer(
    app: FastAPI,
    tool: str,
    arguments: object = None,
    *,
    request_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Execute one tool in the test's own loop and return the whole answer, parsed."""
    async with execute(app, tool, arguments, request_id=request_id, headers=headers) as exchange:
        return await exchange.json()


def code(response: httpx2.Response) -> str:
    """Return the code of a failure."""
    found: str = response.json()["error"]["code"]
    return found


def events(frames: list[Frame]) -> list[str]:
    """Return the names of the events, in order."""
    return [frame.event for frame in frames if frame.comment is None]
