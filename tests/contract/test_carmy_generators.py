"""Tools that hand out their result item by item."""

import threading
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest
from fastapi.testclient import TestClient

from fastapi_carmy import AgentError, AgentRouter, ErrorCategory
from tests.support.asgi import execute
from tests.support.calls import answer, app_of, code, post, stream
from tests.support.gate import Gate


def test_a_generator_that_fails_half_way_fails_as_a_whole() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def track() -> AsyncIterator[int]:
        yield 1
        raise AgentError("LOST", "Lost.", ErrorCategory.NOT_FOUND)

    with TestClient(app_of(agent)) as client:
        frames = stream(client, "track")
        as_json = post(client, "track")

    assert frames[2].json()["partial"] == 1
    assert frames[-1].json()["error"]["code"] == code(as_json) == "LOST"
    assert "data" not in as_json.json()


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_each_item_is_what_the_schema_promises(kind: str) -> None:
    agent = AgentRouter()

    async def track_async() -> AsyncIterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    def track_sync() -> Iterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    agent.add_tool(track_async if kind == "async" else track_sync, name="track", effect="read")

    with TestClient(app_of(agent)) as client:
        answer = post(client, "track")

    assert code(answer) == "INVALID_OUTPUT"
    assert agent.tools[0].output_schema == {"type": "array", "items": {"type": "integer"}}


async def test_an_item_arrives_before_the_next_one_is_made() -> None:
    agent = AgentRouter()
    may_go_on = anyio.Event()

    @agent.tool(effect="read")
    async def track() -> AsyncIterator[str]:
        yield "placed"
        await may_go_on.wait()
        yield "sent"

    async with execute(app_of(agent), "track", stream=True) as exchange:
        first = [await exchange.frame() for _ in range(3)]
        may_go_on.set()
        rest = await exchange.frames()

    assert first[-1].json()["partial"] == "placed"
    assert rest[0].json()["partial"] == "sent"
    assert rest[-1].json()["data"] == ["placed", "sent"]


@pytest.mark.spec("carmy/1 4.3")
@pytest.mark.parametrize("where", ["between items", "in an item"])
async def test_hanging_up_closes_an_async_generator(where: str) -> None:
    agent = AgentRouter()
    begun = anyio.Event()
    seen: list[str] = []

    @agent.tool(effect="read")
    async def track() -> AsyncIterator[int]:
        try:
            for number in range(1_000_000):
                begun.set()
                await anyio.sleep(0 if where == "between items" else 60)
                yield number
        finally:
            await anyio.lowlevel.checkpoint()
            seen.append("closed")

    async with execute(app_of(agent), "track") as exchange:
        with anyio.fail_after(5):
            await begun.wait()
            exchange.hang_up()
            await exchange.finished.wait()

    assert seen == ["closed"]


@pytest.mark.spec("carmy/1 4.1")
async def test_a_sync_generator_that_is_told_to_stop_ends_at_its_next_item() -> None:
    agent = AgentRouter()
    seen: list[str] = []
    pause = threading.Event()

    with Gate() as gate:

        @agent.tool(effect="write", timeout_seconds=0.05)
        def track() -> Iterator[int]:
            try:
                gate.pass_through()
                for number in range(1_000_000):
                    pause.wait(0.001)
                    yield number
            finally:
                seen.append("closed")

        app = app_of(agent)

        async with execute(app, "track", request_id="r") as exchange:
            late = await exchange.json()
            gate.open()
            with anyio.fail_after(5):
                await exchange.finished.wait()
        replay = await answer(app, "track", request_id="r")

    assert late["error"]["code"] == "TIMEOUT"
    assert replay == late
    assert seen == ["closed"]
