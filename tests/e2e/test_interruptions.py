"""Requests that are cut from outside: a server that stops, a time limit of the host.

uvicorn cancels the task of a request once; a cancel scope of the host cancels it again at
each `await`. Either way what was opened closes, and no `request_id` stays in limbo.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

import anyio
import pytest
from anyio.lowlevel import checkpoint
from fastapi import Depends

from fastapi_carmy import AgentError, AgentRouter, ErrorCategory
from fastapi_carmy.stores import Key
from tests.support.asgi import Exchange, execute
from tests.support.calls import answer, app_of
from tests.support.gates import Gate, GatedPolicy, reached
from tests.support.interruptible import Interruptible, Kind
from tests.support.stores import GatedStore

pytestmark = pytest.mark.spec("carmy/1 4.2")

by_task_and_by_scope = pytest.mark.parametrize("kind", ["task", "scope"])


async def interrupt_at(
    entered: anyio.Event, let_go: anyio.Event, agent: AgentRouter, kind: Kind, *, stream: bool
) -> str | None:
    """Cut the call `r` when it is at the gate; returns the state of its reservation."""
    app = Interruptible(app_of(agent), kind)
    async with (
        execute(app, "work", request_id="r", stream=stream) as exchange,
        anyio.create_task_group() as tasks,
    ):
        if stream:
            tasks.start_soon(read_what_comes, exchange)
        await reached(entered)
        app.interrupt()
        await checkpoint()
        let_go.set()
        await reached(app.ended)
        await agent.aclose()
        tasks.cancel_scope.cancel()
    entry = await agent.store.lookup(Key(None, None, "r"))
    return None if entry is None else entry.state


async def read_what_comes(exchange: Exchange) -> None:
    with suppress(anyio.EndOfStream):
        await exchange.read()


def working(agent: AgentRouter) -> list[int]:
    """Add the tool `work`, not safe to repeat; returns its runs."""
    runs: list[int] = []

    @agent.tool(effect="write")
    async def work() -> int:
        runs.append(len(runs))
        return runs[-1]

    return runs


@by_task_and_by_scope
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("stage", ["guard", "policy", "admission", "tool-guard"])
async def test_a_call_that_is_cut_before_the_tool_begins_leaves_its_key_free(
    stage: str, stream: bool, kind: Kind
) -> None:
    gate = Gate()
    closed: list[str] = []

    async def guard() -> AsyncIterator[None]:
        try:
            await gate()
            yield
        finally:
            closed.append(stage)

    agent = AgentRouter(
        dependencies=[Depends(guard)] if stage == "guard" else [],
        policies=[
            GatedPolicy(gate if stage == "policy" else None, gate if stage == "admission" else None)
        ],
    )
    runs: list[int] = []

    @agent.tool(effect="write", dependencies=[Depends(guard)] if stage == "tool-guard" else [])
    async def work() -> int:
        runs.append(len(runs))
        return runs[-1]

    state = await interrupt_at(gate.entered, gate.may_go_on, agent, kind, stream=stream)

    assert state is None
    assert runs == []
    assert closed == ([stage] if "guard" in stage else [])
    assert (await answer(app_of(agent), "work", request_id="r"))["data"] == 0


@by_task_and_by_scope
@pytest.mark.parametrize("acts_first", [False, True], ids=["before", "after"])
async def test_a_claim_that_is_cut_half_way_is_given_back(acts_first: bool, kind: Kind) -> None:
    store = GatedStore("reserve", acts_first=acts_first)
    agent = AgentRouter(store=store)
    runs = working(agent)

    state = await interrupt_at(store.entered, store.may_go_on, agent, kind, stream=False)

    assert state is None
    assert runs == []
    assert (await answer(app_of(agent), "work", request_id="r"))["data"] == 0


@by_task_and_by_scope
@pytest.mark.parametrize("acts_first", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_record_that_is_cut_half_way_is_written(
    stream: bool, acts_first: bool, kind: Kind
) -> None:
    store = GatedStore("complete", acts_first=acts_first)
    agent = AgentRouter(store=store)
    runs = working(agent)

    state = await interrupt_at(store.entered, store.may_go_on, agent, kind, stream=stream)

    assert state == "finished"
    assert (await answer(app_of(agent), "work", request_id="r"))["data"] == 0
    assert runs == [0]


@by_task_and_by_scope
async def test_a_release_that_is_cut_half_way_is_made(kind: Kind) -> None:
    store = GatedStore("release")
    agent = AgentRouter(store=store)

    @agent.tool(effect="write")
    async def work() -> None:
        raise AgentError("BUSY_NOW", "Later.", ErrorCategory.CAPACITY, retryable=True)

    state = await interrupt_at(store.entered, store.may_go_on, agent, kind, stream=False)

    assert state is None


@by_task_and_by_scope
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize(
    ("stage", "effect", "state"),
    [
        ("dependency", "write", None),
        ("tool", "write", "abandoned"),
        ("tool", "read", None),
    ],
)
async def test_what_is_known_of_a_call_that_is_cut_is_written_and_all_is_closed(
    stage: str, effect: str, state: str | None, stream: bool, kind: Kind
) -> None:
    gate = Gate()
    seen: list[str] = []

    async def session() -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            await checkpoint()
            seen.append(str(error))
            raise

    async def slow(session: Annotated[None, Depends(session)]) -> None:
        if stage == "dependency":
            await gate()

    agent = AgentRouter()

    @agent.tool(effect=effect)
    async def work(slow: Annotated[None, Depends(slow)]) -> str:
        if stage == "tool":
            await gate()
        return "done"

    found = await interrupt_at(gate.entered, gate.may_go_on, agent, kind, stream=stream)

    assert found == state
    assert gate.left == ["CancelledError"]
    assert seen == ["CANCELLED: The execution was cancelled."]
    # The turn is free again: the tool is not parallel-safe.
    assert (await answer(app_of(agent), "work", request_id="s"))["data"] == "done"
