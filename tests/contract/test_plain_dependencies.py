"""Plain dependencies are called without FastAPI's solver, and nobody can tell."""

from itertools import count
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Header, Request
from fastapi.testclient import TestClient
from pydantic import AliasChoices

from fastapi_carmy import AgentRouter
from fastapi_carmy.injection.registration import make_tool
from tests.support.calls import post

called: list[str] = []


async def first(x_first: Annotated[int, Header()] = 1) -> int:
    called.append("first")
    return x_first


async def second(first: Annotated[int, Depends(first)], x_second: Annotated[str, Header()]) -> str:
    called.append("second")
    return f"{first} {x_second}"


async def third(
    second: Annotated[str, Depends(second)], again: Annotated[int, Depends(first)]
) -> str:
    called.append("third")
    return f"{second} {again}"


async def uncached() -> str:
    called.append("uncached")
    return "uncached"


def sync() -> str:
    called.append("sync")
    return "sync"


async def with_request(request: Request) -> str:
    called.append("with_request")
    return request.url.path.rpartition("/")[2]


async def by_plain(
    third: Annotated[str, Depends(third)], one: Annotated[int, Depends(first)]
) -> Any:
    return [third, one]


async def by_sync(
    sync: Annotated[str, Depends(sync)], third: Annotated[str, Depends(third)]
) -> Any:
    return [sync, third]


async def by_uncached(
    one: Annotated[str, Depends(uncached, use_cache=False)],
    two: Annotated[str, Depends(uncached, use_cache=False)],
) -> Any:
    return [one, two]


async def by_mixture(
    third: Annotated[str, Depends(third)], path: Annotated[str, Depends(with_request)]
) -> Any:
    return [third, path]


FUNCTIONS = (by_plain, by_sync, by_uncached, by_mixture)


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    called.clear()


def clients(function: Any) -> tuple[TestClient, TestClient]:
    """Return the function as a tool, and as an endpoint."""
    agent = AgentRouter()
    agent.add_tool(function, effect="read", name="tool")
    app, plain = FastAPI(), FastAPI()
    app.include_router(agent)
    plain.post("/agent/execute")(function)
    return TestClient(app), TestClient(plain)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_tool_calls_its_dependencies_as_an_endpoint_does(function: Any) -> None:
    tool, endpoint = clients(function)
    headers = {"X-First": "7", "X-Second": "two"}

    from_endpoint = endpoint.post("/agent/execute", headers=headers).json()
    by_endpoint = called.copy()
    called.clear()
    from_tool = post(tool, "tool", headers=headers).json()["data"]

    assert from_tool == from_endpoint
    assert called == by_endpoint


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("x-text", "")],
        [("x-text", "one"), ("x-text", "two")],
        [("X-TEXT", "one")],
        [("x-text", b"caf\xe9")],
        [("x_text", "underscored")],
        [("x-own", "named"), ("x-none", "here")],
        [("x-old", "of old")],
        [("x-new", "new"), ("x-old", "of old")],
    ],
)
def test_a_text_of_a_header_is_what_it_is_in_an_endpoint(headers: Any) -> None:
    async def read(
        x_text: Annotated[str, Header()] = "default",
        named: Annotated[str, Header(alias="X-Own")] = "default",
        x_none: Annotated[str | None, Header()] = None,
        x_as_is: Annotated[str | None, Header(convert_underscores=False)] = None,
        renamed: Annotated[
            str | None, Header(alias="x-new", validation_alias=AliasChoices("x-new", "x-old"))
        ] = None,
    ) -> list[str | None]:
        return [x_text, named, x_none, x_as_is, renamed]

    async def tell(values: Annotated[list[str | None], Depends(read)]) -> list[str | None]:
        return values

    tool, endpoint = clients(tell)
    content = {"tool": "tool", "arguments": {}}

    by_endpoint = endpoint.post("/agent/execute", headers=headers, json=content)
    by_tool = tool.post("/agent/execute", headers=headers, json=content)

    assert by_tool.json()["data"] == by_endpoint.json()


def test_a_header_that_was_not_sent_is_made_anew_each_time() -> None:
    numbers = count()

    async def read(
        x_trace: Annotated[str, Header(default_factory=lambda: str(next(numbers)))],
    ) -> str:
        return x_trace

    async def tell(trace: Annotated[str, Depends(read)]) -> str:
        return trace

    tool, _ = clients(tell)

    assert len({post(tool, "tool").json()["data"] for _ in range(3)}) == 3


def test_a_wrong_header_is_told_by_the_solver_and_nothing_runs_twice() -> None:
    tool, _ = clients(by_plain)

    answer = post(tool, "tool", headers={"X-First": "7"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert [error["path"] for error in answer.json()["error"]["details"]["errors"]] == [
        "header.x-second"
    ]
    assert called == ["first"]


def test_a_dependency_that_a_guard_has_called_is_not_called_again() -> None:
    agent = AgentRouter(dependencies=[Depends(third)])
    agent.add_tool(by_plain, effect="read", name="tool")
    app = FastAPI()
    app.include_router(agent)

    answer = post(TestClient(app), "tool", headers={"X-Second": "two"})

    assert answer.json()["data"] == ["1 two 1", 1]
    assert called == ["first", "second", "third"]


def test_an_override_takes_the_place_of_a_plain_dependency() -> None:
    agent = AgentRouter()
    agent.add_tool(by_plain, effect="read", name="tool")
    app = FastAPI()
    app.include_router(agent)
    app.dependency_overrides[first] = lambda: 9

    answer = post(TestClient(app), "tool", headers={"X-Second": "two"})

    assert answer.json()["data"] == ["9 two 9", 9]


@pytest.mark.parametrize(("function", "is_plain"), [(by_plain, True), (by_mixture, False)])
def test_only_what_is_plain_does_without_the_solver(function: Any, *, is_plain: bool) -> None:
    plan: Any = make_tool(function, effect="read").plan

    _, solvable = plan.solvables(())

    assert (solvable.steps is not None) is is_plain
