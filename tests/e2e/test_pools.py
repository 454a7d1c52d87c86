"""A connection pool of one, and fifty clients that hang up. Source: carmy/1, section 4.3."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import anyio
import pytest
from fastapi import Depends
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from fastapi_carmy import AgentContext, AgentRouter
from tests.support.calls import app_of
from tests.support.gates import Audit
from tests.support.wire import LIMIT_SECONDS, Served, call, serve_here

pytestmark = pytest.mark.spec("carmy/1 4.3")

MANY = 50

as_json_and_as_stream = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])


async def hang_up_many(
    served: Served, audit: Audit, holding: anyio.Event | None, *, stream: bool
) -> None:
    """Make many calls at once, and hang up on all as soon as one holds the pool."""
    async with AsyncExitStack() as stack:
        for number in range(MANY):
            await stack.enter_async_context(
                call(served, "work", {"wait": True}, request_id=str(number), stream=stream)
            )
        if holding is not None:
            with anyio.fail_after(LIMIT_SECONDS):
                await holding.wait()
    await audit.until(MANY)


async def works(served: Served) -> object:
    async with call(served, "work", {"wait": False}) as wire:
        return (await wire.answer()).result["data"]


@as_json_and_as_stream
async def test_a_pool_of_one_works_after_many_hung_up_at_once(stream: bool) -> None:
    audit = Audit()
    pool = anyio.Semaphore(1)
    holding = anyio.Event()

    async def connection() -> AsyncIterator[None]:
        async with pool:
            yield

    agent = AgentRouter(audit=[audit])

    @agent.tool(effect="read", parallel_safe=True)
    async def work(wait: bool, connection: Annotated[None, Depends(connection)]) -> str:
        holding.set()
        if wait:
            await anyio.sleep_forever()
        return "done"

    async with serve_here(app_of(agent), timeout_graceful_shutdown=5) as served:
        await hang_up_many(served, audit, holding, stream=stream)
        assert await works(served) == "done"

    assert pool.value == 1


@as_json_and_as_stream
async def test_a_pool_of_threads_works_after_many_hung_up_at_once(stream: bool) -> None:
    audit = Audit()
    pool = threading.Semaphore(1)
    holding = anyio.Event()

    def connection() -> Iterator[None]:
        # Bounded, as each pool is: a thread can't be stopped while it waits.
        if not pool.acquire(timeout=0.05):
            raise TimeoutError
        try:
            yield
        finally:
            pool.release()

    agent = AgentRouter(audit=[audit], max_threads=4)

    @agent.tool(effect="read", parallel_safe=True)
    async def work(
        wait: bool, context: AgentContext, connection: Annotated[None, Depends(connection)]
    ) -> str:
        holding.set()
        if wait:
            await anyio.sleep_forever()
        return "done"

    async with serve_here(app_of(agent), timeout_graceful_shutdown=5) as served:
        await hang_up_many(served, audit, holding, stream=stream)
        with anyio.fail_after(LIMIT_SECONDS):
            while (await works_or_fails(served)) != "done":
                # The last threads still wait for the pool.
                await anyio.lowlevel.checkpoint()

    assert pool.acquire(blocking=False)


async def works_or_fails(served: Served) -> object:
    async with call(served, "work", {"wait": False}) as wire:
        return (await wire.answer()).result.get("data")


@as_json_and_as_stream
@pytest.mark.parametrize("at_once", [False, True], ids=["one-by-one", "at-once"])
async def test_a_database_pool_of_one_works_after_many_were_cut(
    at_once: bool, stream: bool, tmp_path: Path
) -> None:
    audit = Audit()
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path / 'pool.db'}", pool_size=1, max_overflow=0
    )
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE bookings (id INTEGER PRIMARY KEY)"))

    async def transaction() -> AsyncIterator[AsyncConnection]:
        async with engine.begin() as connection:
            yield connection

    agent = AgentRouter(audit=[audit])
    holding = [anyio.Event()]

    @agent.tool(effect="write", parallel_safe=True)
    async def work(wait: bool, connection: Annotated[AsyncConnection, Depends(transaction)]) -> int:
        await connection.execute(text("INSERT INTO bookings DEFAULT VALUES"))
        holding[0].set()
        if wait:
            await anyio.sleep_forever()
        count: int = await connection.scalar(text("SELECT count(*) FROM bookings"))
        return count

    async with serve_here(app_of(agent), timeout_graceful_shutdown=5) as served:
        if at_once:
            await hang_up_many(served, audit, holding[0], stream=stream)
        else:
            for number in range(MANY):
                holding[0] = anyio.Event()
                async with call(
                    served, "work", {"wait": True}, request_id=str(number), stream=stream
                ):
                    with anyio.fail_after(LIMIT_SECONDS):
                        await holding[0].wait()
                await audit.until(number + 1)
        # Nothing of those that were cut was committed.
        assert await works(served) == 1

    assert {record.status for record in audit.records[:MANY]} == {"cancelled"}
    await engine.dispose()
