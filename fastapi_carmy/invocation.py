"""How a tool's function is run: awaited, iterated, or in a thread."""

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import cast

import anyio
from anyio.to_thread import run_sync

from fastapi_carmy.cancellation import Task, join, start_task
from fastapi_carmy.context import AgentContext
from fastapi_carmy.tool import ToolKind

__all__ = ("ThreadCall", "call_async", "call_async_generator", "in_thread")


async def call_async(call: Callable[[], object]) -> object:
    """Await an async tool."""
    return await cast("Awaitable[object]", call())


async def call_async_generator(call: Callable[[], object], context: AgentContext) -> list[object]:
    """Iterate an async generator; each item is reported when it comes."""
    items: list[object] = []
    generator = cast("AsyncGenerator[object] | AsyncIterator[object]", call())

    try:
        async for item in generator:
            context.partial(item)
            items.append(item)
    finally:
        if isinstance(generator, AsyncGenerator):
            await generator.aclose()

    return items


def in_thread(kind: ToolKind, call: Callable[[], object], context: AgentContext) -> "ThreadCall":
    """Prepare a sync tool; a generator is iterated in its thread."""
    if kind is ToolKind.THREAD_GENERATOR:
        return ThreadCall(lambda: _iterate(cast("Iterator[object]", call()), context))

    return ThreadCall(call)


class ThreadCall:
    """A call in a thread, which can be waited for but not stopped."""

    __slots__ = ("_call", "_claim", "_task", "begun")

    def __init__(self, call: Callable[[], object]) -> None:
        """Prepare `call`; nothing runs yet."""
        self._call = call
        self._claim = threading.Lock()
        self._task: Task[object] | None = None
        self.begun = False
        """Whether the thread has entered the function."""

    async def result(self, limiter: anyio.CapacityLimiter) -> object:
        """Run the function in a thread and return what it returns.

        Interrupting this leaves the thread running: see `withdraw` and `ended`.
        """
        self._task = start_task(run_sync(self._run, limiter=limiter))
        result = await join(self._task)
        return await result if isawaitable(result) else result

    def withdraw(self) -> bool:
        """Keep the function from running; tell whether it had not begun."""
        if not self._claim.acquire(blocking=False):
            return False

        if self._task is not None:
            self._task.cancel()

        return True

    async def ended(self) -> BaseException | None:
        """Wait for the thread, however it ends; return what it raised."""
        if self._task is None:
            return None

        try:
            await join(self._task)
        except Exception as error:  # noqa: BLE001
            # Nobody waits for this outcome any more; the runtime logs it.
            return error

        return None

    def _run(self) -> object:
        # Taken once, by the thread or by `withdraw`: never both.
        if not self._claim.acquire(blocking=False):
            return None

        self.begun = True
        return self._call()


def _iterate(generator: Iterator[object], context: AgentContext) -> list[object]:
    items: list[object] = []

    for item in generator:
        context.partial(item)
        items.append(item)

        if context.is_cancelled:
            close = getattr(generator, "close", None)

            if close is not None:
                close()

            break

    return items
