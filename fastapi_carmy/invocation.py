"""How a generator is run: iterated to its end, each item reported."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import cast

from anyio.lowlevel import checkpoint

from fastapi_carmy.context import AgentContext

__all__ = ("call_async_generator", "iterate")

_ITEMS_A_TURN = 100


async def call_async_generator(
    call: Callable[[], object], report: Callable[[object], None]
) -> list[object]:
    """Iterate an async generator; each item is reported when it comes."""
    items: list[object] = []
    generator = cast("AsyncGenerator[object] | AsyncIterator[object]", call())

    try:
        async for item in generator:
            report(item)
            items.append(item)

            if len(items) % _ITEMS_A_TURN == 0:
                # One that never awaits would hold the loop, its own deadline included.
                await checkpoint()
    finally:
        if isinstance(generator, AsyncGenerator):
            await generator.aclose()

    return items


def iterate(
    call: Callable[[], object], report: Callable[[object], None], context: AgentContext
) -> list[object]:
    """Iterate a sync generator, in its thread; an execution that is told to stop ends it."""
    items: list[object] = []
    generator = cast("Iterator[object]", call())

    for item in generator:
        report(item)
        items.append(item)

        if context.is_cancelled:
            close = getattr(generator, "close", None)

            if close is not None:
                close()

            break

    return items
