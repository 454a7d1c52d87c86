"""A real uvicorn in the test's own loop, and a client that speaks to it byte by byte.

Events of the test reach into the application, so a test knows where an execution is when
it hangs up, and a hang-up is a socket that closes.
"""

import os
import socket
from asyncio import all_tasks
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import uvicorn
from anyio.abc import SocketAttribute, SocketStream
from pydantic_core import from_json, to_json
from starlette.types import ASGIApp

from tests.support.sse import Frame, parse_frames

__all__ = ("Answer", "Served", "Wire", "call", "connect", "serve_here")

LIMIT_SECONDS = 5.0


@dataclass(frozen=True)
class Answer:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    """Names in lowercase; of repeated headers the values are joined by commas."""
    body: bytes

    def json(self) -> Any:
        """Return the body, parsed."""
        return from_json(self.body)

    @property
    def code(self) -> str:
        """The code of a failure."""
        found: str = self.json()["error"]["code"]
        return found

    @property
    def frames(self) -> list[Frame]:
        """The events of a stream."""
        return list(parse_frames([self.body]))

    @property
    def result(self) -> Any:
        """The answer to a call, whether it came as JSON or as a stream."""
        is_stream = self.headers["content-type"] == "text/event-stream"
        return self.frames[-1].json() if is_stream else self.json()


class Wire:
    """One request on a connection of its own."""

    def __init__(self, stream: SocketStream) -> None:
        self.received = b""
        self._stream = stream

    async def send(self, data: bytes) -> None:
        """Send more bytes of the request."""
        with anyio.fail_after(LIMIT_SECONDS):
            await self._stream.send(data)

    async def until(self, marker: bytes) -> bytes:
        """Wait until the response holds `marker`; returns what has come so far."""
        with anyio.fail_after(LIMIT_SECONDS):
            while marker not in self.received:
                self.received += await self._stream.receive()
        return self.received

    async def answer(self) -> Answer:
        """Wait for the whole response."""
        with anyio.fail_after(LIMIT_SECONDS):
            try:
                while True:
                    self.received += await self._stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass
        return _parse(self.received)

    async def hang_up(self) -> None:
        """Close the connection, whatever is under way."""
        await self._stream.aclose()

    def hang_up_now(self) -> None:
        """Close the connection without giving anybody else a turn."""
        raw: socket.socket = self._stream.extra(SocketAttribute.raw_socket)  # noqa: S610
        # uvloop's sockets don't let themselves be shut down; a copy of the descriptor does.
        with socket.socket(fileno=os.dup(raw.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)


class Served:
    """An application that is served."""

    def __init__(self, server: uvicorn.Server, port: int) -> None:
        self.port = port
        self._server = server

    @property
    def url(self) -> str:
        """The base URL, for clients that are not ours."""
        return f"http://127.0.0.1:{self.port}"

    async def started(self) -> None:
        """Wait until the application's lifespan has begun."""
        with anyio.fail_after(LIMIT_SECONDS):
            while not self._server.started:
                await anyio.lowlevel.checkpoint()

    async def noticed_hang_up(self) -> None:
        """Wait until the server knows of no connection any more."""
        with anyio.fail_after(LIMIT_SECONDS):
            while self._server.server_state.connections:
                await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def serve_here(app: ASGIApp, **options: Any) -> AsyncIterator[Served]:
    """Serve `app` in the running loop.

    Once it has stopped, every task that was started meanwhile has ended.

    Args:
        app: The application; its lifespan runs.
        options: For uvicorn's configuration.
    """
    before = all_tasks()
    options = {"ws": "none", "log_config": None, "timeout_graceful_shutdown": 2, **options}
    server = uvicorn.Server(uvicorn.Config(app, **options))
    listener = socket.create_server(("127.0.0.1", 0))

    with listener:
        async with anyio.create_task_group() as tasks:
            try:
                tasks.start_soon(server.serve, [listener])
                served = Served(server, listener.getsockname()[1])
                await served.started()
                yield served
            finally:
                server.should_exit = True

    assert all_tasks() <= before, all_tasks() - before


@asynccontextmanager
async def connect(
    served: Served,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> AsyncIterator[Wire]:
    """Send one request; hangs up on leaving.

    Args:
        body: Sent with its length; `None` for what the test sends itself, or nothing.
    """
    sent = {"Host": "testserver", "Connection": "close", **(headers or {})}
    if body is not None:
        sent["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")

    with anyio.fail_after(LIMIT_SECONDS):
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
    async with stream:
        wire = Wire(stream)
        await wire.send(head + (body or b""))
        yield wire


@asynccontextmanager
async def call(
    served: Served,
    tool: str,
    arguments: object = None,
    *,
    request_id: str | None = None,
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
    path: str = "/agent/execute",
) -> AsyncIterator[Wire]:
    """Send one call to the router that is served."""
    body: dict[str, object] = {"tool": tool, "arguments": {} if arguments is None else arguments}
    if request_id is not None:
        body["request_id"] = request_id
    accept = "text/event-stream" if stream else "application/json"
    sent = {"Content-Type": "application/json", "Accept": accept, **(headers or {})}
    async with connect(served, path, method="POST", headers=sent, body=to_json(body)) as wire:
        yield wire


def _parse(response: bytes) -> Answer:
    head, _, body = response.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        known = headers.get(name.lower())
        headers[name.lower()] = value.strip() if known is None else f"{known}, {value.strip()}"
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join(_chunks(body))
    return Answer(int(status.split()[1]), headers, body)


def _chunks(body: bytes) -> list[bytes]:
    chunks: list[bytes] = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        chunks.append(body[:length])
        body = body[length + 2 :]
    return chunks
