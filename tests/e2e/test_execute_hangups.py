"""Clients that hang up on a real server, and what is left of their executions."""

import threading
from asyncio import all_tasks
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Annotated

import anyio
import anyio.lowlevel
import pytest
from fastapi import Depends

from fastapi_carmy import AgentContext, AgentRouter
from fastapi_carmy.stores.base import Key
from tests.support.calls import app_of
from tests.support.gate import Gate
from tests.support.wire import Served, call, serve_here


class Tally:
    """How many dependencies are open."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    async def session(self) -> AsyncIterator[str]:
        self.opened += 1
        try:
            yield "session"
        finally:
            await anyio.lowlevel.checkpoint()
            self.closed += 1

    def connection(self) -> Iterator[str]:
        self.opened += 1
        try:
            yield "connection"
        finally:
            self.closed += 1


@pytest.mark.spec("carmy/1 7.10")
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_the_tool_sees_a_hang_up_within_a_second(stream: bool) -> None:
    agent = AgentRouter()
    tally = Tally()
    begun, over = anyio.Event(), anyio.Event()
    seen: list[object] = []

    @agent.tool(effect="write")
    async def work(context: AgentContext, needed: Annotated[str, Depends(tally.session)]) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            seen.append((context.is_cancelled, tally.closed))
            over.set()

    async with serve_here(app_of(agent)) as served:
        async with call(served, "work", stream=stream) as wire:
            if stream:
                await wire.until(b"tool.started")
            with anyio.fail_after(5):
                await begun.wait()
            await wire.hang_up()
            with anyio.fail_after(1):
                await over.wait()
        await agent.aclose()

    assert seen == [(True, 0)]
    assert (tally.opened, tally.closed) == (1, 1)


@pytest.mark.spec("carmy/1 4.2")
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("effect", ["read", "write"])
async def test_a_retry_after_a_hang_up_runs_only_what_is_safe_to_repeat(
    effect: str, stream: bool
) -> None:
    agent = AgentRouter()
    begun, over = anyio.Event(), anyio.Event()
    runs: list[int] = []

    @agent.tool(effect=effect)
    async def work() -> str:
        runs.append(1)
        if len(runs) > 1:
            return "done"
        begun.set()
        try:
            await anyio.sleep(60)
        finally:
            over.set()
        return "late"

    async with serve_here(app_of(agent)) as served:
        async with call(served, "work", request_id="r", stream=stream) as wire:
            with anyio.fail_after(5):
                await begun.wait()
                await wire.hang_up()
                await over.wait()
        await agent.aclose()
        async with call(served, "work", request_id="r", stream=stream) as wire:
            retry = (await wire.answer()).result

    if effect == "read":
        assert retry["data"] == "done"
    else:
        assert retry["error"]["code"] == "EXECUTION_UNCERTAIN"
        assert retry["error"]["details"]["state"] == "abandoned"
    assert len(runs) == (2 if effect == "read" else 1)


@pytest.mark.spec("carmy/1 4.3")
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_hang_up_right_after_the_call_leaves_nothing_behind(stream: bool) -> None:
    agent = AgentRouter()
    tally = Tally()

    @agent.tool(effect="read")
    async def work(needed: Annotated[str, Depends(tally.session)]) -> None:
        await anyio.lowlevel.checkpoint()

    async with serve_here(app_of(agent)) as served:
        for _ in range(20):
            async with call(served, "work", stream=stream) as wire:
                wire.hang_up_now()
        async with call(served, "work") as wire:
            assert (await wire.answer()).status == 200
        await agent.aclose()

    assert tally.opened == tally.closed


@pytest.mark.spec("carmy/1 4.3")
async def test_a_sync_tool_is_told_of_a_hang_up() -> None:
    agent = AgentRouter()
    told: list[bool] = []
    tally = Tally()

    with Gate() as gate:

        @agent.tool(effect="write")
        def work(context: AgentContext, needed: Annotated[str, Depends(tally.connection)]) -> None:
            gate.pass_through()
            waited = threading.Event()
            while not context.is_cancelled and not waited.wait(0.001):
                pass
            told.append(context.is_cancelled)

        async with serve_here(app_of(agent)) as served:
            async with call(served, "work", stream=True) as wire:
                await gate.entered()
                await wire.hang_up()
                gate.open()
            await agent.aclose()

    assert told == [True]
    assert (tally.opened, tally.closed) == (1, 1)


@pytest.mark.spec("carmy/1 4.3")
async def test_a_stopping_server_ends_open_streams_in_order() -> None:
    agent = AgentRouter()
    tally = Tally()

    @agent.tool(effect="write")
    async def work(needed: Annotated[str, Depends(tally.session)]) -> None:
        await anyio.sleep_forever()

    async with AsyncExitStack() as client, AsyncExitStack() as server:
        served = await server.enter_async_context(
            serve_here(app_of(agent), timeout_graceful_shutdown=1)
        )
        wire = await client.enter_async_context(call(served, "work", request_id="r", stream=True))
        await wire.until(b"tool.started")
        await server.aclose()

    entry = await agent.store.lookup(Key(None, None, "r"))
    assert (tally.opened, tally.closed) == (1, 1)
    assert entry is not None
    assert entry.state == "abandoned"


def busy_router(tally: Tally, begun: Mapping[int, anyio.Event]) -> AgentRouter:
    agent = AgentRouter()

    @agent.tool(effect="write", parallel_safe=True)
    async def in_task(
        x: int, context: AgentContext, needed: Annotated[str, Depends(tally.session)]
    ) -> int:
        context.progress(x)
        return x

    @agent.tool(effect="read", parallel_safe=True)
    def in_thread(x: int, needed: Annotated[str, Depends(tally.connection)]) -> int:
        return x

    @agent.tool(effect="read", parallel_safe=True)
    async def endless(x: int, needed: Annotated[str, Depends(tally.session)]) -> None:
        begun[x].set()
        await anyio.sleep_forever()

    return agent


async def stay(served: Served, number: int) -> None:
    name = "in_thread" if number % 10 == 0 else "in_task"
    stream = number % 3 == 0
    async with call(served, name, {"x": number}, request_id=f"r{number}", stream=stream) as wire:
        assert (await wire.answer()).result["data"] == number


async def leave(served: Served, number: int, begun: anyio.Event) -> None:
    stream = number % 2 == 0
    request_id = f"h{number}"
    async with call(served, "endless", {"x": number}, request_id=request_id, stream=stream) as wire:
        with anyio.fail_after(10):
            await begun.wait()
        await wire.hang_up()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that tells nobody when it happens, such as a connection's end."""
    with anyio.fail_after(5):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def test_1000_executions_and_200_hang_ups_leave_nothing_behind() -> None:
    tally = Tally()
    begun = {number: anyio.Event() for number in range(200)}
    agent = busy_router(tally, begun)

    async with serve_here(app_of(agent), backlog=512) as served:
        for number in range(2):
            await stay(served, number)
        tasks_before, threads_before = len(all_tasks()), threading.active_count()

        for start in range(0, 200, 10):
            async with anyio.create_task_group() as tasks:
                for number in range(5 * start, 5 * start + 50):
                    tasks.start_soon(stay, served, 10 + number)
                for number in range(start, start + 10):
                    tasks.start_soon(leave, served, number, begun[number])

        await served.noticed_hang_up()
        await until(lambda: tally.closed == 1_202)
        await until(lambda: len(all_tasks()) <= tasks_before)
        threads = threading.active_count()

    assert tally.opened == tally.closed == 1_202
    # The limiter's threads are kept for the next call.
    assert threads <= threads_before + 40
    keys = [Key(None, None, f"r{number}") for number in range(10, 1_010)]
    entries = [await agent.store.lookup(key) for key in keys]
    assert {entry and entry.state for entry in entries} == {"finished"}
    assert [await agent.store.lookup(Key(None, None, f"h{n}")) for n in begun] == [None] * 200
