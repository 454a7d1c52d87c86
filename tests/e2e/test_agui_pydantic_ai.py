"""The event stream of an existing framework, served with our guarantees around it.

pydantic-ai is in a dependency group of its own (`frameworks`): its adapter takes any
`ag-ui-protocol` from 0.1.10, so both can be installed together.
"""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import pytest
from ag_ui.core import BaseEvent
from starlette.types import ASGIApp

from fastapi_carmy.agui import FilterToolCalls, RunContext
from fastapi_carmy.agui.testing import assert_events, collect, run_input
from tests.support.agui import app_with, body, events_in, texts_in, types_in

pytest.importorskip("pydantic_ai", reason="The group `frameworks` is not installed.")

from pydantic_ai import Agent
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.ui.ag_ui import AGUIAdapter

Ctx = RunContext[Any]


def framework_agent() -> Agent[None, str]:
    def get_weather(city: str) -> str:
        return f"sunny in {city}"

    return Agent(TestModel(custom_output_text="It is sunny in Seoul."), tools=[get_weather])


async def weather(run: Ctx) -> AsyncIterator[BaseEvent]:
    async for event in AGUIAdapter(framework_agent(), run.input).run_stream():
        yield event


async def post(app: ASGIApp) -> httpx2.Response:
    told = body(messages=[{"id": "u", "role": "user", "content": "How is the weather?"}])
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://testserver"
    ) as client:
        return await client.post("/agent", content=told)


async def test_a_frameworks_stream_is_one_run() -> None:
    answer = await post(app_with({"/agent": weather}))

    events = events_in(answer.text)
    assert types_in(events).count("RUN_STARTED") == 1
    assert types_in(events).count("RUN_FINISHED") == 1
    assert events[0]["protocolVersion"] == "1.0"
    assert events[-1]["outcome"] == {"type": "success"}
    assert "".join(texts_in(answer.text)) == "It is sunny in Seoul."
    (call,) = [event for event in events if event["type"] == "TOOL_CALL_START"]
    (result,) = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert call["toolCallName"] == "get_weather"
    assert result["content"].startswith("sunny in")


async def test_a_frameworks_events_pass_the_verifier_and_transformers() -> None:
    told = run_input("How is the weather?")

    events = await collect(
        weather, told, transformers=[lambda: FilterToolCalls.deny("get_weather")]
    )

    assert_events(events, run_input=told)
    assert not [event for event in events if event.type.value.startswith("TOOL_CALL")]


async def test_a_model_that_fails_is_an_error_at_the_end() -> None:
    async def fail(messages: Any, info: AgentInfo) -> AsyncIterator[str]:
        yield "It is"
        raise LookupError("secret")

    async def agent(run: Ctx) -> AsyncIterator[BaseEvent]:
        adapter = AGUIAdapter(Agent(FunctionModel(stream_function=fail)), run.input)
        async for event in adapter.run_stream():
            yield event

    events = await collect(agent, run_input("How is the weather?"))

    assert_events(events)
    assert events[-1].type.value == "RUN_ERROR"


async def test_stopping_a_run_stops_the_framework() -> None:
    stopped = anyio.Event()

    async def endless(messages: Any, info: AgentInfo) -> AsyncIterator[str]:
        try:
            while True:
                yield "word "
                await anyio.sleep(0.001)
        finally:
            stopped.set()

    async def agent(run: Ctx) -> AsyncIterator[BaseEvent]:
        adapter = AGUIAdapter(Agent(FunctionModel(stream_function=endless)), run.input)
        count = 0
        async for event in adapter.run_stream():
            yield event
            count += 1
            if count == 20:
                run.cancel_token.cancel()

    with anyio.fail_after(10):
        events = await collect(agent, run_input("How is the weather?"))
        await stopped.wait()

    assert_events(events)
    assert events[-1].model_dump(mode="json")["outcome"] == {"type": "cancelled"}
