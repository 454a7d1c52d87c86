"""How a tool's function is run: awaited, iterated, or in a thread."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import cast

from fastapi_carmy.context import AgentContext
from fastapi_carmy.threads import ThreadCall
from fastapi_carmy.tool import ToolKind

__all__ = ("call_async", "call_async_generator", "in_thread")


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


def in_thread(kind: ToolKind, call: Callable[[], object], context: AgentContext) -> ThreadCall:
    """Prepare a sync tool; a generator is iterated in its thread."""
    if kind is ToolKind.THREAD_GENERATOR:
        return ThreadCall(lambda: _iterate(cast("Iterator[object]", call()), context))

    return ThreadCall(call)


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
