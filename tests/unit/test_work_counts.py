"""How much work a call is: calls of the package's own functions, which no busy machine changes.

A figure that moves by more than a twentieth is either mended or recorded anew, on purpose.
"""

import asyncio
import cProfile
import pstats
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Annotated

import pytest
from anyio.lowlevel import checkpoint
from fastapi import Depends, FastAPI, Header
from pydantic import BaseModel
from starlette.types import Message, Scope

import fastapi_carmy
from fastapi_carmy import AgentContext, AgentRouter

PACKAGE = str(Path(fastapi_carmy.__file__).parent)
REQUESTS = 40

RECORDED = {
    "execute": 36.0,
    "execute with a dependency": 42.0,
    "execute with a request_id": 57.0,
    "execute with ten events of progress": 350.0,
    "catalog": 16.0,
}
numbers = count()


class Order(BaseModel):
    sku: str
    quantity: int
    total: float


async def get_shop(x_shop: Annotated[str, Header()] = "main") -> str:
    return x_shop


def make_app() -> FastAPI:
    agent = AgentRouter()

    @agent.tool(effect="write")
    async def create_order(sku: str, quantity: int = 1) -> Order:
        return Order(sku=sku, quantity=quantity, total=quantity * 2.5)

    @agent.tool(effect="write")
    async def order_from(shop: Annotated[str, Depends(get_shop)], quantity: int = 1) -> Order:
        return Order(sku=shop, quantity=quantity, total=quantity * 2.5)

    @agent.tool(effect="write")
    async def restock(context: AgentContext) -> int:
        for step in range(10):
            await checkpoint()
            context.progress(step)
        return 10

    app = FastAPI()
    app.include_router(agent)
    return app


def executing(tool: str, arguments: str, *, accept: str = "*/*", is_named: bool = False) -> Scope:
    request_id = f',"request_id":"r-{next(numbers)}"' if is_named else ""
    body = f'{{"tool":"{tool}","arguments":{arguments}{request_id}}}'.encode()
    return {"method": "POST", "path": "/agent/execute", "body": body, "accept": accept}


REQUESTED: dict[str, Callable[[], Scope]] = {
    "execute": lambda: executing("create_order", '{"sku":"A-1","quantity":2}'),
    "execute with a dependency": lambda: executing("order_from", '{"quantity":2}'),
    "execute with a request_id": lambda: executing("create_order", '{"sku":"A-1"}', is_named=True),
    "execute with ten events of progress": lambda: executing(
        "restock", "{}", accept="text/event-stream"
    ),
    "catalog": lambda: {"method": "GET", "path": "/agent/tools", "body": b"", "accept": "*/*"},
}


async def ask(app: FastAPI, request: Scope) -> None:
    """Make one request, with as little work as can be around the application."""
    statuses: list[int] = []
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            await asyncio.get_running_loop().create_future()
        is_read = True
        return {"type": "http.request", "body": request["body"], "more_body": False}

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    headers = [
        (b"host", b"testserver"),
        (b"content-type", b"application/json"),
        (b"accept", request["accept"].encode()),
    ]
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request["method"],
        "scheme": "http",
        "path": request["path"],
        "raw_path": request["path"].encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("testclient", 50000),
        "server": ("testserver", 80),
    }
    await app(scope, receive, send)
    assert statuses[0] == 200


async def calls_of(make: Callable[[], Awaitable[None]]) -> float:
    """Return how often a request calls a function of the package, on average."""
    for _ in range(3):
        await make()

    profile = cProfile.Profile()

    for _ in range(REQUESTS):
        with profile:
            await make()

    # Comprehensions are functions in some versions of Python, and have no names.
    return (
        sum(
            calls
            for (file, _, name), (_, calls, *_) in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
            if file.startswith(PACKAGE) and not name.startswith("<")
        )
        / REQUESTS
    )


@pytest.mark.parametrize("scenario", REQUESTED)
async def test_a_request_calls_as_many_functions_as_recorded(scenario: str) -> None:
    app = make_app()

    calls = await calls_of(lambda: ask(app, REQUESTED[scenario]()))

    assert calls == pytest.approx(RECORDED[scenario], rel=0.05)
