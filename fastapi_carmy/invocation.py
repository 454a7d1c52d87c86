"""How a generator is run: iterated to its end, each item reported."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import cast

from fastapi_carmy.context import AgentContext

__all__ = ("call_async_generator", "iterate")


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
