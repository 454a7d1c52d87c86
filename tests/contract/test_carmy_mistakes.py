"""Mistakes of a host that must fail loudly, and closed. Source: carmy/1, sections 4.2 and 4.5."""

import math
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import pytest

from fastapi_carmy import AgentRouter, Caller
from fastapi_carmy.errors import ToolError
from fastapi_carmy.stores import MemoryStore
from fastapi_carmy.stores.base import Key, Reservation
from tests.support.calls import answer, app_of


class SilentStore(MemoryStore):
    """A store whose author forgot to answer."""

    async def reserve(
        self, key: Key, *, fingerprint: str, execution_id: str, may_repeat: bool
    ) -> Reservation:
        return cast("Reservation", None)


@pytest.mark.spec("carmy/1 4.5")
async def test_a_store_that_answers_something_else_lets_nothing_run() -> None:
    agent = AgentRouter(store=SilentStore())

    @agent.tool(effect="write")
    async def work() -> None:
        raise AssertionError

    result = await answer(app_of(agent), "work", request_id="r")

    assert result["error"]["code"] == "STORE_ERROR"


@pytest.mark.spec("carmy/1 4.4")
def test_permissions_in_one_text_are_refused_since_parts_of_them_would_count() -> None:
    with pytest.raises(TypeError, match="set of texts"):
        Caller("anna", permissions=cast("Any", "orders confirm:wipe_cache"))


def test_permissions_of_any_collection_become_a_set() -> None:
    assert Caller(permissions=cast("Any", ["a", "b"])).permissions == frozenset({"a", "b"})


@pytest.mark.spec("carmy/1 4.5")
@pytest.mark.parametrize(
    "option",
    [
        {"timeout_seconds": 0},
        {"timeout_seconds": -1},
        {"timeout_seconds": math.nan},
        {"timeout_seconds": "5"},
        {"on_disconnect": "Finish"},
        {"confirmation": True},
    ],
    ids=str,
)
def test_an_option_that_makes_no_sense_stops_the_start(option: dict[str, Any]) -> None:
    async def work() -> None: ...

    with pytest.raises(ToolError, match=next(iter(option))) as caught:
        AgentRouter().add_tool(work, effect="write", **option)

    assert caught.value.tool == "work"


@pytest.mark.spec("carmy/1 4.1")
async def test_a_generator_that_never_awaits_still_meets_its_deadline() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read", timeout_seconds=0.05)
    async def endless() -> AsyncIterator[int]:
        while True:
            yield 1

    with anyio.fail_after(5):
        result = await answer(app_of(agent), "endless")

    assert result["error"]["code"] == "TIMEOUT"
