from collections.abc import AsyncIterator
from typing import Any

from fastapi_carmy.agui import RunContext


async def model(prompt: str) -> AsyncIterator[str]:
    for word in ("You", " said: ", prompt):
        yield word


async def parrot(run: RunContext[Any]) -> None:
    async with run.message() as message:
        async for text in model(run.last_user_text or ""):
            await message.delta(text)
