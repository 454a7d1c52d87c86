"""Contenders without sockets: each request is one call of an ASGI application.

    python -m benchmarks.inprocess [rounds]

Prints the processor time of a request, in microseconds, as JSON: scenario → one number a
round. The rounds take turns, so that a busy minute hits everyone.
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import uvloop
from fastapi import FastAPI
from fastapi.routing import APIRoute, APIRouter
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks import calls
from benchmarks.calls import Call
from benchmarks.contenders import bare
from fastapi_carmy import AgentRouter

REQUESTS_A_ROUND = 300
TOOLS = (10, 1_000, 10_000)


class _Bare(APIRoute):
    """The bare answer where FastAPI hands a request to a route."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await bare.app(scope, receive, send)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await bare.app(scope, receive, send)


class Driver:
    """Makes one request over and over."""

    def __init__(self, app: ASGIApp, call: Call) -> None:
        self._app = app
        self._call = call
        self._body = call.body.encode()
        self._headers = [(b"host", b"127.0.0.1:8000"), (b"user-agent", b"benchmark")]
        self._headers += [(k.lower().encode(), v.encode()) for k, v in call.headers.items()]
        self._headers.append((b"content-length", b"%d" % len(self._body)))

    async def ask(self) -> list[Message]:
        """Make one request; return what the application sent."""
        sent: list[Message] = []
        is_read = False

        async def receive() -> Message:
            nonlocal is_read

            if is_read:
                await asyncio.get_running_loop().create_future()

            is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(self._scope(), receive, send)
        return sent

    async def check(self) -> None:
        """Make one request and look at its answer."""
        sent = await self.ask()
        assert sent[0]["status"] == self._call.status, sent

    async def measure(self, requests: int) -> float:
        """Return the processor time of a request in microseconds, averaged."""
        started = time.thread_time()

        for number in range(requests):
            await self.ask()

            # The loop gets its turn, as it does on a server.
            if not number % 16:
                await asyncio.sleep(0)

        return (time.thread_time() - started) / requests * 1e6

    def _scope(self) -> Scope:
        path = self._call.path
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 50000),
            "scheme": "http",
            "method": self._call.method,
            "root_path": "",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": self._headers,
            "state": {},
        }


def _layers() -> dict[str, Driver]:
    direct = FastAPI()
    direct.router.routes.append(_Bare("/orders", bare.app, methods=["POST"]))
    router = APIRouter(route_class=_Bare)
    router.add_api_route("/orders", lambda: None, methods=["POST"])
    included = FastAPI()
    included.include_router(router)
    starlette = Starlette(routes=[Route("/orders", _Direct(), methods=["POST"])])
    return {
        "bare": Driver(bare.app, calls.ENDPOINT),
        "layer: Starlette": Driver(starlette, calls.ENDPOINT),
        "layer: FastAPI": Driver(direct, calls.ENDPOINT),
        "layer: included router": Driver(included, calls.ENDPOINT),
    }


class _Direct:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await bare.app(scope, receive, send)


def _contenders() -> dict[str, Driver]:
    named: Mapping[str, tuple[str, Call]] = {
        "FastAPI": ("fastapi_plain", calls.ENDPOINT),
        "FastAPI, included router": ("fastapi_included", calls.ENDPOINT),
        "FastAPI, dependency": ("fastapi_depends", calls.ENDPOINT),
        "execute": ("carmy_plain", calls.EXECUTE),
        "execute, dependency": ("carmy_depends", calls.EXECUTE),
    }
    return {
        name: Driver(import_module(f"benchmarks.contenders.{module}").app, call)
        for name, (module, call) in named.items()
    }


def _growth() -> dict[str, Driver]:
    return {f"{number} tools": Driver(_with_tools(number), calls.EXECUTE) for number in TOOLS}


def _with_tools(number: int) -> FastAPI:
    tool: Callable[..., Any] = import_module("benchmarks.contenders.carmy_plain").create_order
    agent = AgentRouter()
    agent.add_tool(tool, effect="write")

    for place in range(number - 1):
        agent.add_tool(tool, effect="write", name=f"tool_{place}")

    app = FastAPI()
    app.include_router(agent)
    return app


async def _measure(rounds: int) -> dict[str, list[float]]:
    drivers = {**_layers(), **_contenders(), **_growth()}
    times: dict[str, list[float]] = {name: [] for name in drivers}

    for driver in drivers.values():
        await driver.check()
        await driver.measure(REQUESTS_A_ROUND)

    gc.collect()
    gc.freeze()

    for _ in range(rounds):
        for name, driver in drivers.items():
            times[name].append(await driver.measure(REQUESTS_A_ROUND))

    return times


def main(arguments: Sequence[str]) -> None:
    """Measure, and print JSON."""
    rounds = int(arguments[0]) if arguments else 15
    print(json.dumps(uvloop.run(_measure(rounds))))


if __name__ == "__main__":
    main(sys.argv[1:])
