"""Starting and stopping: with the application's own lifespan, again and again, or not at all."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from fastapi_carmy import AgentRouter
from fastapi_carmy.errors import ConfigurationError, ToolError
from fastapi_carmy.stores import Key
from tests.support.asgi import execute, lifespan
from tests.support.calls import answer, app_of, post
from tests.support.gates import Gate, reached
from tests.support.stores import GatedStore

pytestmark = pytest.mark.spec("carmy/1 4.3")


class NotingStore(GatedStore):
    """Notes when it is closed."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__("none")
        self._notes = notes

    async def aclose(self) -> None:
        await super().aclose()
        self._notes.append("store closed")


def noting_lifespan(
    notes: list[str], name: str, state: Mapping[str, object] | None = None
) -> Callable[[Any], Any]:
    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Mapping[str, object] | None]:
        notes.append(f"{name} opened")
        yield state
        notes.append(f"{name} closed")

    return run


def counting(agent: AgentRouter, name: str = "count") -> list[int]:
    runs: list[int] = []

    @agent.tool(effect="write", name=name)
    async def count() -> int:
        runs.append(len(runs))
        return runs[-1]

    return runs


def test_the_applications_own_lifespan_and_state_are_there() -> None:
    notes: list[str] = []
    agent = AgentRouter(
        store=NotingStore(notes), lifespan=noting_lifespan(notes, "router", {"inner": 1, "both": 1})
    )
    app = FastAPI(lifespan=noting_lifespan(notes, "app", {"outer": 2, "both": 2}))
    app.include_router(agent)

    @agent.tool(effect="read")
    async def state(request: Request) -> dict[str, int]:
        return {name: getattr(request.state, name) for name in ("inner", "outer", "both")}

    with TestClient(app) as client:
        assert notes == ["app opened", "router opened"]
        found = post(client, "state").json()["data"]

    assert found == {"inner": 1, "outer": 2, "both": 2}
    assert notes[2:] == ["store closed", "router closed", "app closed"]


async def test_executions_have_stopped_before_the_users_resources_close() -> None:
    notes: list[str] = []
    gate = Gate()
    agent = AgentRouter(store=NotingStore(notes), lifespan=noting_lifespan(notes, "router"))
    app = FastAPI(lifespan=noting_lifespan(notes, "app"))
    app.include_router(agent)

    async def session() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await anyio.lowlevel.checkpoint()
            notes.append("session closed")

    @agent.tool(effect="write")
    async def work(session: Annotated[None, Depends(session)]) -> None:
        try:
            await gate()
        finally:
            await anyio.lowlevel.checkpoint()
            notes.append("tool stopped")

    async with anyio.create_task_group() as tasks, lifespan(app):
        tasks.start_soon(answer, app, "work")
        tasks.start_soon(lambda: answer(app, "work", request_id="waits"))
        await reached(gate.entered)

    assert notes == [
        "app opened",
        "router opened",
        "tool stopped",
        "session closed",
        "store closed",
        "router closed",
        "app closed",
    ]
    assert gate.left == ["CancelledError"]


async def test_a_stream_that_is_still_in_a_guard_is_stopped_too() -> None:
    notes: list[str] = []
    gate = Gate()

    async def guard() -> AsyncIterator[None]:
        try:
            await gate()
            yield
        finally:
            notes.append("guard closed")

    agent = AgentRouter(
        dependencies=[Depends(guard)],
        caller=lambda: None,
        store=NotingStore(notes),
        lifespan=noting_lifespan(notes, "router"),
    )
    runs = counting(agent)
    app = app_of(agent)

    async with anyio.create_task_group() as tasks, lifespan(app):

        async def refused() -> None:
            async with execute(app, "count", stream=True) as exchange:
                assert (await exchange.json())["error"]["code"] == "CANCELLED"

        tasks.start_soon(refused)
        await reached(gate.entered)

    assert notes == ["router opened", "guard closed", "store closed", "router closed"]
    assert runs == []


def test_two_routers_each_have_their_own_lifespan() -> None:
    notes: list[str] = []
    app = FastAPI()
    for name in ("first", "second"):
        agent = AgentRouter(
            store=NotingStore(notes), server=name, lifespan=noting_lifespan(notes, name)
        )
        counting(agent, name)
        app.include_router(agent, prefix=f"/{name}")

    with TestClient(app) as client:
        for name in ("first", "second"):
            assert client.get(f"/{name}/.well-known/agent").json()["server"] == name
            assert post(client, name, path=f"/{name}/agent/execute").json()["data"] == 0

    assert notes.count("store closed") == 2
    assert sorted(notes[-4:]) == sorted(
        ["store closed", "second closed", "store closed", "first closed"]
    )


@pytest.mark.parametrize("prefix", ["", "/api"])
@pytest.mark.parametrize("in_the_router", [False, True], ids=["of-the-include", "of-the-router"])
def test_two_routers_on_the_same_paths_stop_the_start(prefix: str, in_the_router: bool) -> None:
    app = FastAPI()
    for _ in range(2):
        if in_the_router:
            app.include_router(AgentRouter(prefix=prefix))
        else:
            app.include_router(AgentRouter(), prefix=prefix)

    with pytest.raises(ConfigurationError, match=rf"'{prefix}/[a-z./-]+'"), TestClient(app):
        pass


def test_the_same_application_starts_again() -> None:
    notes: list[str] = []
    agent = AgentRouter(store=NotingStore(notes), lifespan=noting_lifespan(notes, "router"))
    runs = counting(agent)
    app = app_of(agent)

    for number in range(3):
        with TestClient(app) as client:
            # Each start has a loop of its own; the records outlive them.
            assert post(client, "count", request_id=f"r{number}").json()["data"] == number
            assert post(client, "count", request_id="r0").json()["data"] == 0

    assert runs == [0, 1, 2]
    assert notes == ["router opened", "store closed", "router closed"] * 3


def test_a_start_that_fails_in_the_users_lifespan_leaves_nothing_behind() -> None:
    notes: list[str] = []
    may_start = [False, True]

    @asynccontextmanager
    async def flaky(app: Any) -> AsyncIterator[None]:
        if not may_start.pop(0):
            raise OSError("No database.")
        yield

    agent = AgentRouter(store=NotingStore(notes), lifespan=flaky)
    counting(agent)
    app = app_of(agent)

    with pytest.raises(OSError, match="No database"), TestClient(app):
        pass
    with TestClient(app) as client:
        assert post(client, "count").json()["data"] == 0

    assert notes == ["store closed"]


def test_a_router_that_is_included_twice_closes_its_store_once() -> None:
    notes: list[str] = []
    agent = AgentRouter(store=NotingStore(notes))
    counting(agent)
    app = FastAPI()
    app.include_router(agent, prefix="/one")
    app.include_router(agent, prefix="/two")

    with TestClient(app) as client:
        answers = [
            post(client, "count", request_id="r", path=f"/{place}/agent/execute")
            for place in ("one", "two")
        ]

    assert answers[0].content == answers[1].content
    assert notes == ["store closed"]


def test_a_router_in_two_applications_closes_its_store_with_the_last_one() -> None:
    notes: list[str] = []
    agent = AgentRouter(store=NotingStore(notes))
    runs = counting(agent)

    with TestClient(app_of(agent)) as second:
        with TestClient(app_of(agent, prefix="/other")) as first:
            assert post(first, "count", path="/other/agent/execute").json()["data"] == 0
        assert notes == []
        assert post(second, "count").json()["data"] == 1

    assert notes == ["store closed"]
    assert runs == [0, 1]


async def test_the_application_that_stops_first_leaves_the_other_ones_calls_alone() -> None:
    gate = Gate()
    agent = AgentRouter()

    @agent.tool(effect="write")
    async def work() -> str:
        await gate()
        return "done"

    stays, goes = app_of(agent), app_of(agent)

    async with lifespan(stays), execute(stays, "work") as exchange:
        async with lifespan(goes):
            await reached(gate.entered)
        gate.may_go_on.set()
        found = await exchange.json()

    assert found["data"] == "done"


def mounted(agent: AgentRouter) -> ASGIApp:
    app = FastAPI()
    app.mount("/sub", app_of(agent))
    return app


def mounted_in_starlette(agent: AgentRouter) -> ASGIApp:
    return Starlette(routes=[Mount("/sub", app=agent)])


@pytest.mark.parametrize("make", [mounted, mounted_in_starlette])
@pytest.mark.parametrize("has_outer_lifespan", [False, True])
def test_without_a_lifespan_the_first_request_builds_everything(
    make: Callable[[AgentRouter], ASGIApp], has_outer_lifespan: bool
) -> None:
    agent = AgentRouter()
    runs = counting(agent)
    path = "/sub/agent/execute"
    client = TestClient(make(agent))

    if has_outer_lifespan:
        with client:
            answers = [post(client, "count", request_id="r", path=path) for _ in range(2)]
    else:
        # A new loop for each request.
        answers = [post(client, "count", request_id="r", path=path) for _ in range(2)]

    assert [found.json()["data"] for found in answers] == [0, 0]
    assert runs == [0]


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_without_a_lifespan_each_request_may_have_a_loop_of_its_own(kind: str) -> None:
    agent = AgentRouter(max_threads=1)

    if kind == "async":

        @agent.tool(effect="read")
        async def work() -> str:
            return "done"

    else:

        @agent.tool(effect="read", name="work")
        def work_in_thread() -> str:
            return "done"

    client = TestClient(app_of(agent))

    assert [post(client, "work").json()["data"] for _ in range(3)] == ["done"] * 3


async def test_the_store_is_closed_by_hand_where_no_lifespan_does() -> None:
    notes: list[str] = []
    gate = Gate()
    agent = AgentRouter(store=NotingStore(notes))

    @agent.tool(effect="write")
    async def work() -> None:
        await gate()

    async with execute(app_of(agent), "work", request_id="r") as exchange:
        await reached(gate.entered)
        await agent.aclose()
        found = await exchange.json()

    assert found["status"] == "cancelled"
    assert notes == ["store closed"]
    entry = await agent.store.lookup(Key(None, None, "r"))
    assert entry is not None
    assert entry.state == "abandoned"


def test_a_mistake_that_shows_late_names_the_tool_when_the_application_starts() -> None:
    agent = AgentRouter()

    async def ship(order: "Unknown") -> None:  # type: ignore[name-defined] # noqa: F821
        ...

    agent.add_tool(ship, effect="write")

    with pytest.raises(ToolError, match="'ship'") as raised, TestClient(app_of(agent)):
        pass

    assert raised.value.tool == "ship"


def test_two_tools_of_one_name_are_named_when_the_application_starts() -> None:
    agent = AgentRouter()
    counting(agent)
    counting(agent)

    with pytest.raises(ToolError, match="'count'"), TestClient(app_of(agent)):
        pass
