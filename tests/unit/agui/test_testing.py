"""The tools for testing agents tell what is wrong."""

from typing import Any

import anyio
import pytest
from ag_ui import core
from ag_ui.core import BaseEvent, EventType

from fastapi_carmy.agui.context import RunContext
from fastapi_carmy.agui.running import run_events
from fastapi_carmy.agui.testing import assert_events, collect, open_context, run_input

Ctx = RunContext[Any]


async def greeter(run: Ctx) -> None:
    await run.say("Hello!")


async def test_what_is_expected_passes() -> None:
    events = await collect(greeter)

    assert_events(events)
    assert_events(events, run_input=run_input())
    assert_events(
        events,
        [
            EventType.RUN_STARTED,
            "TEXT_MESSAGE_START",
            {"type": "TEXT_MESSAGE_CONTENT", "delta": "Hello!"},
            {"messageId": "run-1-msg-1"},
            "RUN_FINISHED",
        ],
    )


async def test_what_is_not_expected_is_told() -> None:
    events = await collect(greeter)

    with pytest.raises(AssertionError, match="RUN_STARTED"):
        assert_events(events, ["RUN_STARTED", "RUN_FINISHED"])
    with pytest.raises(AssertionError, match=r"Event 2 .*Hello!"):
        assert_events(events, ["RUN_STARTED", {}, {"delta": "Bye!"}, {}, {}])
    with pytest.raises(AssertionError, match="run-ids"):
        assert_events(events, run_input=run_input(run_id="another"))


def test_an_order_that_is_wrong_is_told() -> None:
    start = core.RunStartedEvent(thread_id="t", run_id="r")
    orphan = core.TextMessageEndEvent(message_id="m")

    with pytest.raises(AssertionError, match="not-open"):
        assert_events([start, orphan])
    with pytest.raises(AssertionError, match="no end"):
        assert_events([start])


def test_an_input_is_made_from_what_the_user_says() -> None:
    told = run_input("hi", state={"a": 1})

    run, _ = open_context(told)

    assert run.last_user_text == "hi"
    assert run.state == {"a": 1}


async def test_closing_the_events_early_stops_the_run() -> None:
    stopped = anyio.Event()

    async def endless(run: Ctx) -> None:
        try:
            while True:
                await run.say("x")
        finally:
            stopped.set()

    events = run_events(endless, run_input())
    seen: list[BaseEvent] = []

    with anyio.fail_after(5):
        async for event in events:
            seen.append(event)
            if len(seen) == 3:
                break
        await events.aclose()

    assert stopped.is_set()
