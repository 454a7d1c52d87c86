"""Sample agents, an application that serves them, and a client that reads their events."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
from ag_ui import core
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic_core import from_json, to_json

from fastapi_carmy import AgentError, AgentRouter, ErrorCategory
from fastapi_carmy.agui import CancelToken, RunContext, RunOutcome

__all__ = (
    "INPUT",
    "Endless",
    "Hits",
    "Prompt",
    "Waiting",
    "app_with",
    "body",
    "broken",
    "cautious",
    "chatty",
    "chunks",
    "deployer",
    "events_in",
    "forecaster",
    "patches",
    "planner",
    "post",
    "reader",
    "searcher",
    "stateful",
    "stream",
    "texts_in",
    "types_in",
    "verbose",
)

INPUT: Mapping[str, Any] = {
    "threadId": "thread-1",
    "runId": "run-1",
    "messages": [],
    "tools": [],
    "context": [],
}

Ctx = RunContext[Any]
Event = dict[str, Any]

LIMIT_SECONDS = 20.0


def body(**fields: Any) -> bytes:
    """Return a request body."""
    return to_json({**INPUT, **fields})


# Agents.


async def chatty(run: Ctx) -> None:
    """A step with a message and a call that nobody should see."""
    async with run.step("answer") as step:
        async with step.message() as message:
            await message.delta("Hello, ")
            await message.delta("world.")
        async with step.tool_call("internal_debug") as call:
            await call.args("{}")


async def broken(run: Ctx) -> None:
    """Says something, then fails."""
    await run.say("Looking that up…")
    raise AgentError("WEATHER_DOWN", "the weather service is down", ErrorCategory.CAPACITY)


async def cautious(run: Ctx) -> RunOutcome:
    """Asks before it does something."""
    if run.resume_for("delete-everything") is None:
        await run.say("This deletes everything.")
        return run.interrupt(
            id="delete-everything", reason="tool_approval", message="Delete everything?"
        )
    await run.say("Deleted.")
    return core.RunFinishedSuccessOutcome(type="success")


async def verbose(run: Ctx) -> None:
    """One of nearly everything."""
    await run.set_state({"cityName": "Seoul"})
    await run.custom("ping", {"seqNo": 1})
    async with run.step("answer") as step:
        await step.think("They want the weather.")
        await step.say("Let me check.")
        async with step.tool_call("get_weather") as call:
            await call.args_json({"city": "Seoul"})
            await call.result_json({"tempC": 21})
    run.emit(
        core.StateDeltaEvent.model_validate(
            {"delta": [{"op": "add", "path": "/tempC", "value": 21}]}
        )
    )


async def chunks(run: Ctx) -> None:
    """Everything in chunks, ids on first ones only."""

    def think(text: str, message: str | None = None) -> None:
        run.emit(core.ReasoningMessageChunkEvent(message_id=message, delta=text))

    def say(text: str, message: str | None = None) -> None:
        run.emit(core.TextMessageChunkEvent(message_id=message, delta=text))

    def call(text: str, call_id: str | None = None, name: str | None = None) -> None:
        run.emit(core.ToolCallChunkEvent(tool_call_id=call_id, tool_call_name=name, delta=text))

    think("Two things ", "think-1")
    think("to say, ")
    think("then a lookup.")
    say("Hello, ", "say-1")
    say("wor")
    say("ld")
    say("Good", "say-2")
    say("bye")
    call('{"q":', "call-1", "search")
    call('"rust"}')
    say("!", "say-1")


class Hits(BaseModel):
    """A state with one counter."""

    hits: int = 0


async def stateful(run: RunContext[Hits]) -> None:
    """Counts on from where the client is."""
    run.state.hits += 1
    await run.publish_state()


async def patches(run: Ctx) -> None:
    """Sends a patch that no client can apply."""

    def delta(*operations: Event) -> None:
        run.emit(core.StateDeltaEvent.model_validate({"delta": list(operations)}))

    run.emit(core.StateSnapshotEvent(snapshot={"seen": 1}))
    delta({"op": "add", "path": "/kept", "value": True}, {"op": "remove", "path": "/never/here"})
    delta({"op": "replace", "path": "/seen", "value": 2})


async def reader(run: Ctx) -> list[Any]:
    """Answers with the conversation as it came."""
    return [message.model_dump(mode="json", by_alias=True) for message in run.messages]


async def forecaster(run: Ctx) -> None:
    """Thinks, says it, and shows it."""
    await run.think("They want the weather in Seoul.")
    await run.say("It is 21 degrees in Seoul.")
    await run.set_state({"city": "Seoul", "tempC": 21})
    await run.set_state({**run.state, "checked": True})


async def searcher(run: Ctx) -> None:
    """Shows what it does besides the conversation."""
    shown = await run.activity("search", {"query": "tea", "hits": 0})
    await run.activity_delta(
        shown,
        "search",
        [
            {"op": "replace", "path": "/hits", "value": 12},
            {"op": "add", "path": "/done", "value": True},
        ],
    )


async def planner(run: Ctx) -> RunOutcome | None:
    """Needs two answers in one request."""
    questions = [core.Interrupt(id="flight", reason="x"), core.Interrupt(id="hotel", reason="x")]
    open_questions = [one for one in questions if run.resume_for(one.id) is None]

    if open_questions:
        return run.interrupt(*open_questions)

    await run.say("Booked.")
    return None


async def deployer(run: Ctx) -> RunOutcome | None:
    """Deploys the build that a person names."""
    answer = run.resume_for("deploy")

    if answer is None:
        await run.say("Which build?")
        return run.interrupt(id="deploy", reason="confirmation")

    if answer.status == "cancelled":
        await run.say("Nothing deployed.")
        return None

    if not isinstance(answer.payload, dict) or "build" not in answer.payload:
        raise AgentError("NO_BUILD", "The answer names no build.", ErrorCategory.VALIDATION)

    await run.say(f"Deployed build {answer.payload['build']}.")
    return None


@dataclass
class Watched:
    """An agent whose run a test looks into, from another thread."""

    tokens: list[CancelToken] = field(default_factory=list)
    saw_cancelled: list[bool] = field(default_factory=list)
    emitted: int = 0
    entered: int = 0

    def enter(self, run: Ctx) -> None:
        self.entered += 1
        self.tokens.append(run.cancel_token)


class Endless(Watched):
    """Talks and talks."""

    async def run(self, run: Ctx) -> None:
        self.enter(run)
        try:
            async with run.message() as message:
                for _ in range(10_000):
                    await message.delta("word ")
                    self.emitted += 1
                    await anyio.sleep(0.005)
        finally:
            await anyio.sleep(0.01)
            self.saw_cancelled.append(run.is_cancelled)


class Waiting(Watched):
    """Says one thing, then is silent."""

    async def run(self, run: Ctx) -> None:
        self.enter(run)
        await run.say("One moment.")
        try:
            await anyio.sleep(60)
        finally:
            await anyio.sleep(0.01)
            self.saw_cancelled.append(run.is_cancelled)


class Prompt(Watched):
    """Is done at once."""

    async def run(self, run: Ctx) -> None:
        self.enter(run)
        try:
            await run.say("done")
        finally:
            self.saw_cancelled.append(run.is_cancelled)


# An application and its client.


def app_with(agents: Mapping[str, Any] | None = None, **options: Any) -> FastAPI:
    """Return an application that serves agents.

    Args:
        agents: Path → agent; the options are those of each.
        options: See `AgentRouter.add_agui_route`.
    """
    router = AgentRouter()
    for path, agent in (agents or {}).items():
        router.add_agui_route(path, agent, **options)
    app = FastAPI()
    app.include_router(router)
    return app


@asynccontextmanager
async def stream(
    url: str, content: bytes | AsyncIterator[bytes] | None = None, **headers: str
) -> AsyncIterator[httpx2.Response]:
    """Post an input, and read the answer as it comes."""
    sent = {"content-type": "application/json", "accept": "text/event-stream"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        httpx2.AsyncClient(timeout=LIMIT_SECONDS) as client,
        client.stream(
            "POST", url, content=body() if content is None else content, headers=sent
        ) as response,
    ):
        yield response


async def post(
    url: str, content: bytes | AsyncIterator[bytes] | None = None, **headers: str
) -> httpx2.Response:
    """Post an input, and read the whole answer."""
    async with stream(url, content, **headers) as response:
        await response.aread()
        return response


def events_in(text: str) -> list[Event]:
    """Return the events in a body."""
    frames = [frame for frame in text.split("\n\n") if frame and frame != ":"]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames), frames
    return [from_json(frame.removeprefix("data: ")) for frame in frames]


def types_in(text: str | Sequence[Event]) -> list[str]:
    """Return the types of the events in a body."""
    return [event["type"] for event in (events_in(text) if isinstance(text, str) else text)]


def texts_in(text: str) -> list[str]:
    """Return the texts that messages are made of."""
    return [e["delta"] for e in events_in(text) if e["type"] == "TEXT_MESSAGE_CONTENT"]
