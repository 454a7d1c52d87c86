"""What a store that forgets, fills up or fails means to callers. Source: carmy/1, section 4.2."""

import logging

import anyio
import pytest
from fastapi.testclient import TestClient
from pydantic_core import to_json

from fastapi_carmy import AgentRouter
from fastapi_carmy.stores import MemoryStore
from fastapi_carmy.stores.base import Key, Record, Reservation
from tests.support.calls import answer, app_of, code, post
from tests.support.clock import Clock


def counting(agent: AgentRouter) -> list[str]:
    """Add the tool `count`, and return what it was called with."""
    runs: list[str] = []

    @agent.tool(effect="write")
    async def count(x: str) -> int:
        runs.append(x)
        return len(runs) - 1

    return runs


@pytest.mark.spec("carmy/1 4.2")
def test_the_memory_forgets_in_time() -> None:
    clock = Clock()
    agent = AgentRouter(store=MemoryStore(ttl_seconds=60, clock=clock))
    runs = counting(agent)

    with TestClient(app_of(agent)) as client:
        post(client, "count", {"x": "a"}, request_id="r")
        clock.now = 59
        post(client, "count", {"x": "a"}, request_id="r")
        clock.now = 200
        post(client, "count", {"x": "a"}, request_id="r")

    assert runs == ["a", "a"]


@pytest.mark.spec("carmy/1 4.5")
async def test_a_store_full_of_unfinished_calls_says_so() -> None:
    agent = AgentRouter(store=MemoryStore(max_entries=1))
    begun, may_end = anyio.Event(), anyio.Event()

    @agent.tool(effect="write", parallel_safe=True)
    async def work() -> str:
        begun.set()
        await may_end.wait()
        return "done"

    app = app_of(agent)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: answer(app, "work", request_id="a"))
        with anyio.fail_after(5):
            await begun.wait()
        full = await answer(app, "work", request_id="b")
        may_end.set()

    after = await answer(app, "work", request_id="b")
    error = full["error"]
    assert (error["code"], error["category"]) == ("IDEMPOTENCY_CAPACITY", "capacity")
    assert error["retryable"] is error["recoverable"] is True
    assert full["_agent"]["next_actions"][0]["tool"] == "work"
    assert after["data"] == "done"


class BrokenStore(MemoryStore):
    """Fails where it is told to."""

    def __init__(self, *broken: str) -> None:
        super().__init__()
        self.broken = set(broken)

    async def reserve(
        self, key: Key, *, fingerprint: str, execution_id: str, may_repeat: bool
    ) -> Reservation:
        if "reserve" in self.broken:
            raise ConnectionError("secret-host:6379")
        return await super().reserve(
            key, fingerprint=fingerprint, execution_id=execution_id, may_repeat=may_repeat
        )

    async def complete(self, key: Key, *, execution_id: str, record: Record) -> bool:
        if "complete" in self.broken:
            raise ConnectionError("secret-host:6379")
        return await super().complete(key, execution_id=execution_id, record=record)


@pytest.mark.spec("carmy/1 4.5")
def test_a_store_that_fails_before_the_tool_lets_nothing_run() -> None:
    store = BrokenStore("reserve")
    agent = AgentRouter(store=store)
    runs = counting(agent)

    with TestClient(app_of(agent)) as client:
        failed = post(client, "count", {"x": "a"}, request_id="r")
        without = post(client, "count", {"x": "b"})
        store.broken.clear()
        again = post(client, "count", {"x": "a"}, request_id="r")

    error = failed.json()["error"]
    assert failed.status_code == 500
    assert (error["code"], error["category"]) == ("STORE_ERROR", "internal")
    assert error["retryable"] is error["recoverable"] is True
    assert error["retry_after"] == 1
    assert failed.headers["retry-after"] == "1"
    assert "secret" not in failed.text
    assert without.status_code == again.status_code == 200
    assert runs == ["b", "a"]


@pytest.mark.spec("carmy/1 4.2")
def test_a_store_that_fails_while_recording_takes_no_answer_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = BrokenStore("complete")
    agent = AgentRouter(store=store)
    runs = counting(agent)

    with TestClient(app_of(agent)) as client, caplog.at_level(logging.ERROR, "fastapi_carmy"):
        first = post(client, "count", {"x": "a"}, request_id="r")
        store.broken.clear()
        second = post(client, "count", {"x": "a"}, request_id="r")

    assert first.json()["data"] == 0
    assert code(second) == "EXECUTION_UNCERTAIN"
    assert second.json()["error"]["details"]["execution_id"] == first.json()["execution_id"]
    assert runs == ["a"]
    assert "secret-host" in caplog.text


@pytest.mark.spec("carmy/1 4.2")
def test_the_host_reconciles_a_call_of_which_nobody_knows() -> None:
    store = BrokenStore("complete")
    agent = AgentRouter(store=store)
    runs = counting(agent)

    with TestClient(app_of(agent)) as client:
        ids = [
            post(client, "count", {"x": "a"}, request_id=request_id).json()["execution_id"]
            for request_id in ("r", "s")
        ]
        store.broken.clear()
        portal = client.portal
        assert portal is not None
        body = to_json({"execution_id": ids[0], "status": "completed", "data": 41, "_agent": {}})
        record = Record(ids[0], "completed", body)
        key = Key(None, None, "r")
        recorded = portal.call(
            lambda: agent.store.complete(key, execution_id=ids[0], record=record)
        )
        freed = portal.call(lambda: agent.store.release(Key(None, None, "s"), execution_id=ids[1]))
        replay = post(client, "count", {"x": "a"}, request_id="r")
        again = post(client, "count", {"x": "a"}, request_id="s")

    assert (recorded, freed) == (True, True)
    assert replay.content == body
    assert again.json()["data"] == 2
    assert len(runs) == 3
