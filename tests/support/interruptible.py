"""Requests that are cut from outside: by a server that stops, or by a time limit of the host."""

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from fastapi_carmy.cancellation import Interrupted, Task, start_task

__all__ = ("Interruptible", "Kind")

Kind = Literal["task", "scope"]
"""`task`: cancelled once, as uvicorn does; `scope`: at each `await`, as a cancel scope does."""


class Interruptible:
    """An application whose requests a test can cut, as a server or a middleware does."""

    def __init__(self, app: ASGIApp, kind: Kind) -> None:
        self.interrupt: Callable[[], object] = lambda: None
        self.ended = anyio.Event()
        self._app = app
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._kind == "task":
                await self._in_task(scope, receive, send)
            else:
                with anyio.CancelScope() as cut:
                    self.interrupt = cut.cancel
                    await self._app(scope, receive, send)
        finally:
            self.ended.set()

    async def _in_task(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def run() -> None:
            await self._app(scope, receive, send)

        task: Task[object] = start_task(run())
        self.interrupt = task.cancel
        with suppress(Interrupted):
            await task
