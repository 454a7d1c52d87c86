"""A call with a request_id runs once. Source: carmy/1, section 4.2."""

from collections.abc import Mapping
from typing import Annotated

import anyio
import pytest
from fastapi import BackgroundTasks, Depends, Response
from fastapi.testclient import TestClient

from fastapi_carmy import AgentError, AgentRouter, ErrorCategory
from fastapi_carmy.policies import PolicyCall
from tests.support.calls import answer, app_of, caller_from_headers, code, post, stream

ANNA, BOB = {"X-Principal": "anna"}, {"X-Principal": "bob"}


def counting(agent: AgentRouter) -> list[str]:
    """Add the tool `count`, and return what it was called with."""
    runs: list[str] = []

    @agent.tool(effect="write")
    async def count(x: str, y: float = 0) -> int:
        runs.append(x)
        return len(runs) - 1

    return runs


@pytest.mark.spec("carmy/1 7.3")
def test_a_call_made_again_is_answered_and_not_run() -> None:
    agent = AgentRouter()
    runs = counting(agent)

    with TestClient(app_of(agent)) as client:
        first, second = (post(client, "count", {"x": "a"}, request_id="r") for _ in range(2))

    assert first.json()["data"] == 0
    assert first.content == second.content
    assert "carmy-replayed" not in first.headers
    assert second.headers["carmy-replayed"] == "true"
    assert second.headers["cache-control"] == "no-store"
    assert runs == ["a"]


@pytest.mark.spec("carmy/1 7.3")
def test_a_request_id_belongs_to_one_call() -> None:
    agent = AgentRouter()
    runs = counting(agent)

    @agent.tool(effect="read")
    async def other(x: str) -> None: ...

    with TestClient(app_of(agent)) as client:
        post(client, "count", {"x": "a"}, request_id="r")
        conflicts = [
            post(client, "count", {"x": "b"}, request_id="r"),
            post(client, "other", {"x": "a"}, request_id="r"),
            post(client, "count", {"x": "a", "y": 0}, request_id="r"),
        ]

    for conflict in conflicts:
        assert (conflict.status_code, code(conflict)) == (409, "IDEMPOTENCY_CONFLICT")
        assert conflict.json()["error"]["recoverable"] is False
    assert runs == ["a"]


@pytest.mark.spec("carmy/1 7.3")
def test_callers_never_meet() -> None:
    agent = AgentRouter(caller=caller_from_headers)
    runs = counting(agent)
    callers: list[Mapping[str, str]] = [
        ANNA,
        BOB,
        {"X-Session": "anna"},
        {**ANNA, "X-Session": "s1"},
        {**ANNA, "X-Session": "s2"},
        {},
    ]

    with TestClient(app_of(agent)) as client:
        first = [
            post(client, "count", {"x": "a"}, request_id="r", headers=caller).json()["data"]
            for caller in callers
        ]
        again = [
            post(client, "count", {"x": "a"}, request_id="r", headers=caller).json()["data"]
            for caller in callers
        ]

    assert first == again == [0, 1, 2, 3, 4, 5]
    assert len(runs) == 6


@pytest.mark.spec("carmy/1 4.2")
@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (b'{"x":"a","y":1}', b'{ "y" : 1, "x": "a" }', True),
        (b'{"x":"a","y":1}', b'{"x":"a","y":1.0}', False),
        (b'{"x":"\\u00e9"}', '{"x":"é"}'.encode(), True),
        (b'{"x":"a"}', b'{"x":"a","y":0}', False),
    ],
    ids=["order-and-space", "number", "escapes", "default"],
)
def test_calls_are_compared_as_they_were_sent(first: bytes, second: bytes, is_same: bool) -> None:
    agent = AgentRouter()
    counting(agent)

    with TestClient(app_of(agent)) as client:
        answers = [
            client.post(
                "/agent/execute",
                content=b'{"tool":"count","request_id":"r","arguments":%b}' % arguments,
                headers={"Content-Type": "application/json"},
            )
            for arguments in (first, second)
        ]

    assert answers[0].status_code == 200
    assert (answers[1].status_code == 200) is is_same


def test_arguments_left_out_are_the_empty_object() -> None:
    agent = AgentRouter()

    @agent.tool(effect="write")
    async def ping() -> str:
        return "pong"

    with TestClient(app_of(agent)) as client:
        first = client.post("/agent/execute", json={"tool": "ping", "request_id": "r"})
        second = post(client, "ping", {}, request_id="r")

    assert first.content == second.content


@pytest.mark.spec("carmy/1 7.4")
async def test_of_two_simultaneous_equal_calls_one_runs() -> None:
    agent = AgentRouter()
    begun, may_end = anyio.Event(), anyio.Event()
    runs: list[str] = []

    @agent.tool(effect="write")
    async def work(x: str) -> str:
        runs.append(x)
        begun.set()
        await may_end.wait()
        return x

    app = app_of(agent)
    answers: list[dict[str, object]] = []

    async def call() -> None:
        answers.append(await answer(app, "work", {"x": "a"}, request_id="r"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        with anyio.fail_after(5):
            await begun.wait()
        uncertain = await answer(app, "work", {"x": "a"}, request_id="r")
        conflict = await answer(app, "work", {"x": "b"}, request_id="r")
        may_end.set()

    replay = await answer(app, "work", {"x": "a"}, request_id="r")
    (completed,) = answers
    assert runs == ["a"]
    assert completed == replay
    assert conflict["error"]["code"] == "IDEMPOTENCY_CONFLICT"
    assert uncertain["error"]["code"] == "EXECUTION_UNCERTAIN"
    assert uncertain["execution_id"] != completed["execution_id"]
    assert uncertain["error"]["details"] == {
        "execution_id": completed["execution_id"],
        "started_at": uncertain["error"]["details"]["started_at"],
        "state": "running",
    }
    (action,) = uncertain["_agent"]["next_actions"]
    assert (action["tool"], action["after_ms"], "arguments" in action) == ("work", 1000, False)


@pytest.mark.spec("carmy/1 7.12")
def test_refused_arguments_leave_the_request_id_free() -> None:
    agent = AgentRouter()
    counting(agent)

    with TestClient(app_of(agent)) as client:
        refused = post(client, "count", {"x": 7}, request_id="r")
        good = post(client, "count", {"x": "a"}, request_id="r")

    assert code(refused) == "INVALID_ARGUMENTS"
    assert good.json()["data"] == 0


@pytest.mark.spec("carmy/1 7.12")
@pytest.mark.parametrize(("retryable", "runs"), [(True, 2), (False, 1)])
def test_only_a_retryable_failure_is_run_again(retryable: bool, runs: int) -> None:
    agent = AgentRouter()
    calls: list[str] = []

    @agent.tool(effect="write")
    async def book(x: str) -> str:
        calls.append(x)
        raise AgentError("SOLD_OUT", "Sold out.", ErrorCategory.CONFLICT, retryable=retryable)

    with TestClient(app_of(agent)) as client:
        first, second = (post(client, "book", {"x": "a"}, request_id="r") for _ in range(2))

    assert len(calls) == runs
    assert (first.json()["execution_id"] == second.json()["execution_id"]) is not retryable
    assert ("carmy-replayed" in second.headers) is not retryable
    assert second.status_code == 409


@pytest.mark.spec("carmy/1 4.2")
def test_a_replayed_failure_keeps_status_and_headers() -> None:
    agent = AgentRouter()

    @agent.tool(effect="write")
    async def book() -> str:
        raise AgentError("LATER", "Later.", ErrorCategory.CAPACITY, retry_after=7, details={"a": 1})

    with TestClient(app_of(agent)) as client:
        first, second = (post(client, "book", request_id="r") for _ in range(2))

    assert first.content == second.content
    assert first.status_code == second.status_code == 503
    assert first.headers["retry-after"] == second.headers["retry-after"] == "7"


@pytest.mark.spec("carmy/1 4.2")
@pytest.mark.parametrize("failure", ["unexpected", "output"])
def test_unexpected_failures_are_recorded(failure: str) -> None:
    agent = AgentRouter()
    calls: list[str] = []

    @agent.tool(effect="write")
    async def book() -> int:
        calls.append(failure)
        if failure == "unexpected":
            raise RuntimeError
        return "no number"  # type: ignore[return-value]

    with TestClient(app_of(agent)) as client:
        first, second = (post(client, "book", request_id="r") for _ in range(2))

    assert first.content == second.content
    assert len(calls) == 1


@pytest.mark.spec("carmy/1 4.2")
@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize("refused_by", ["policy", "admit", "guard", "dependency"])
def test_a_refusal_before_the_tool_ran_leaves_the_request_id_free(refused_by: str) -> None:
    refusals = {refused_by}

    def refuse(place: str) -> None:
        if place in refusals:
            raise AgentError("NO", "No.", ErrorCategory.PERMISSION)

    class Moody:
        def check(self, call: PolicyCall) -> None:
            refuse("policy")

        def admit(self, call: PolicyCall) -> None:
            refuse("admit")

    def guard() -> None:
        refuse("guard")

    def dependency() -> None:
        refuse("dependency")

    agent = AgentRouter(policies=[Moody()])

    @agent.tool(effect="write", dependencies=[Depends(guard)])
    async def book(needed: Annotated[None, Depends(dependency)]) -> str:
        return "booked"

    with TestClient(app_of(agent)) as client:
        refused = post(client, "book", request_id="r")
        refusals.clear()
        booked = post(client, "book", request_id="r")
        refusals.add("admit")
        refusals.add("dependency")
        replay = post(client, "book", request_id="r")
        refusals.add("policy")
        denied = post(client, "book", request_id="r")

    assert code(refused) == "NO"
    assert booked.json()["data"] == "booked"
    assert replay.content == booked.content
    assert code(denied) == "NO"


@pytest.mark.spec("carmy/1 2.3")
def test_json_and_streams_share_their_records() -> None:
    agent = AgentRouter()
    runs = counting(agent)

    with TestClient(app_of(agent)) as client:
        first = post(client, "count", {"x": "a"}, request_id="r").json()
        started, completed = stream(client, "count", {"x": "a"}, request_id="r")
        streamed = stream(client, "count", {"x": "b"}, request_id="s")[-1].json()
        replayed = post(client, "count", {"x": "b"}, request_id="s").json()

    assert started.json()["execution_id"] != first["execution_id"]
    assert completed.json() == {**first, "replayed": True}
    assert streamed == {**replayed, "replayed": False}
    assert runs == ["a", "b"]


@pytest.mark.spec("carmy/1 4.1")
def test_a_replay_repeats_neither_headers_nor_background_tasks() -> None:
    agent = AgentRouter()
    sent: list[str] = []

    @agent.tool(effect="write")
    async def order(response: Response, background: BackgroundTasks) -> str:
        response.headers["X-Order"] = "1"
        response.set_cookie("order", "1")
        response.status_code = 201
        background.add_task(sent.append, "mail")
        return "ordered"

    with TestClient(app_of(agent)) as client:
        first = post(client, "order", request_id="r")
        client.cookies.clear()
        second = post(client, "order", request_id="r")

    assert first.status_code == second.status_code == 200
    assert first.headers["x-order"] == "1"
    assert first.headers["set-cookie"].startswith("order=1")
    assert "x-order" not in second.headers
    assert "set-cookie" not in second.headers
    assert sent == ["mail"]
