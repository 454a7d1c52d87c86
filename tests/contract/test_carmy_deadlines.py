"""Deadlines, turns and threads. Source: carmy/1, section 4.1, steps 8 and 9."""

import threading
from asyncio import CancelledError, current_task, get_running_loop
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import anyio
import pytest
from fastapi import Depends
from fastapi.testclient import TestClient

from fastapi_carmy import AgentContext, AgentRouter
from fastapi_carmy.policies import PolicyCall
from tests.support.asgi import execute
from tests.support.calls import answer, app_of, code, events, post, stream
from tests.support.gate import Gate

SOON = 0.01
"""A deadline that is met at once; the tools below wait until it is."""


@pytest.mark.spec("carmy/1 7.5")
@pytest.mark.parametrize("effect", ["read", "write"])
def test_a_deadline_that_is_met_is_recorded(effect: str) -> None:
    agent = AgentRouter(timeout_seconds=SOON)
    runs: list[str] = []

    @agent.tool(effect=effect, idempotent=effect == "read")
    async def slow(mode: str) -> None:
        runs.append(mode)
        await anyio.sleep(10)

    with TestClient(app_of(agent)) as client:
        first, second = (post(client, "slow", {"mode": "wait"}, request_id="r") for _ in range(2))

    assert first.status_code == 504
    assert first.json()["status"] == "timed_out"
    assert (code(first), first.json()["error"]["category"]) == ("TIMEOUT", "timeout")
    assert first.json()["error"]["retryable"] is False
    assert first.json()["_agent"] == {"cacheable": False, "next_actions": []}
    assert first.content == second.content
    assert runs == ["wait"]


@pytest.mark.spec("carmy/1 4.1")
def test_a_tool_has_a_deadline_of_its_own_over_the_routers() -> None:
    agent = AgentRouter(timeout_seconds=SOON)

    @agent.tool(effect="read", timeout_seconds=20)
    async def patient(context: AgentContext) -> str:
        with anyio.move_on_after(SOON * 5):
            await context.cancelled()
        return "done"

    with TestClient(app_of(agent)) as client:
        assert post(client, "patient").json()["data"] == "done"


@pytest.mark.spec("carmy/1 4.3")
def test_the_tool_is_cancelled_once_and_its_finally_may_await() -> None:
    agent = AgentRouter(timeout_seconds=SOON)
    seen: list[object] = []

    def dependency() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        finally:
            seen.append("dependency closed")

    @agent.tool(effect="read")
    async def slow(needed: Annotated[None, Depends(dependency)], context: AgentContext) -> None:
        seen.append(context.is_cancelled)
        try:
            await anyio.sleep(10)
        finally:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            await context.cancelled()
            seen.append(context.is_cancelled)

    with TestClient(app_of(agent)) as client:
        assert code(post(client, "slow")) == "TIMEOUT"

    assert seen == [False, True, "AgentError", "dependency closed"]


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize("outcome", ["returns", "raises"])
def test_a_tool_that_swallows_its_cancellation_is_waited_for(
    outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = AgentRouter(timeout_seconds=SOON)
    ended: list[str] = []

    @agent.tool(effect="write")
    async def stubborn() -> str:
        try:
            await anyio.sleep(10)
        except BaseException:  # noqa: BLE001 - What a stubborn tool does.
            await anyio.lowlevel.checkpoint()
        ended.append("late")
        if outcome == "raises":
            raise RuntimeError
        return "done"

    with TestClient(app_of(agent)) as client:
        first, second = (post(client, "stubborn", request_id="r") for _ in range(2))

    assert code(first) == "TIMEOUT"
    assert first.content == second.content
    assert ended == ["late"]
    assert "told to stop" in caplog.text


@pytest.mark.spec("carmy/1 4.1")
async def test_a_sync_tool_past_its_deadline_keeps_its_turn_and_its_dependencies() -> None:
    agent = AgentRouter()
    told: list[bool] = []
    is_open: list[str] = []

    async def dependency() -> AsyncIterator[str]:
        is_open.append("open")
        try:
            yield "open"
        finally:
            is_open.pop()

    with Gate() as gate:

        @agent.tool(effect="write", timeout_seconds=0.1)
        def slow(needed: Annotated[str, Depends(dependency)], context: AgentContext) -> str:
            gate.pass_through()
            told.append(context.is_cancelled)
            return needed

        app = app_of(agent)

        async with execute(app, "slow", request_id="r") as exchange:
            first = await exchange.json()
            replay = await answer(app, "slow", request_id="r")
            busy = await answer(app, "slow", request_id="s")
            assert is_open == ["open"]
            gate.open()
            with anyio.fail_after(5):
                await exchange.finished.wait()

        after = await answer(app, "slow", request_id="s")

    assert first["error"]["code"] == "TIMEOUT"
    assert replay == first
    assert busy["error"]["code"] == "BUSY"
    assert after["data"] == "open"
    assert (told, is_open) == ([True, False], [])


@pytest.mark.spec("carmy/1 4.5")
@pytest.mark.spec("carmy/1 4.1")
async def test_a_wait_for_the_turn_that_meets_the_deadline_is_busy_and_leaves_no_trace() -> None:
    agent = AgentRouter()
    begun, may_end = anyio.Event(), anyio.Event()

    @agent.tool(effect="write", timeout_seconds=0.1)
    async def serial(wait: bool) -> str:
        begun.set()
        if wait:
            try:
                await may_end.wait()
            except BaseException:  # noqa: BLE001 - It holds its turn past its deadline.
                with anyio.CancelScope(shield=True):
                    await may_end.wait()
        return "done"

    app = app_of(agent)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: answer(app, "serial", {"wait": True}))
        with anyio.fail_after(5):
            await begun.wait()
        busy = await answer(app, "serial", {"wait": False}, request_id="r")
        may_end.set()

    done = await answer(app, "serial", {"wait": False}, request_id="r")
    error = busy["error"]
    assert (busy["status"], error["code"], error["category"]) == ("failed", "BUSY", "capacity")
    assert error["retryable"] is error["recoverable"] is True
    (action,) = busy["_agent"]["next_actions"]
    assert (action["tool"], action["after_ms"]) == ("serial", error["retry_after"] * 1000)
    assert done["data"] == "done"


@pytest.mark.spec("carmy/1 4.1")
async def test_a_wait_for_a_thread_that_meets_the_deadline_is_busy_too() -> None:
    agent = AgentRouter(max_threads=1)
    runs: list[str] = []

    with Gate() as gate:

        @agent.tool(effect="read")
        def hold() -> None:
            gate.pass_through()

        @agent.tool(effect="write", timeout_seconds=0.05)
        def quick(context: AgentContext) -> str:
            runs.append("quick")
            return "done"

        app = app_of(agent)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: answer(app, "hold"))
            await gate.entered()
            busy = await answer(app, "quick", request_id="r")
            assert runs == []
            gate.open()

        done = await answer(app, "quick", request_id="r")

    assert busy["error"]["code"] == "BUSY"
    assert done["data"] == "done"
    assert runs == ["quick"]


@pytest.mark.spec("carmy/1 4.1")
async def test_sync_dependencies_run_in_the_routers_threads_too() -> None:
    agent = AgentRouter(max_threads=1)

    with Gate() as gate:

        def dependency() -> str:
            return "open"

        @agent.tool(effect="read")
        def hold() -> None:
            gate.pass_through()

        @agent.tool(effect="write", timeout_seconds=0.05)
        async def quick(needed: Annotated[str, Depends(dependency)]) -> str:
            return needed

        app = app_of(agent)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: answer(app, "hold"))
            await gate.entered()
            busy = await answer(app, "quick", request_id="r")
            gate.open()

        done = await answer(app, "quick", request_id="r")

    assert busy["error"]["code"] == "BUSY"
    assert done["data"] == "open"


@pytest.mark.spec("carmy/1 7.14")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("parallel_safe", [False, True])
async def test_only_a_parallel_safe_tool_overlaps_with_itself(
    kind: str, parallel_safe: bool
) -> None:
    agent = AgentRouter()
    inside: list[int] = []
    most = 0

    def enter() -> None:
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))

    async def work_async() -> None:
        enter()
        await anyio.sleep(0.05)
        inside.pop()

    def work_sync() -> None:
        enter()
        threading.Event().wait(0.05)
        inside.pop()

    work = work_async if kind == "async" else work_sync
    agent.add_tool(work, name="work", effect="write", parallel_safe=parallel_safe)
    app = app_of(agent)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(lambda: answer(app, "work"))

    assert most == (4 if parallel_safe else 1)


@pytest.mark.spec("carmy/1 7.14")
async def test_different_serial_tools_overlap() -> None:
    agent = AgentRouter()
    inside = {"a": anyio.Event(), "b": anyio.Event()}

    @agent.tool(effect="write")
    async def a() -> None:
        inside["a"].set()
        await inside["b"].wait()

    @agent.tool(effect="write")
    async def b() -> None:
        inside["b"].set()
        await inside["a"].wait()

    app = app_of(agent)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: answer(app, "a"))
            tasks.start_soon(lambda: answer(app, "b"))


@pytest.mark.spec("carmy/1 2.3")
def test_a_deadline_in_a_stream_completes_what_was_started() -> None:
    agent = AgentRouter(timeout_seconds=SOON)

    @agent.tool(effect="read")
    async def slow() -> None:
        await anyio.sleep(10)

    with TestClient(app_of(agent)) as client:
        frames = stream(client, "slow")

    assert events(frames) == [
        "execution.started",
        "tool.started",
        "tool.completed",
        "execution.completed",
    ]
    assert frames[2].json()["ok"] is False
    assert frames[3].json()["status"] == "timed_out"


@pytest.mark.spec("carmy/1 4.2")
def test_a_deadline_met_by_a_dependency_is_not_recorded() -> None:
    agent = AgentRouter()
    is_slow = [True]

    async def dependency() -> None:
        if is_slow.pop():
            await anyio.sleep(10)
        is_slow.append(False)

    @agent.tool(effect="write", timeout_seconds=0.05)
    async def book(needed: Annotated[None, Depends(dependency)]) -> str:
        return "booked"

    with TestClient(app_of(agent)) as client:
        slow = post(client, "book", request_id="r")
        is_slow.append(False)
        booked = post(client, "book", request_id="r")

    assert code(slow) == "TIMEOUT"
    assert booked.json()["data"] == "booked"


class Deaf:
    """A policy that does not let itself be told to stop, once."""

    async def admit(self, _: PolicyCall) -> None:
        try:
            await anyio.sleep_forever()
        except CancelledError:
            return


class Impatient:
    """A policy with a time limit of its own, which leaves its mark on the task."""

    async def check(self, _: PolicyCall) -> None:
        task = current_task()
        assert task is not None
        get_running_loop().call_soon(task.cancel)

        try:
            await anyio.sleep_forever()
        except CancelledError:
            return


@pytest.mark.parametrize("request_id", [None, "r"])
async def test_a_tool_does_not_run_after_a_policy_swallowed_its_deadline(
    request_id: str | None,
) -> None:
    agent = AgentRouter(policies=[Deaf()], timeout_seconds=0.05)
    ran: list[str] = []

    @agent.tool(effect="write")
    async def order() -> None:
        ran.append("order")

    result = await agent.execute("order", request_id=request_id)

    assert result.error is not None
    assert result.error.code == "BUSY"
    assert not ran


async def test_a_policy_that_interrupts_itself_leaves_the_deadline_to_be_told() -> None:
    agent = AgentRouter(policies=[Impatient()], timeout_seconds=0.05)

    @agent.tool(effect="write")
    async def order() -> None:
        await anyio.sleep_forever()

    result = await agent.execute("order")

    assert result.error is not None
    assert result.error.code == "TIMEOUT"
