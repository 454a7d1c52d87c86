"""What stops an execution, and what becomes of its request_id. Source: carmy/1, 4.2 and 4.3."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import anyio
import pytest
from fastapi import Depends, FastAPI
from starlette.types import Receive, Scope, Send

from fastapi_carmy import AgentContext, AgentRouter
from fastapi_carmy.stores import MemoryStore
from fastapi_carmy.stores.base import Key
from tests.support.asgi import Exchange, connect, execute, lifespan
from tests.support.calls import answer, app_of
from tests.support.gate import Gate


class Story:
    """What happened to a tool that waits until it is stopped, or let go."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.over = anyio.Event()
        self.may_end = anyio.Event()
        self.seen: list[str] = []

    async def dependency(self) -> AsyncIterator[str]:
        try:
            yield "open"
        except Exception as error:
            self.seen.append(f"dependency saw {type(error).__name__}")
            raise
        else:
            self.seen.append("dependency committed")
        finally:
            await anyio.lowlevel.checkpoint()
            self.seen.append("dependency closed")
            self.over.set()

    async def wait(self, context: AgentContext) -> str:
        self.begun.set()
        try:
            await self.may_end.wait()
        finally:
            await anyio.lowlevel.checkpoint()
            self.seen.append(f"tool ended, told {context.is_cancelled}")
        return "done"


STOPPED = ["tool ended, told True", "dependency saw AgentError", "dependency closed"]
FINISHED = ["tool ended, told False", "dependency committed", "dependency closed"]


def waiting(story: Story, agent: AgentRouter | None = None, **options: Any) -> FastAPI:
    agent = AgentRouter() if agent is None else agent
    options = {"effect": "write", **options}

    @agent.tool(**options)
    async def work(context: AgentContext, needed: Annotated[str, Depends(story.dependency)]) -> str:
        return await story.wait(context)

    return app_of(agent)


async def hang_up(exchange: Exchange, story: Story) -> None:
    with anyio.fail_after(5):
        await story.begun.wait()
        exchange.hang_up()
        await exchange.finished.wait()


@pytest.mark.spec("carmy/1 7.10")
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_hanging_up_cancels_the_tool_and_then_closes_its_dependencies(stream: bool) -> None:
    story = Story()

    async with execute(waiting(story), "work", stream=stream) as exchange:
        with anyio.fail_after(1):
            await hang_up(exchange, story)

    assert story.seen == STOPPED


@pytest.mark.spec("carmy/1 4.2")
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_write_that_was_abandoned_is_uncertain_until_the_host_reconciles_it(
    stream: bool,
) -> None:
    story, agent = Story(), AgentRouter()
    app = waiting(story, agent)

    async with execute(app, "work", request_id="r", stream=stream) as exchange:
        await hang_up(exchange, story)
    uncertain = await answer(app, "work", request_id="r")
    still = await answer(app, "work", request_id="r")

    error = uncertain["error"]
    assert (error["code"], error["category"]) == ("EXECUTION_UNCERTAIN", "conflict")
    assert error["details"]["state"] == "abandoned"
    assert uncertain["_agent"]["next_actions"] == []
    assert still["error"] == error
    assert story.seen == STOPPED

    key, execution_id = Key(None, None, "r"), error["details"]["execution_id"]
    assert await agent.store.release(key, execution_id=execution_id)
    story.may_end.set()
    assert (await answer(app, "work", request_id="r"))["data"] == "done"


@pytest.mark.spec("carmy/1 4.2")
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize(
    "options",
    [{"effect": "none"}, {"effect": "read"}, {"effect": "write", "idempotent": True}],
    ids=["none", "read", "idempotent"],
)
async def test_a_tool_that_is_safe_to_repeat_runs_again(
    options: dict[str, Any], stream: bool
) -> None:
    story = Story()
    app = waiting(story, **options)

    async with execute(app, "work", request_id="r", stream=stream) as exchange:
        await hang_up(exchange, story)
    story.may_end.set()
    again = await answer(app, "work", request_id="r")

    assert again["data"] == "done"
    assert story.seen == STOPPED + FINISHED


@pytest.mark.spec("carmy/1 4.3")
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_tool_that_finishes_gives_its_answer_to_the_retry(stream: bool) -> None:
    story = Story()
    app = waiting(story, on_disconnect="finish")

    async with execute(app, "work", request_id="r", stream=stream) as exchange:
        with anyio.fail_after(5):
            await story.begun.wait()
            exchange.hang_up()
            # Longer than it takes to notice a hang-up.
            await anyio.sleep(0.1)
            running = await answer(app, "work", request_id="r")
            story.may_end.set()
            await exchange.finished.wait()
    retry = await answer(app, "work", request_id="r")

    assert running["error"]["details"]["state"] == "running"
    assert retry["data"] == "done"
    assert story.seen == FINISHED


@pytest.mark.spec("carmy/1 4.3")
async def test_a_router_can_let_all_its_tools_finish() -> None:
    story = Story()
    agent = AgentRouter(on_disconnect="finish")

    @agent.tool(effect="write")
    async def work(context: AgentContext) -> str:
        return await story.wait(context)

    @agent.tool(effect="write", on_disconnect="cancel")
    async def fragile(context: AgentContext) -> str:
        return await story.wait(context)

    app = app_of(agent)

    async with execute(app, "fragile", request_id="f") as exchange:
        await hang_up(exchange, story)
    story.begun = anyio.Event()
    async with execute(app, "work", request_id="w") as exchange:
        with anyio.fail_after(5):
            await story.begun.wait()
            exchange.hang_up()
            story.may_end.set()
            await exchange.finished.wait()

    assert (await answer(app, "fragile", request_id="f"))["error"]["code"] == "EXECUTION_UNCERTAIN"
    assert (await answer(app, "work", request_id="w"))["data"] == "done"


@pytest.mark.spec("carmy/1 4.2")
@pytest.mark.parametrize("place", ["turn", "dependency"])
async def test_hanging_up_before_the_tool_ran_leaves_the_request_id_free(place: str) -> None:
    agent = AgentRouter()
    waits, may_go = anyio.Event(), anyio.Event()
    runs: list[str] = []

    async def dependency() -> None:
        if place == "dependency":
            waits.set()
            await may_go.wait()

    @agent.tool(effect="write")
    async def work(x: str, needed: Annotated[None, Depends(dependency)]) -> str:
        runs.append(x)
        if x == "first":
            waits.set()
            await may_go.wait()
        return x

    app = app_of(agent)

    async with anyio.create_task_group() as tasks:
        if place == "turn":
            tasks.start_soon(lambda: answer(app, "work", {"x": "first"}))
            await waits.wait()
        second = {"x": "second"}
        async with execute(app, "work", second, request_id="r", stream=True) as exchange:
            assert (await exchange.frame()).event == "execution.started"
            with anyio.fail_after(5):
                await waits.wait()
                exchange.hang_up()
                await exchange.finished.wait()
        may_go.set()
    again = await answer(app, "work", second, request_id="r")

    assert again["data"] == "second"
    assert runs.count("second") == 1


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize("place", ["guard", "policy"])
async def test_hanging_up_before_anything_was_claimed_runs_nothing(place: str) -> None:
    waits = anyio.Event()
    runs: list[str] = []

    async def wait(here: str) -> None:
        if here == place:
            waits.set()
            await anyio.sleep_forever()

    class Slow:
        async def check(self, call: object) -> None:
            await wait("policy")

    async def guard() -> None:
        await wait("guard")

    agent = AgentRouter(policies=[Slow()])

    @agent.tool(effect="write", dependencies=[Depends(guard)])
    async def work() -> None:
        runs.append("work")

    async with execute(app_of(agent), "work", request_id="r") as exchange:
        with anyio.fail_after(5):
            await waits.wait()
            exchange.hang_up()
            await exchange.finished.wait()

    assert runs == []


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_hanging_up_in_the_middle_of_the_body_closes_the_guards(accept: str) -> None:
    seen: list[str] = []

    async def guard() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await anyio.lowlevel.checkpoint()
            seen.append("closed")

    agent = AgentRouter(dependencies=[Depends(guard)])
    headers = {"Content-Type": "application/json", "Accept": accept}

    async with connect(
        app_of(agent), "/agent/execute", method="POST", headers=headers, body=endless()
    ) as exchange:
        exchange.hang_up()
        with anyio.fail_after(5):
            await exchange.finished.wait()

    assert seen == ["closed"]


def endless() -> Iterator[bytes]:
    while True:
        yield b" "


@pytest.mark.spec("carmy/1 4.3")
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_sync_tool_is_told_of_a_hang_up_and_keeps_its_turn(stream: bool) -> None:
    agent = AgentRouter()
    told: list[bool] = []
    entered = 0

    with Gate() as gate:

        @agent.tool(effect="write")
        def work(context: AgentContext) -> str:
            nonlocal entered
            entered += 1
            gate.pass_through()
            told.append(context.is_cancelled)
            return "done"

        app = app_of(agent)

        async with execute(app, "work", request_id="r", stream=stream) as exchange:
            await gate.entered()
            exchange.hang_up()
            # Longer than it takes to notice a hang-up.
            await anyio.sleep(0.1)
            assert not exchange.finished.is_set()
            gate.open()
            with anyio.fail_after(5):
                await exchange.finished.wait()
        uncertain = await answer(app, "work", request_id="r")

    assert told == [True]
    assert uncertain["error"]["details"]["state"] == "abandoned"
    assert entered == 1


@pytest.mark.spec("carmy/1 4.3")
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_stopping_server_waits_for_live_executions_before_it_closes_the_store(
    stream: bool,
) -> None:
    story = Story()

    class Store(MemoryStore):
        async def aclose(self) -> None:
            story.seen.append("store closed")

    app = waiting(story, AgentRouter(store=Store()))
    answers: list[Any] = []

    async def call(state: dict[str, Any]) -> None:
        async with execute(app, "work", request_id="r", stream=stream, state=state) as exchange:
            if stream:
                answers.append((await exchange.frames())[-1].json())
            else:
                answers.append(await exchange.json())

    async with anyio.create_task_group() as tasks, lifespan(app) as state:
        tasks.start_soon(call, state)
        with anyio.fail_after(5):
            await story.begun.wait()

    error = answers[0]["error"]
    assert (error["code"], error["category"]) == ("CANCELLED", "cancelled")
    assert answers[0]["status"] == "cancelled"
    assert story.seen == [*STOPPED, "store closed"]
    again = await answer(app, "work", request_id="r")
    assert again["error"]["details"]["state"] == "abandoned"


@pytest.mark.spec("carmy/1 4.3")
async def test_a_server_stops_in_time_even_when_a_tool_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = AgentRouter(stop_seconds=0.05)

    with Gate() as gate:

        @agent.tool(effect="read")
        def stubborn() -> None:
            gate.pass_through()

        app = app_of(agent)

        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(5):
                async with lifespan(app):
                    tasks.start_soon(lambda: answer(app, "stubborn"))
                    await gate.entered()
            gate.open()

    assert "1 executions did not stop within 0.05 s." in caplog.text


@pytest.mark.spec("carmy/1 4.3")
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_the_hosts_own_time_limit_stops_an_execution_in_order(stream: bool) -> None:
    story = Story()
    inner = waiting(story)

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        with anyio.move_on_after(0.1):
            await inner(scope, receive, send)

    async with execute(limited, "work", request_id="r", stream=stream) as exchange:
        with anyio.fail_after(5):
            await exchange.finished.wait()
            await story.over.wait()

    uncertain = await answer(inner, "work", request_id="r")
    # The host's scope may interrupt each `await` of the tool's own `finally`.
    assert story.seen[-2:] == STOPPED[-2:]
    assert uncertain["error"]["details"]["state"] == "abandoned"
