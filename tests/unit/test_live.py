"""What lives in a loop: who is looked at while it takes its time, told to stop, let go of."""

import asyncio
import gc
import logging
import os
from typing import Any
from weakref import ref

import anyio
import pytest
from starlette.types import Message, Scope

from fastapi_carmy import AgentRouter
from tests.support.calls import app_of
from tests.support.tools import scope_of

BODY = b'{"tool":"work","arguments":{}}'


def working(done: anyio.Event) -> AgentRouter:
    agent = AgentRouter(timeout_seconds=0.2)

    @agent.tool(name="work", effect="none", parallel_safe=True)
    async def work_until() -> str:
        await done.wait()
        return "done"

    return agent


class Client:
    """Sends its request and stays; tells how often it was asked for more."""

    def __init__(self) -> None:
        self.asked = 0
        self.body = b""
        self.is_watched = anyio.Event()

    async def receive(self) -> Message:
        self.asked += 1

        if self.asked > 1:
            self.is_watched.set()
            await anyio.sleep_forever()

        return {"type": "http.request", "body": BODY}

    async def send(self, message: Message) -> None:
        self.body += message.get("body", b"")


class OneRefusal:
    """Makes a loop's tasks, but for the first, for which it raises."""

    def __init__(self, error: BaseException) -> None:
        self.refused: list[Any] = []
        self._error = error

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
        if not self.refused:
            self.refused.append(work)
            raise self._error

        return asyncio.Task(work, loop=loop, **options)


def request() -> Scope:
    return scope_of({"content-type": "application/json"})


async def test_a_quick_call_never_asks_whether_its_client_is_there() -> None:
    done = anyio.Event()
    done.set()
    client = Client()

    await app_of(working(done))(request(), client.receive, client.send)

    assert b'"done"' in client.body
    assert client.asked == 1


async def test_a_call_that_takes_its_time_asks_once_and_keeps_its_deadline() -> None:
    client = Client()

    with anyio.fail_after(5):
        await app_of(working(anyio.Event()))(request(), client.receive, client.send)

    assert b'"TIMEOUT"' in client.body
    assert client.asked == 2


async def test_calls_that_came_later_are_looked_at_as_well() -> None:
    done = anyio.Event()
    app = app_of(working(done))
    first, second = Client(), Client()

    async def come_later(tasks: anyio.abc.TaskGroup) -> None:
        # The first is looked after by itself by now.
        await first.is_watched.wait()
        tasks.start_soon(app, request(), second.receive, second.send)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app, request(), first.receive, first.send)
            tasks.start_soon(come_later, tasks)

    assert b'"TIMEOUT"' in first.body
    assert b'"TIMEOUT"' in second.body
    assert second.asked == 2


async def test_a_call_that_cannot_be_watched_leaves_the_others_their_deadlines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = app_of(working(anyio.Event()))
    first, second = Client(), Client()
    loop = asyncio.get_running_loop()
    factory = OneRefusal(RuntimeError("no task"))

    with anyio.fail_after(5), caplog.at_level(logging.ERROR):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app, request(), first.receive, first.send)
            tasks.start_soon(app, request(), second.receive, second.send)
            await anyio.wait_all_tasks_blocked()
            loop.set_task_factory(factory)

    loop.set_task_factory(None)
    factory.refused[0].close()
    assert b'"TIMEOUT"' in first.body
    assert b'"TIMEOUT"' in second.body
    assert "could not be watched" in caplog.text


def test_calls_keep_their_deadlines_in_a_loop_that_was_interrupted_and_goes_on() -> None:
    app = app_of(working(anyio.Event()))
    first, second = Client(), Client()
    loop = asyncio.new_event_loop()
    factory = OneRefusal(KeyboardInterrupt())
    tasks = [loop.create_task(app(request(), first.receive, first.send))]
    loop.set_task_factory(factory)

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(tasks[0])

    tasks.append(loop.create_task(app(request(), second.receive, second.send)))
    loop.run_until_complete(asyncio.wait(tasks, timeout=5))
    loop.close()
    factory.refused[0].close()

    assert b'"TIMEOUT"' in first.body
    assert b'"TIMEOUT"' in second.body


async def test_what_begins_while_the_router_stops_is_told_to_stop_as_well() -> None:
    agent = AgentRouter(stop_seconds=5)
    is_told, may_leave = anyio.Event(), anyio.Event()
    statuses: list[str] = []

    @agent.tool(name="work", effect="none", parallel_safe=True)
    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            is_told.set()
            await may_leave.wait()

    async def call() -> None:
        statuses.append((await agent.execute("work", {})).status)

    with anyio.fail_after(4):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(agent.aclose)
            await is_told.wait()
            await call()
            may_leave.set()

    assert statuses == ["cancelled", "cancelled"]


def test_a_loop_that_ended_is_let_go_of() -> None:
    loops: list[ref[asyncio.AbstractEventLoop]] = []
    agent = AgentRouter()

    @agent.tool(name="work", effect="none")
    async def work() -> None: ...

    async def run() -> None:
        await agent.execute("work", {})
        loops.append(ref(asyncio.get_running_loop()))

    for _ in range(3):
        anyio.run(run)
        gc.collect()

    # The last one is forgotten when the next one needs its place.
    assert [loop() is None for loop in loops[:2]] == [True, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_gives_other_ids_than_its_parent() -> None:
    agent = AgentRouter()

    @agent.tool(name="work", effect="none")
    async def work() -> None: ...

    async def ids() -> list[str]:
        return [(await agent.execute("work", {})).execution_id for _ in range(3)]

    before = anyio.run(ids)
    reader, writer = os.pipe()
    child = os.fork()

    if child == 0:
        os.write(writer, " ".join(anyio.run(ids)).encode())
        os._exit(0)

    os.waitpid(child, 0)
    theirs = os.read(reader, 4096).decode().split()

    assert len({*before, *theirs, *anyio.run(ids)}) == 9
