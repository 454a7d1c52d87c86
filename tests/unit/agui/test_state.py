"""The shared state: read in the agent's type, published as little as possible."""

from dataclasses import dataclass, field
from typing import Any

import jsonpatch
import pytest
from ag_ui import core
from ag_ui.core import BaseEvent
from pydantic import BaseModel
from typing_extensions import TypedDict

from fastapi_carmy.agui.context import RunContext
from fastapi_carmy.agui.errors import EventEncodingError, InvalidStateError
from fastapi_carmy.agui.state import StatePublisher, StateType
from fastapi_carmy.agui.testing import assert_events, collect, open_context, run_input

Run = RunContext[Any]


class Counter(BaseModel):
    hits: int = 0


class Needy(BaseModel):
    hits: int


@dataclass
class Board:
    note: str = ""
    revision: int = 1
    title: str = "Board"
    notes: list[str] = field(default_factory=lambda: ["a", "b"])
    counts: dict[str, int] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    urgent: bool = False


class Keyed(TypedDict):
    hits: int


@pytest.mark.spec("ag-ui E.65")
@pytest.mark.parametrize("told", [{"state": None}, {}, {"state": {}}])
async def test_an_empty_state_is_the_default(told: dict[str, Any]) -> None:
    async def agent(run: RunContext[Counter]) -> int:
        return run.state.hits

    events = await collect(agent, run_input(**told), state=Counter)

    assert_events(events, ["RUN_STARTED", {"type": "RUN_FINISHED", "result": 0}])


@pytest.mark.parametrize(
    ("type_", "expected"),
    [(Board, Board()), (list[int], []), (dict[str, int], {}), (int, 0), (None, {})],
)
def test_every_type_that_has_a_default_gives_it(type_: Any, expected: object) -> None:
    assert StateType[Any](type_).read(None) == expected


@pytest.mark.parametrize("type_", [Needy, Keyed])
def test_a_type_without_a_default_refuses_an_empty_state(type_: Any) -> None:
    if type_ is Keyed:
        assert StateType[Any](type_).read({"hits": 1}) == {"hits": 1}
        return

    with pytest.raises(InvalidStateError, match="no default"):
        StateType[Any](type_).read({})


@pytest.mark.spec("ag-ui B.29")
async def test_a_state_of_another_type_ends_the_run_before_the_agent() -> None:
    entered = False

    async def agent(run: RunContext[Counter]) -> None:
        nonlocal entered
        entered = True

    events = await collect(agent, run_input(state={"hits": "seven-secret"}), state=Counter)

    assert_events(events, ["RUN_STARTED", {"type": "RUN_ERROR", "code": "SERIALIZATION"}])
    last = events[-1]
    assert isinstance(last, core.RunErrorEvent)
    assert "state.hits" in last.message
    assert "secret" not in last.message
    assert not entered


@pytest.mark.spec("ag-ui B.29")
@pytest.mark.parametrize("state", [{"x": 1}, [1], "x", 0])
async def test_an_agent_without_a_state_type_takes_any(state: object) -> None:
    async def agent(run: Run) -> object:
        return {"saw": run.state}

    events = await collect(agent, run_input(state=state))

    assert_events(events, ["RUN_STARTED", {"type": "RUN_FINISHED", "result": {"saw": state}}])


async def test_the_type_may_come_from_the_annotation() -> None:
    async def agent(run: RunContext[Counter]) -> int:
        return run.state.hits

    events = await collect(agent, run_input(state={"hits": 3}))

    assert_events(events, ["RUN_STARTED", {"result": 3}])


@pytest.mark.spec("ag-ui E.63")
async def test_a_small_change_is_a_delta() -> None:
    async def agent(run: Run) -> None:
        await run.set_state({"step": 1, "text": "x" * 50})
        await run.set_state({"step": 2, "text": "x" * 50})

    assert_events(
        await collect(agent),
        [
            "RUN_STARTED",
            "STATE_SNAPSHOT",
            {"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/step", "value": 2}]},
            "RUN_FINISHED",
        ],
    )


@pytest.mark.spec("ag-ui E.64")
async def test_the_agent_goes_on_from_the_clients_state() -> None:
    async def agent(run: RunContext[Counter]) -> None:
        assert run.state.hits == 7

        def increment(counter: Counter) -> None:
            counter.hits += 1

        await run.update_state(increment)
        await run.publish_state()

    assert_events(
        await collect(agent, run_input(state={"hits": 7}), state=Counter),
        ["RUN_STARTED", {"type": "STATE_SNAPSHOT", "snapshot": {"hits": 8}}, "RUN_FINISHED"],
    )


async def test_a_change_may_return_the_new_state() -> None:
    async def agent(run: RunContext[Counter]) -> int:
        await run.update_state(lambda counter: Counter(hits=counter.hits + 5))
        return run.state.hits

    events = await collect(agent, state=Counter)

    assert_events(events, ["RUN_STARTED", "STATE_SNAPSHOT", {"result": 5}])


def test_a_patch_that_is_larger_than_the_state_is_a_snapshot() -> None:
    publisher = StatePublisher[Any](StateType())

    first = publisher.publish({"a": 1})
    second = publisher.publish({"b": 2})

    assert isinstance(first, core.StateSnapshotEvent)
    assert isinstance(second, core.StateSnapshotEvent)
    assert second.snapshot == {"b": 2}


def test_nothing_is_told_when_nothing_changed() -> None:
    publisher = StatePublisher[Any](StateType())
    publisher.publish({"a": 1, "b": 2})

    assert publisher.publish({"a": 1, "b": 2}) is None
    assert publisher.publish({"b": 2, "a": 1}) is None


def test_true_and_one_are_told_apart() -> None:
    publisher = StatePublisher[Any](StateType())
    publisher.publish({"a": 1, "text": "x" * 99})

    event = publisher.publish({"a": True, "text": "x" * 99})

    assert event is not None
    assert "true" in event.model_dump_json()


def test_after_a_reset_comes_a_snapshot() -> None:
    publisher = StatePublisher[Any](StateType())
    publisher.publish({"a": 1, "text": "x" * 99})
    publisher.reset()

    assert isinstance(publisher.publish({"a": 2, "text": "x" * 99}), core.StateSnapshotEvent)


@pytest.mark.spec("ag-ui J.129")
async def test_the_client_follows_every_change() -> None:
    after: list[Any] = []

    async def agent(run: RunContext[Board]) -> None:
        async def publish() -> None:
            await run.publish_state()
            after.append(StateType[Board](Board).dump(run.state))

        board = run.state
        board.note = "x" * 200
        await publish()
        board.revision = 2
        await publish()
        board.title, board.notes, board.note = "New", [], ""
        await publish()
        board.note = "y" * 200
        board.counts["a/b"] = 7
        run.reset_published_state()
        await publish()
        board.counts["c~d"] = 9
        await publish()
        board.counts["a/b"] = 8
        await publish()
        board.tags, board.urgent = ["t"], True
        await publish()

    events = await collect(agent, state=Board)

    states = [event for event in events if event.type.value.startswith("STATE")]
    document: Any = None
    for event, expected in zip(states, after, strict=True):
        document = _applied(document, event)
        assert StateType[Any]().dump(document) == expected
    assert document["counts"] == {"a/b": 8, "c~d": 9}


def _applied(document: Any, event: BaseEvent) -> Any:
    if isinstance(event, core.StateSnapshotEvent):
        return event.snapshot
    assert isinstance(event, core.StateDeltaEvent)
    return jsonpatch.apply_patch(document, event.model_dump(mode="json", by_alias=True)["delta"])


@pytest.mark.spec("ag-ui F.84")
async def test_the_state_may_change_inside_an_open_call() -> None:
    async def agent(run: Run) -> None:
        await run.set_state({"text": "x" * 99})
        async with run.tool_call("search") as call:
            await call.args("{}")
            run.state["hits"] = 1
            await run.publish_state()
            await call.result("1")

    assert_events(
        await collect(agent),
        [
            "RUN_STARTED",
            "STATE_SNAPSHOT",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "STATE_DELTA",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "RUN_FINISHED",
        ],
    )


@pytest.mark.spec("ag-ui K.137")
async def test_the_state_may_change_inside_a_message() -> None:
    async def agent(run: Run) -> None:
        async with run.message() as message:
            for size in (0, 3, 4000):
                await run.set_state({"sentences": ["x"] * size})
                await message.delta("a")

    events = await collect(agent)

    assert_events(events)
    sizes = [
        len(event.snapshot["sentences"])
        for event in events
        if isinstance(event, core.StateSnapshotEvent)
    ]
    assert sizes == [0, 3, 4000]


async def test_a_state_that_json_can_not_hold_ends_the_run() -> None:
    async def agent(run: Run) -> None:
        await run.set_state({"x": object()})

    assert_events(
        await collect(agent), ["RUN_STARTED", {"type": "RUN_ERROR", "code": "SERIALIZATION"}]
    )


async def test_a_state_that_could_not_be_sent_is_told_whole_next_time() -> None:
    run, received = open_context()
    await run.set_state({"text": "x" * 99, "a": 1})
    received.drain()

    run.state["a"] = object()
    with pytest.raises(EventEncodingError):
        await run.publish_state()
    run.state["a"] = 2
    await run.publish_state()

    (event,) = received.drain()
    assert isinstance(event, core.StateDeltaEvent)


async def test_a_state_that_was_refused_is_told_whole_next_time() -> None:
    def refuse_once(event: BaseEvent) -> list[BaseEvent]:
        if event.type.value == "STATE_DELTA":
            raise LookupError
        return [event]

    run, received = open_context(transformers=[lambda: refuse_once])
    await run.set_state({"text": "x" * 99, "a": 1})
    run.state["a"] = 2
    with pytest.raises(LookupError):
        await run.publish_state()
    received.drain()

    await run.publish_state()

    (event,) = received.drain()
    assert isinstance(event, core.StateSnapshotEvent)


async def test_a_lone_surrogate_in_the_state_is_mended() -> None:
    run, received = open_context()

    await run.set_state({"a": "x\ud800"})

    (event,) = received.drain()
    assert isinstance(event, core.StateSnapshotEvent)
    assert event.snapshot == {"a": "x\ufffd"}


@pytest.mark.spec("ag-ui J.133")
async def test_three_runs_share_a_state_through_the_client() -> None:
    async def agent(run: Run) -> None:
        state = {"clicks": run.state.get("clicks", 0) + 1}
        state["seen"] = [*run.state.get("seen", []), run.run_id]
        await run.set_state(state)

    state: Any = {}
    for number in (1, 2, 3):
        events = await collect(agent, run_input(run_id=f"run-{number}", state=state))
        for event in events:
            if event.type.value.startswith("STATE"):
                state = _applied(state, event)

    assert state == {"clicks": 3, "seen": ["run-1", "run-2", "run-3"]}


@pytest.mark.spec("ag-ui J.130")
async def test_deltas_by_hand_reach_the_client() -> None:
    async def agent(run: Run) -> None:
        def delta(*operations: dict[str, Any]) -> BaseEvent:
            return core.StateDeltaEvent.model_validate({"delta": list(operations)})

        cart = {"items": [], "total": 0}
        run.emit(delta({"op": "add", "path": "/cart", "value": cart}))
        run.emit(
            delta(
                {"op": "add", "path": "/cart/items/-", "value": {"sku": "espresso"}},
                {"op": "add", "path": "/cart/items/-", "value": {"sku": "milk"}},
                {"op": "replace", "path": "/cart/total", "value": 7},
                {"op": "copy", "from": "/cart/items/0/sku", "path": "/featured"},
                {"op": "test", "path": "/cart/total", "value": 7},
            )
        )
        run.emit(delta({"op": "replace", "path": "/featured", "value": None}))
        run.emit(core.StateSnapshotEvent(snapshot={"cart": {"total": 3}}))
        run.emit(delta({"op": "add", "path": "/cart/paid", "value": True}))

    events = await collect(agent)

    states: list[Any] = [{}]
    for event in events:
        if event.type.value.startswith("STATE"):
            states.append(_applied(states[-1], event))
    assert_events(events)
    assert states[2]["featured"] == "espresso"
    assert len(states[2]["cart"]["items"]) == 2
    assert states[3]["featured"] is None
    assert states[-1] == {"cart": {"total": 3, "paid": True}}
