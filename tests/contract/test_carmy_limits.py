"""No wait of an execution lasts for ever, and what was cut is never called a success.

Source: carmy/1, section 4.1, the point of no return, and 4.2.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Annotated

import anyio
import pytest
from fastapi import Depends, HTTPException
from fastapi.testclient import TestClient
from pydantic import AfterValidator

from fastapi_carmy import AgentError, AgentRouter, ErrorCategory
from fastapi_carmy.audit import ExecutionRecord
from fastapi_carmy.policies import PolicyCall, RateLimit
from fastapi_carmy.stores import MemoryStore
from fastapi_carmy.stores.base import Key, Record, Reservation
from tests.support.asgi import execute
from tests.support.calls import answer, app_of, code, post

KEY = Key(None, None, "r")


class HungStore(MemoryStore):
    """A store one of whose methods never returns."""

    def __init__(self, hangs_in: str) -> None:
        super().__init__()
        self.hangs_in = hangs_in

    async def reserve(
        self, key: Key, *, fingerprint: str, execution_id: str, may_repeat: bool
    ) -> Reservation:
        outcome = await super().reserve(
            key, fingerprint=fingerprint, execution_id=execution_id, may_repeat=may_repeat
        )
        await self.hang("reserve")
        return outcome

    async def complete(self, key: Key, *, execution_id: str, record: Record) -> bool:
        await self.hang("complete")
        return await super().complete(key, execution_id=execution_id, record=record)

    async def abandon(self, key: Key, *, execution_id: str) -> bool:
        await self.hang("abandon")
        return await super().abandon(key, execution_id=execution_id)

    async def hang(self, method: str) -> None:
        if method == self.hangs_in:
            await anyio.sleep_forever()


class HungQuota:
    """A policy whose quota never answers."""

    def admit(self, call: PolicyCall) -> Awaitable[None]:
        return anyio.sleep_forever()


class HungSink:
    """A sink that never returns."""

    async def record(self, record: ExecutionRecord) -> None:
        await anyio.sleep_forever()


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize("hung", ["store", "quota"])
async def test_a_claim_that_hangs_is_busy_at_the_deadline(hung: str) -> None:
    store = HungStore("reserve" if hung == "store" else "")
    agent = AgentRouter(store=store, policies=[HungQuota()] if hung == "quota" else [])

    @agent.tool(effect="write", timeout_seconds=0.05)
    async def work() -> None:
        raise AssertionError

    with anyio.fail_after(5):
        result = await answer(app_of(agent), "work", request_id="r")

    assert result["error"]["code"] == "BUSY"
    assert await store.lookup(KEY) is None


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize("request_id", [None, "r"])
async def test_a_sink_that_hangs_does_not_hold_the_answer(request_id: str | None) -> None:
    agent = AgentRouter(audit=[HungSink()], finish_seconds=0.05)

    @agent.tool(effect="write")
    async def work() -> int:
        return 1

    with anyio.fail_after(5):
        result = await answer(app_of(agent), "work", request_id=request_id)

    assert result["data"] == 1


@pytest.mark.spec("carmy/1 6")
async def test_a_sink_that_hangs_does_not_hold_a_refusal() -> None:
    def refuse() -> None:
        raise HTTPException(403)

    agent = AgentRouter(audit=[HungSink()], finish_seconds=0.05)

    @agent.tool(effect="read", dependencies=[Depends(refuse)])
    async def guarded() -> None: ...

    with anyio.fail_after(5):
        result = await answer(app_of(agent), "guarded")

    assert result["error"]["category"] == "permission"


@pytest.mark.spec("carmy/1 4.2")
async def test_a_store_that_hangs_while_recording_does_not_hold_the_answer() -> None:
    store = HungStore("complete")
    agent = AgentRouter(store=store, finish_seconds=0.05)

    @agent.tool(effect="write")
    async def work() -> int:
        return 1

    with anyio.fail_after(5):
        result = await answer(app_of(agent), "work", request_id="r")

    entry = await store.lookup(KEY)
    assert result["data"] == 1
    assert entry is not None
    assert entry.state == "running"


@pytest.mark.spec("carmy/1 4.2")
async def test_a_store_that_hangs_does_not_hold_the_answer_of_a_tool_whose_thread_goes_on() -> None:
    agent = AgentRouter(store=HungStore("complete"), finish_seconds=0.05)
    may_end = threading.Event()

    @agent.tool(effect="write", timeout_seconds=0.05)
    def work() -> None:
        may_end.wait(10)

    async with execute(app_of(agent), "work", request_id="r") as exchange:
        result = await exchange.json()
        may_end.set()
        with anyio.fail_after(5):
            await exchange.finished.wait()

    assert result["error"]["code"] == "TIMEOUT"


@pytest.mark.spec("carmy/1 4.1")
async def test_each_teardown_that_hangs_is_cut_and_the_end_is_called_uncertain() -> None:
    agent = AgentRouter(finish_seconds=0.05)
    closing: list[str] = []

    async def outer() -> AsyncIterator[None]:
        try:
            yield
        finally:
            closing.append("outer")
            await anyio.sleep_forever()

    async def inner(needed: Annotated[None, Depends(outer)]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            closing.append("inner")
            await anyio.sleep_forever()

    @agent.tool(effect="write")
    async def work(needed: Annotated[None, Depends(inner)]) -> int:
        return 1

    app = app_of(agent)

    with anyio.fail_after(5):
        first = await answer(app, "work", request_id="r")
        again = await answer(app, "work", request_id="r")

    assert closing == ["inner", "outer"]
    for result in (first, again):
        assert result["error"]["code"] == "EXECUTION_UNCERTAIN"
        assert result["error"]["details"]["state"] == "abandoned"


@pytest.mark.spec("carmy/1 4.1")
async def test_a_commit_that_swallows_being_cut_is_no_success() -> None:
    agent = AgentRouter(finish_seconds=0.05)

    async def session() -> AsyncIterator[None]:
        yield
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            return

    @agent.tool(effect="write")
    async def work(needed: Annotated[None, Depends(session)]) -> int:
        return 1

    with anyio.fail_after(5):
        result = await agent.execute("work", request_id="r")

    task = asyncio.current_task()
    assert result.error is not None
    assert result.error.code == "EXECUTION_UNCERTAIN"
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.spec("carmy/1 4.1")
async def test_a_rollback_that_swallows_being_cut_leaves_no_interruption_behind() -> None:
    agent = AgentRouter(finish_seconds=0.05)

    async def session() -> AsyncIterator[None]:
        try:
            yield
        except RuntimeError:
            with suppress(asyncio.CancelledError):
                await anyio.sleep_forever()

            raise

    @agent.tool(effect="write")
    async def work(needed: Annotated[None, Depends(session)]) -> int:
        raise RuntimeError

    with anyio.fail_after(5):
        result = await agent.execute("work")

    task = asyncio.current_task()
    assert result.error is not None
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.spec("carmy/1 4.1")
async def test_a_body_that_is_refused_over_a_hung_teardown_is_still_answered() -> None:
    async def session() -> AsyncIterator[None]:
        try:
            yield
        finally:
            # Bounded, so that a test that fails ends all the same.
            await anyio.sleep(20)

    agent = AgentRouter(dependencies=[Depends(session)], finish_seconds=0.05)

    with anyio.fail_after(5):
        async with execute(app_of(agent), "any", headers={"content-type": "text/x"}) as exchange:
            result = await exchange.json()

        await agent.aclose()

    assert result["error"]["code"] == "INVALID_REQUEST"


@pytest.mark.spec("carmy/1 4.1")
async def test_a_guard_that_refuses_over_a_hung_teardown_still_answers() -> None:
    agent = AgentRouter(finish_seconds=0.05)

    async def session() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await anyio.sleep_forever()

    def refuse(needed: Annotated[None, Depends(session)]) -> None:
        raise HTTPException(401)

    @agent.tool(effect="read", dependencies=[Depends(refuse)])
    async def look() -> int:
        return 1

    with anyio.fail_after(5):
        result = await answer(app_of(agent), "look")

    assert "error" in result
    with anyio.fail_after(1):
        await agent.aclose()


@pytest.mark.spec("carmy/1 4.2")
async def test_a_call_that_is_cut_while_it_is_abandoned_is_abandoned_all_the_same() -> None:
    store = HungStore("abandon")
    agent = AgentRouter(store=store, finish_seconds=0.5, stop_seconds=0.5)
    running = anyio.Event()

    @agent.tool(effect="write")
    async def work() -> None:
        running.set()
        await anyio.sleep_forever()

    task = asyncio.ensure_future(agent.execute("work", request_id="r"))

    with anyio.fail_after(5):
        await running.wait()
        task.cancel()
        await anyio.lowlevel.checkpoint()
        store.hangs_in = ""
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task

    entry = await store.lookup(KEY)
    assert entry is not None
    assert entry.state == "abandoned"


@pytest.mark.spec("carmy/1 4.1")
def test_what_a_later_policy_refuses_gives_back_what_an_earlier_one_spent() -> None:
    agent = AgentRouter(
        policies=[
            RateLimit(3, per_seconds=600),
            RateLimit(1, per_seconds=600, per_tool=True),
        ]
    )

    @agent.tool(effect="read")
    async def a() -> None: ...

    @agent.tool(effect="read")
    async def b() -> None: ...

    with TestClient(app_of(agent)) as client:
        of_a = [post(client, "a").status_code for _ in range(3)]
        of_b = post(client, "b")

    assert of_a == [200, 503, 503]
    assert of_b.status_code == 200


@pytest.mark.spec("carmy/1 4.1")
def test_an_execution_that_does_not_start_after_all_costs_nothing() -> None:
    agent = AgentRouter(policies=[RateLimit(1, per_seconds=600)])
    fails = True

    def flaky() -> None:
        if fails:
            raise HTTPException(503)

    @agent.tool(effect="read")
    async def look(needed: Annotated[None, Depends(flaky)]) -> None: ...

    with TestClient(app_of(agent), raise_server_exceptions=False) as client:
        first = post(client, "look")
        fails = False
        second = post(client, "look")
        third = post(client, "look")

    assert first.status_code == 503
    assert second.status_code == 200
    assert code(third) == "RATE_LIMITED"


class Refuse:
    """A policy that refuses every call."""

    def check(self, call: PolicyCall) -> None:
        raise AgentError("NO", "No.", ErrorCategory.PERMISSION)


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize(
    "raised", [KeyError("x"), AgentError("OWN", "No.", ErrorCategory.CONFLICT)]
)
@pytest.mark.parametrize("refused_by", ["guard", "policy", None])
def test_what_a_validator_raises_is_told_in_its_turn(
    raised: Exception, refused_by: str | None
) -> None:
    records: list[ExecutionRecord] = []

    class Sink:
        def record(self, record: ExecutionRecord) -> None:
            records.append(record)

    def refuse() -> None:
        if refused_by == "guard":
            raise HTTPException(401)

    runs = 0

    def validator(value: int) -> int:
        nonlocal runs
        runs += 1
        raise raised

    agent = AgentRouter(policies=[Refuse()] if refused_by == "policy" else [], audit=[Sink()])

    @agent.tool(effect="read", dependencies=[Depends(refuse)])
    async def look(number: Annotated[int, AfterValidator(validator)]) -> None: ...

    with TestClient(app_of(agent)) as client:
        answered = post(client, "look", {"number": 1})

    own = "OWN" if isinstance(raised, AgentError) else "TOOL_PANIC"
    assert code(answered) == {"guard": "UNAUTHENTICATED", "policy": "NO", None: own}[refused_by]
    assert runs == 1
    assert len(records) == 1
