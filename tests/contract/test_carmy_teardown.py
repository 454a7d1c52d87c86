"""How dependencies close, and what that means for the answer. Source: carmy/1, section 4.1."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import anyio
import pytest
from fastapi import Depends, HTTPException
from fastapi.testclient import TestClient

from fastapi_carmy import AgentError, AgentRouter, CurrentContext, ErrorCategory
from tests.support.calls import app_of, code, post, stream

ENDINGS = ["success", "error", "agent error", "output", "deadline"]


def end(ending: str) -> Any:
    if ending == "error":
        raise RuntimeError
    if ending == "agent error":
        raise AgentError("NO", "No.", ErrorCategory.CONFLICT)
    return "no number" if ending == "output" else 1


@pytest.mark.spec("carmy/1 4.1")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
def test_only_a_success_lets_a_dependency_commit(kind: str, ending: str, streamed: bool) -> None:
    agent = AgentRouter()
    seen: list[str] = []

    async def session_async() -> AsyncIterator[str]:
        try:
            yield "session"
        except Exception:
            seen.append("rolled back")
            raise
        seen.append("committed")

    def session_sync() -> Iterator[str]:
        try:
            yield "session"
        except Exception:
            seen.append("rolled back")
            raise
        seen.append("committed")

    session = session_async if kind == "async" else session_sync

    @agent.tool(effect="write", timeout_seconds=0.05 if ending == "deadline" else 20)
    async def work(needed: Annotated[str, Depends(session)]) -> int:
        if ending == "deadline":
            await anyio.sleep(10)
        number: int = end(ending)
        return number

    with TestClient(app_of(agent)) as client:
        if streamed:
            status = stream(client, "work")[-1].json()["status"]
        else:
            status = post(client, "work").json()["status"]

    expected = {"success": "completed", "deadline": "timed_out"}.get(ending, "failed")
    assert status == expected
    assert seen == ["committed" if ending == "success" else "rolled back"]


FAILED_COMMITS = {
    "TOOL_PANIC": RuntimeError("secret"),
    "CONFLICT": HTTPException(409, "Conflicting."),
    "CONFLICTING": AgentError("CONFLICTING", "Conflicting.", ErrorCategory.CONFLICT),
}


@pytest.mark.spec("carmy/1 7.17")
@pytest.mark.parametrize("expected", FAILED_COMMITS)
@pytest.mark.parametrize("place", ["dependency", "guard"])
def test_a_commit_that_fails_is_no_success_and_stays_none(place: str, expected: str) -> None:
    agent = AgentRouter()
    runs: list[int] = []

    def commit(here: str) -> None:
        if runs and here == place:
            raise FAILED_COMMITS[expected]

    def session() -> Iterator[None]:
        yield
        commit("dependency")

    def guard() -> Iterator[None]:
        yield
        commit("guard")

    @agent.tool(effect="write", dependencies=[Depends(guard)])
    async def work(needed: Annotated[None, Depends(session)]) -> int:
        runs.append(1)
        return 1

    with TestClient(app_of(agent)) as client:
        first = post(client, "work", request_id="r")
        second = post(client, "work", request_id="r")

    assert first.json()["status"] == second.json()["status"] == "failed"
    assert code(first) == code(second) == expected
    assert "data" not in first.json()
    assert "secret" not in first.text
    assert runs == [1]


@pytest.mark.spec("carmy/1 4.1")
def test_dependencies_close_last_opened_first_and_before_the_answer_is_recorded() -> None:
    agent = AgentRouter()
    seen: list[str] = []

    def named(name: str) -> Any:
        def dependency() -> Iterator[str]:
            seen.append(f"open {name}")
            yield name
            seen.append(f"close {name}")

        return dependency

    inner = named("inner")

    def outer(inner: Annotated[str, Depends(inner)]) -> Iterator[str]:
        seen.append("open outer")
        yield "outer"
        seen.append("close outer")

    class Sink:
        def record(self, record: object) -> None:
            seen.append("audit")

    agent = AgentRouter(audit=[Sink()])

    @agent.tool(effect="read", dependencies=[Depends(named("guard"))])
    async def work(needed: Annotated[str, Depends(outer)]) -> None:
        seen.append("run")

    with TestClient(app_of(agent)) as client:
        post(client, "work")

    assert seen == [
        "open guard",
        "open inner",
        "open outer",
        "run",
        "close outer",
        "close inner",
        "close guard",
        "audit",
    ]


@pytest.mark.spec("carmy/1 4.1")
def test_a_dependency_that_swallows_the_error_does_not_change_the_answer() -> None:
    agent = AgentRouter()
    seen: list[str] = []

    def swallowing() -> Iterator[None]:
        try:
            yield
        except AgentError:
            seen.append("swallowed")

    def outer() -> Iterator[None]:
        try:
            yield
        except AgentError:
            seen.append("saw it")
            raise

    @agent.tool(effect="write")
    async def work(
        first: Annotated[None, Depends(outer)], second: Annotated[None, Depends(swallowing)]
    ) -> None:
        raise AgentError("NO", "No.", ErrorCategory.CONFLICT)

    with TestClient(app_of(agent)) as client:
        assert code(post(client, "work")) == "NO"

    assert seen == ["swallowed", "saw it"]


@pytest.mark.spec("carmy/1 4.1")
def test_finishing_has_a_limit_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    agent = AgentRouter(finish_seconds=0.05)
    runs: list[int] = []

    async def session() -> AsyncIterator[None]:
        yield
        await anyio.sleep(10)

    @agent.tool(effect="write")
    async def work(needed: Annotated[None, Depends(session)]) -> int:
        runs.append(1)
        return 1

    with TestClient(app_of(agent)) as client:
        first = post(client, "work", request_id="r")
        second = post(client, "work", request_id="r")

    assert code(first) == code(second) == "EXECUTION_UNCERTAIN"
    assert second.json()["error"]["details"]["state"] == "abandoned"
    assert runs == [1]


def test_what_a_dependency_suggests_while_it_closes_is_told() -> None:
    agent = AgentRouter()

    async def unit(context: CurrentContext) -> AsyncIterator[int]:
        yield 1
        context.suggest("next", reason="It is written.")

    @agent.tool(effect="write")
    async def order(unit: Annotated[int, Depends(unit)]) -> int:
        return unit

    answer = post(TestClient(app_of(agent)), "order").json()

    assert [action["tool"] for action in answer["_agent"]["next_actions"]] == ["next"]
