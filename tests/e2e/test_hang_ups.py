"""Clients that hang up, at every stage of a call. Source: carmy/1, sections 4.1 to 4.3."""

import threading
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Literal

import anyio
import pytest
from anyio.to_thread import run_sync
from fastapi import Depends
from pydantic import BaseModel, field_serializer

from fastapi_carmy import AgentContext, AgentRouter
from tests.support.calls import app_of
from tests.support.gates import Audit, Gate, GatedPolicy, reached
from tests.support.stores import GatedStore
from tests.support.wire import LIMIT_SECONDS, Served, call, serve_here

pytestmark = pytest.mark.spec("carmy/1 4.3")

as_json_and_as_stream = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])


async def answer_of(served: Served, tool: str, *, stream: bool = False) -> Any:
    """Make the call `r` and return its whole answer."""
    async with call(served, tool, request_id="r", stream=stream) as wire:
        return (await wire.answer()).result


async def hang_up_in(gate: anyio.Event, served: Served, tool: str, *, stream: bool) -> None:
    """Make the call `r`, and hang up as soon as it is at the gate."""
    async with call(served, tool, request_id="r", stream=stream) as wire:
        await reached(gate)
        await wire.hang_up()


def await_signal(context: AgentContext) -> str:
    """Look at the signal from a thread, as a tool does; bounded, so that each test ends."""
    for _ in range(500):
        if context.is_cancelled:
            return "told"
        threading.Event().wait(0.01)
    return "never told"


def counter(agent: AgentRouter, **options: Any) -> list[int]:
    """Add the tool `count`, not safe to repeat; returns its runs."""
    runs: list[int] = []

    @agent.tool(effect="write", **options)
    async def count() -> int:
        runs.append(len(runs))
        return runs[-1]

    return runs


@as_json_and_as_stream
async def test_a_hang_up_during_a_guard_of_the_router_runs_nothing(stream: bool) -> None:
    gate, closed = Gate(), anyio.Event()

    async def guard() -> AsyncIterator[None]:
        try:
            await gate()
            yield
        finally:
            closed.set()

    agent = AgentRouter(dependencies=[Depends(guard)])
    runs = counter(agent)

    async with serve_here(app_of(agent)) as served:
        await hang_up_in(gate.entered, served, "count", stream=stream)
        await served.noticed_hang_up()
        gate.may_go_on.set()
        await reached(closed)
        assert runs == []
        assert (await answer_of(served, "count", stream=stream))["data"] == 0


@as_json_and_as_stream
@pytest.mark.parametrize("stage", ["guard", "policy", "dependency", "dependency-of-a-thread"])
async def test_a_hang_up_before_the_tool_begins_leaves_the_call_free(
    stage: str, stream: bool
) -> None:
    gate, audit = Gate(), Audit()

    async def waits() -> None:
        await gate()

    agent = AgentRouter(policies=[GatedPolicy(gate)] if stage == "policy" else (), audit=[audit])
    runs: list[int] = []

    if stage == "dependency":

        @agent.tool(effect="write")
        async def count(waited: Annotated[None, Depends(waits)]) -> int:
            runs.append(len(runs))
            return runs[-1]

    elif stage == "dependency-of-a-thread":

        @agent.tool(effect="write", name="count")
        def count_in_thread(waited: Annotated[None, Depends(waits)]) -> int:
            runs.append(len(runs))
            return runs[-1]

    else:
        runs = counter(agent, dependencies=[Depends(waits)] if stage == "guard" else ())

    async with serve_here(app_of(agent)) as served:
        await hang_up_in(gate.entered, served, "count", stream=stream)
        record = await audit.until(1)
        again = await answer_of(served, "count", stream=stream)

    assert (record.status, record.error_code) == ("cancelled", "CANCELLED")
    assert gate.left == ["CancelledError", "through"]
    assert again["data"] == 0
    assert runs == [0]


@as_json_and_as_stream
async def test_who_hangs_up_while_waiting_leaves_the_queue(stream: bool) -> None:
    gate, audit = Gate(), Audit()
    agent = AgentRouter(audit=[audit])
    runs: list[str] = []

    @agent.tool(effect="write")
    async def book(who: str) -> int:
        await gate()
        runs.append(who)
        return len(runs)

    async with serve_here(app_of(agent)) as served, call(served, "book", {"who": "first"}) as first:
        await reached(gate.entered)
        async with call(served, "book", {"who": "second"}, request_id="r", stream=stream) as second:
            if stream:
                await second.until(b"execution.started")
            await second.hang_up()
            record = await audit.until(1)
        gate.may_go_on.set()
        answers = [(await first.answer()).result["data"]]
        async with call(served, "book", {"who": "second"}, request_id="r") as again:
            answers.append((await again.answer()).result["data"])

    assert record.error_code == "CANCELLED"
    assert answers == [1, 2]
    assert runs == ["first", "second"]


@as_json_and_as_stream
@pytest.mark.parametrize(
    ("options", "repeated"),
    [
        ({"effect": "write"}, "EXECUTION_UNCERTAIN"),
        ({"effect": "write", "idempotent": True}, "runs"),
        ({"effect": "read"}, "runs"),
        ({"effect": "none"}, "runs"),
    ],
    ids=["write", "idempotent-write", "read", "none"],
)
async def test_a_hang_up_in_the_tool_cancels_it_and_closes_its_dependencies(
    options: dict[str, Any], repeated: str, stream: bool
) -> None:
    gate, audit, seen = Gate(), Audit(), list[str]()

    async def session() -> AsyncIterator[str]:
        try:
            yield "session"
        except Exception as error:
            # What a rollback takes.
            await anyio.lowlevel.checkpoint()
            seen.append(f"rolled back: {error}")
            raise
        else:
            seen.append("committed")

    agent = AgentRouter(audit=[audit])

    @agent.tool(**options)
    async def work(session: Annotated[str, Depends(session)]) -> str:
        try:
            await gate()
        finally:
            await anyio.lowlevel.checkpoint()
            seen.append("cleaned up")
        return session

    async with serve_here(app_of(agent)) as served:
        await hang_up_in(gate.entered, served, "work", stream=stream)
        await audit.until(1)
        before = list(seen)
        again = await answer_of(served, "work", stream=stream)

    assert gate.left[0] == "CancelledError"
    assert before == ["cleaned up", "rolled back: CANCELLED: The execution was cancelled."]
    if repeated == "runs":
        assert again["data"] == "session"
    else:
        assert again["error"]["code"] == repeated
        assert again["error"]["details"]["state"] == "abandoned"


@as_json_and_as_stream
@pytest.mark.parametrize("of_router", [False, True], ids=["of-the-tool", "of-the-router"])
async def test_a_tool_that_is_to_finish_does_and_is_replayed(of_router: bool, stream: bool) -> None:
    gate, audit = Gate(), Audit()
    finish: Literal["finish"] = "finish"
    agent = AgentRouter(audit=[audit], on_disconnect=finish if of_router else "cancel")

    @agent.tool(effect="write", on_disconnect=None if of_router else finish)
    async def work() -> str:
        await gate()
        return "done"

    async with serve_here(app_of(agent)) as served:
        await hang_up_in(gate.entered, served, "work", stream=stream)
        gate.may_go_on.set()
        record = await audit.until(1)
        again = await answer_of(served, "work")

    assert record.status == "completed"
    assert gate.left == ["through"]
    assert (again["data"], again["execution_id"]) == ("done", record.execution_id)


@as_json_and_as_stream
@pytest.mark.parametrize("effect", ["read", "write"])
async def test_a_thread_is_told_of_the_hang_up_and_waited_for(effect: str, stream: bool) -> None:
    in_thread, may_end, audit, seen = threading.Event(), threading.Event(), Audit(), list[str]()

    def session() -> Any:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - What a rollback is made for.
            seen.append(type(error).__name__)

    agent = AgentRouter(audit=[audit])

    @agent.tool(effect=effect)
    def work(context: AgentContext, session: Annotated[None, Depends(session)]) -> str:
        if in_thread.is_set():
            return "again"
        in_thread.set()
        seen.append(await_signal(context))
        may_end.wait(LIMIT_SECONDS)
        seen.append("ended")
        return "late"

    async with serve_here(app_of(agent)) as served:
        async with call(served, "work", request_id="r", stream=stream):
            assert await run_sync(in_thread.wait, LIMIT_SECONDS)
        uncertain = await answer_of(served, "work")
        may_end.set()
        record = await audit.until(2)
        again = await answer_of(served, "work")

    assert uncertain["error"]["code"] == "EXECUTION_UNCERTAIN"
    assert record.error_code == "CANCELLED"
    assert seen == ["told", "ended", "AgentError"]
    if effect == "read":
        assert again["data"] == "again"
    else:
        assert again["error"]["details"]["state"] == "abandoned"


@as_json_and_as_stream
async def test_a_hang_up_while_the_output_is_serialised_comes_too_late(stream: bool) -> None:
    hang_ups: list[Callable[[], None]] = []
    audit = Audit()

    class Report(BaseModel):
        text: str

        @field_serializer("text")
        def _hang_up(self, text: str) -> str:
            while hang_ups:
                hang_ups.pop()()
            return text

    gate = Gate()
    agent = AgentRouter(audit=[audit])

    @agent.tool(effect="write")
    async def work() -> Report:
        await gate()
        return Report(text="done")

    async with serve_here(app_of(agent)) as served:
        async with call(served, "work", request_id="r", stream=stream) as wire:
            await reached(gate.entered)
            hang_ups.append(wire.hang_up_now)
            gate.may_go_on.set()
            record = await audit.until(1)
        again = await answer_of(served, "work")

    assert hang_ups == []
    assert record.status == "completed"
    assert again["data"] == {"text": "done"}
    assert audit.records[-1].replayed


@as_json_and_as_stream
@pytest.mark.parametrize("acts_first", [False, True], ids=["before", "after"])
async def test_a_hang_up_while_the_record_is_written_comes_too_late(
    acts_first: bool, stream: bool
) -> None:
    store, audit = GatedStore("complete", acts_first=acts_first), Audit()
    agent = AgentRouter(store=store, audit=[audit])
    runs = counter(agent)

    async with serve_here(app_of(agent)) as served:
        await hang_up_in(store.entered, served, "count", stream=stream)
        store.may_go_on.set()
        record = await audit.until(1)
        again = await answer_of(served, "count")

    assert record.status == "completed"
    assert (again["data"], again["execution_id"]) == (0, record.execution_id)
    assert runs == [0]


@as_json_and_as_stream
@pytest.mark.parametrize("acts_first", [False, True], ids=["before", "after"])
async def test_a_hang_up_while_the_call_is_reserved_makes_it_run_once_all_the_same(
    acts_first: bool, stream: bool
) -> None:
    store, audit = GatedStore("reserve", acts_first=acts_first), Audit()
    agent = AgentRouter(store=store, audit=[audit])
    runs = counter(agent)

    async with serve_here(app_of(agent)) as served:
        await hang_up_in(store.entered, served, "count", stream=stream)
        await served.noticed_hang_up()
        store.may_go_on.set()
        await audit.until(1)
        again = await answer_of(served, "count")

    assert again["data"] == 0
    assert runs == [0]
