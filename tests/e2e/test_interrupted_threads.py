"""Threads can't be stopped: what is cut around them waits, or leaves them in order.

Source: carmy/1, sections 4.1 and 4.2.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import anyio
import pytest
from anyio.to_thread import run_sync
from fastapi import Depends
from starlette.types import Message, Receive, Scope, Send

from fastapi_carmy import AgentContext, AgentRouter
from fastapi_carmy.cancellation import Interrupted
from fastapi_carmy.stores import Key
from tests.support.asgi import execute
from tests.support.calls import answer, app_of
from tests.support.gates import Audit, Gate, reached
from tests.support.interruptible import Interruptible, Kind

pytestmark = pytest.mark.spec("carmy/1 4.1")

LIMIT_SECONDS = 5.0

by_task_and_by_scope = pytest.mark.parametrize("kind", ["task", "scope"])


class Engraver:
    """A router with one tool in a thread, which waits for the test on its first run."""

    def __init__(self, *, timeout_seconds: float = 30.0, effect: str = "write") -> None:
        self.in_thread = threading.Event()
        self.may_end = threading.Event()
        self.told = threading.Event()
        self.notes: list[str] = []
        self.audit = Audit()
        self.agent = AgentRouter(timeout_seconds=timeout_seconds, audit=[self.audit])
        self.app = app_of(self.agent)

        @self.agent.tool(effect=effect)
        def engrave(context: AgentContext, session: Annotated[None, Depends(self.session)]) -> str:
            if self.in_thread.is_set():
                self.notes.append("second run")
                return "again"
            self.in_thread.set()
            # Bounded, so that a test that fails ends all the same.
            for _ in range(300):
                if self.may_end.wait(0.01):
                    break
                if context.is_cancelled:
                    self.told.set()
            self.notes.append("thread ended")
            return "late"

    def session(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.notes.append("rolled back")
            raise
        else:
            self.notes.append("committed")

    async def begun(self) -> None:
        """Wait until the thread is in the tool."""
        assert await run_sync(self.in_thread.wait, LIMIT_SECONDS)

    async def state(self) -> str | None:
        """Return the state of the call `r`."""
        entry = await self.agent.store.lookup(Key(None, None, "r"))
        return None if entry is None else entry.state


@by_task_and_by_scope
@pytest.mark.parametrize(("effect", "state"), [("write", "abandoned"), ("read", None)])
async def test_a_thread_that_is_cut_keeps_its_turn_and_its_dependencies_until_it_ends(
    effect: str, state: str | None, kind: Kind
) -> None:
    engraver = Engraver(effect=effect)
    app = Interruptible(engraver.app, kind)

    async with execute(app, "engrave", request_id="r"):
        await engraver.begun()
        app.interrupt()
        with anyio.fail_after(LIMIT_SECONDS):
            while await engraver.state() == "running":
                await anyio.lowlevel.checkpoint()
        assert await engraver.state() == state
        async with execute(engraver.app, "engrave", stream=True) as next_:
            # It waits for its turn.
            frames = [await next_.frame()]
            assert engraver.notes == []
            engraver.may_end.set()
            frames += await next_.frames()
        await reached(app.ended)

    assert frames[-1].json()["data"] == "again"
    assert engraver.notes == ["thread ended", "rolled back", "second run", "committed"]


@by_task_and_by_scope
async def test_a_thread_whose_client_hung_up_is_left_in_order_when_it_is_cut(kind: Kind) -> None:
    engraver = Engraver()
    app = Interruptible(engraver.app, kind)

    async with execute(app, "engrave", request_id="r") as exchange:
        await engraver.begun()
        exchange.hang_up()
        assert await run_sync(engraver.told.wait, LIMIT_SECONDS)
        app.interrupt()
        with anyio.fail_after(LIMIT_SECONDS):
            while await engraver.state() == "running":
                await anyio.lowlevel.checkpoint()
        engraver.may_end.set()
        await reached(app.ended)

    assert await engraver.state() == "abandoned"
    assert engraver.notes == ["thread ended", "rolled back"]
    assert (await answer(engraver.app, "engrave"))["data"] == "again"


class Unreachable:
    """A server that says it can't send the answer, as servers may since ASGI 2.4."""

    def __init__(self, engraver: Engraver) -> None:
        self._app = engraver.app
        self.ended = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def fail(message: Message) -> None:
            if b'"status":' in message.get("body", b""):
                raise OSError("The connection is gone.")

        try:
            with suppress(OSError):
                await self._app(scope, receive, fail)
        finally:
            self.ended.set()


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_an_answer_that_nobody_takes_leaves_nothing_open(stream: bool) -> None:
    engraver = Engraver(timeout_seconds=0.05)
    app = Unreachable(engraver)

    async with execute(app, "engrave", request_id="r", stream=stream):
        await engraver.begun()
        await engraver.audit.until(1)
        engraver.may_end.set()
        await reached(app.ended)
        await engraver.agent.aclose()

    assert engraver.notes == ["thread ended", "rolled back"]
    assert (await answer(engraver.app, "engrave"))["data"] == "again"


@by_task_and_by_scope
async def test_a_thread_that_outlived_its_answer_keeps_its_turn_when_it_is_cut(
    kind: Kind,
) -> None:
    engraver = Engraver(timeout_seconds=0.05)
    app = Interruptible(engraver.app, kind)

    async with execute(app, "engrave", request_id="r") as exchange:
        found = await exchange.json()
        app.interrupt()
        for _ in range(5):
            # Past the sending of the answer, into the wait for the thread.
            await anyio.lowlevel.checkpoint()
        assert engraver.notes == []
        engraver.may_end.set()
        await reached(app.ended)

    assert found["error"]["code"] == "TIMEOUT"
    assert await engraver.state() == "finished"
    assert engraver.notes == ["thread ended", "rolled back"]


@pytest.mark.parametrize("is_answered", [False, True], ids=["unanswered", "answered"])
async def test_a_thread_that_nobody_waits_for_any_more_keeps_its_turn_until_it_ends(
    is_answered: bool,
) -> None:
    in_thread, may_end = threading.Event(), threading.Event()
    agent = AgentRouter(timeout_seconds=0.5)

    @agent.tool(effect="write")
    def engrave() -> str:
        if in_thread.is_set():
            return "again"
        in_thread.set()
        may_end.wait(LIMIT_SECONDS)
        return "late"

    app = app_of(agent)
    interruptible = Interruptible(app, "task")

    async with execute(interruptible, "engrave") as exchange:
        assert await run_sync(in_thread.wait, LIMIT_SECONDS)
        if is_answered:
            await exchange.json()
        for _ in ("the tool", "the wait for its thread", "the next one, which is the last"):
            interruptible.interrupt()
            for _ in range(5):
                # Past what is settled first.
                await anyio.lowlevel.checkpoint()
        await reached(interruptible.ended)

    meanwhile = await answer(app, "engrave")
    may_end.set()
    afterwards = await answer(app, "engrave")
    with anyio.fail_after(LIMIT_SECONDS):
        await agent.aclose()

    assert meanwhile["error"]["code"] == "BUSY"
    assert afterwards["data"] == "again"


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_dependency_that_swallows_its_cancellation_does_not_start_the_tool(
    stream: bool,
) -> None:
    gate, audit = Gate(), Audit()
    agent = AgentRouter(audit=[audit])
    runs: list[int] = []

    async def stubborn() -> None:
        with suppress(Interrupted):
            await gate()

    @agent.tool(effect="write")
    async def work(stubborn: Annotated[None, Depends(stubborn)]) -> None:
        runs.append(1)

    app = app_of(agent)
    async with execute(app, "work", request_id="r", stream=stream) as exchange:
        if stream:
            await exchange.frame()
        await reached(gate.entered)
        exchange.hang_up()
        record = await audit.until(1)

    assert record.error_code == "CANCELLED"
    assert runs == []
    assert await agent.store.lookup(Key(None, None, "r")) is None


async def test_loops_that_share_a_router_do_not_wait_for_each_others_threads() -> None:
    agent = AgentRouter(max_threads=1)
    in_thread, may_end = threading.Event(), threading.Event()

    def engrave(session: Annotated[None, Depends(lambda: None)], *, waits: bool) -> str:
        if waits:
            in_thread.set()
            assert may_end.wait(LIMIT_SECONDS)
        return "done"

    agent.add_tool(engrave, effect="read", parallel_safe=True)

    def call_elsewhere() -> object:
        assert in_thread.wait(LIMIT_SECONDS)
        result = anyio.run(lambda: agent.execute("engrave", {"waits": False}))
        may_end.set()
        return result.data

    async def call_here() -> None:
        answers.append((await agent.execute("engrave", {"waits": True})).data)

    answers: list[object] = []

    with anyio.fail_after(LIMIT_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call_here)
            answers.append(await run_sync(call_elsewhere))

    assert answers == ["done", "done"]
