"""A streaming ASGI client: drives an application in this process, message by message.

`TestClient` and `httpx.ASGITransport` collect a whole answer before they hand it over;
here a test reads each chunk as it is sent, and hangs up when it likes.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from pydantic_core import from_json, to_json
from starlette.types import ASGIApp, Message, Scope

from tests.support.sse import Frame, FrameReader

__all__ = ("Exchange", "connect", "execute", "lifespan")

LIMIT_SECONDS = 5.0


class Exchange:
    """One request in flight. Nothing is buffered: an application waits for its reader."""

    def __init__(self, app: ASGIApp, scope: Scope, chunks: Iterable[bytes]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body_messages_read = 0
        """How many pieces of the request's body the application has taken."""
        self.finished = anyio.Event()
        """Set when the application has returned or raised."""
        self._app = app
        self._scope = scope
        self._chunks = iter(chunks)
        self._request_ended = False
        self._answer_ended = False
        self._gone = anyio.Event()
        self._reader = FrameReader()
        self._frames: list[Frame] = []
        self._send: MemoryObjectSendStream[Message]
        self._receive: MemoryObjectReceiveStream[Message]
        self._send, self._receive = anyio.create_memory_object_stream[Message]()

    async def run(self) -> None:
        """Run the application to its end; what it raises comes out of `connect`."""
        try:
            await self._app(self._scope, self._next_message, self._take)
        finally:
            self._send.close()
            self.finished.set()

    def hang_up(self) -> None:
        """Close the connection, as a client that loses interest does."""
        self._gone.set()
        self._receive.close()

    async def started(self) -> "Exchange":
        """Wait for the status line and the headers."""
        with anyio.fail_after(LIMIT_SECONDS):
            message = await self._receive.receive()
        assert message["type"] == "http.response.start", message
        self.status = message["status"]
        self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        return self

    async def chunk(self) -> bytes:
        """Wait for the next piece of the body; `b""` after the last one."""
        if not self.status:
            await self.started()

        # An application may go on after its answer; nobody waits for that here.
        if self._answer_ended:
            return b""

        with anyio.fail_after(LIMIT_SECONDS):
            try:
                message = await self._receive.receive()
            except anyio.EndOfStream:
                return b""
        assert message["type"] == "http.response.body", message
        body: bytes = message.get("body", b"")
        self._answer_ended = not message.get("more_body")
        if body or not message.get("more_body"):
            return body

        return await self.chunk()

    async def read(self) -> bytes:
        """Wait for the whole body."""
        body = b""
        while chunk := await self.chunk():
            body += chunk
        return body

    async def json(self) -> Any:
        """Wait for the whole body, parsed."""
        return from_json(await self.read())

    async def frame(self) -> Frame:
        """Wait for the next Server-Sent Event or comment.

        Raises:
            anyio.EndOfStream: If the stream is over.
        """
        while not self._frames:
            chunk = await self.chunk()
            if not chunk:
                raise anyio.EndOfStream
            self._frames += self._reader.feed(chunk)

        return self._frames.pop(0)

    async def frames(self) -> list[Frame]:
        """Wait for all frames until the end of the stream."""
        frames: list[Frame] = []
        while True:
            try:
                frames.append(await self.frame())
            except anyio.EndOfStream:
                return frames

    async def _next_message(self) -> Message:
        if self._gone.is_set():
            return {"type": "http.disconnect"}

        if not self._request_ended:
            self.body_messages_read += 1
            chunk = next(self._chunks, None)
            self._request_ended = chunk is None
            return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _take(self, message: Message) -> None:
        if self._gone.is_set():
            return

        try:
            await self._send.send(message)
        except anyio.BrokenResourceError:
            # As on a real server: what is sent after the client has gone is dropped.
            if not self._gone.is_set():
                raise


@asynccontextmanager
async def connect(
    app: ASGIApp,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | Iterable[bytes] = b"",
    state: dict[str, Any] | None = None,
    root_path: str = "",
) -> AsyncIterator[Exchange]:
    """Send one request to `app`, and hang up on leaving if it is still being answered.

    Args:
        body: The whole request body, or its pieces as they arrive.
        state: What the application's lifespan left behind, as `lifespan` yields it.
    """
    path_only, _, query = path.partition("?")
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path_only,
        "raw_path": path_only.encode(),
        "query_string": query.encode(),
        "root_path": root_path,
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in {"host": "testserver", **(headers or {})}.items()
        ],
        "client": ("testclient", 50000),
        "server": ("testserver", 80),
    }
    if state is not None:
        scope["state"] = dict(state)

    chunks = [body] if isinstance(body, bytes) else body
    exchange = Exchange(app, scope, chunks)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exchange.run)
        try:
            yield exchange
        finally:
            exchange.hang_up()
            with anyio.fail_after(LIMIT_SECONDS, shield=True):
                await exchange.finished.wait()


@asynccontextmanager
async def execute(
    app: ASGIApp,
    tool: str,
    arguments: object = None,
    *,
    request_id: str | None = None,
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
    path: str = "/agent/execute",
    state: dict[str, Any] | None = None,
) -> AsyncIterator[Exchange]:
    """Send one call to the router in `app`."""
    call: dict[str, object] = {"tool": tool, "arguments": {} if arguments is None else arguments}
    if request_id is not None:
        call["request_id"] = request_id
    accept = "text/event-stream" if stream else "application/json"
    sent = {"content-type": "application/json", "accept": accept, **(headers or {})}
    async with connect(
        app, path, method="POST", headers=sent, body=to_json(call), state=state
    ) as exchange:
        yield exchange


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[dict[str, Any]]:
    """Start `app` and stop it again; yields the state that its requests are given."""
    state: dict[str, Any] = {}
    to_app, app_receives = anyio.create_memory_object_stream[Message](1)
    app_sends, from_app = anyio.create_memory_object_stream[Message](1)
    scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}

    async def phase(name: str) -> None:
        await to_app.send({"type": f"lifespan.{name}"})
        with anyio.fail_after(LIMIT_SECONDS):
            answer = await from_app.receive()
        assert answer["type"] == f"lifespan.{name}.complete", answer

    async def run() -> None:
        await app(scope, app_receives.receive, app_sends.send)

    async with to_app, app_receives, app_sends, from_app, anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await phase("startup")
        yield state
        await phase("shutdown")
