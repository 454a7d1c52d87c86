"""No text of an unexpected exception is on any wire, wherever it was raised.

Source: carmy/1, section 4.1.
"""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, HTTPException
from pydantic import BaseModel, computed_field

from fastapi_carmy import AgentContext, AgentRouter
from fastapi_carmy.audit import ExecutionRecord
from fastapi_carmy.policies import PolicyCall
from fastapi_carmy.stores import Key, MemoryStore, Record, Reservation
from tests.support.calls import app_of
from tests.support.wire import call, connect, serve_here

pytestmark = pytest.mark.spec("carmy/1 7.16")

SECRET = "s3cret-of-the-database"


class BoomError(RuntimeError):
    """Tells a secret in every way an exception can."""

    def __init__(self) -> None:
        super().__init__(SECRET)
        self.add_note(SECRET)


async def boom() -> None:
    raise BoomError from ValueError(SECRET)


async def boom_at_the_end() -> AsyncIterator[None]:
    yield
    raise BoomError


class BoomStore(MemoryStore):
    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    async def reserve(
        self, key: Key, *, fingerprint: str, execution_id: str, may_repeat: bool
    ) -> Reservation:
        if self._method == "reserve":
            raise BoomError
        return await super().reserve(
            key, fingerprint=fingerprint, execution_id=execution_id, may_repeat=may_repeat
        )

    async def complete(self, key: Key, *, execution_id: str, record: Record) -> bool:
        raise BoomError


class BoomPolicy:
    def __init__(self, method: str) -> None:
        self._method = method

    def check(self, call: PolicyCall) -> None:
        if self._method == "check":
            raise BoomError

    def admit(self, call: PolicyCall) -> None:
        if self._method == "admit":
            raise BoomError


class BoomSink:
    def record(self, record: ExecutionRecord) -> None:
        raise BoomError


class Unserialisable(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        raise BoomError


def with_tool(
    tool: Callable[..., Any], *, dependencies: Any = (), guards: Any = (), **options: Any
) -> AgentRouter:
    agent = AgentRouter(dependencies=guards, **options)
    agent.add_tool(tool, name="work", effect="write", dependencies=dependencies)
    return agent


async def fine() -> str:
    return "done"


async def boom_in_the_tool() -> None:
    raise BoomError


def boom_in_a_thread() -> None:
    raise BoomError


async def boom_in_a_group() -> None:
    raise ExceptionGroup(SECRET, [BoomError(), HTTPException(404, SECRET)])


async def boom_in_a_generator() -> AsyncIterator[int]:
    yield 1
    raise BoomError


async def boom_as_a_server_error() -> None:
    raise HTTPException(503, SECRET)


async def boom_in_the_output() -> Unserialisable:
    return Unserialisable()


async def wrong_output() -> int:
    return SECRET  # type: ignore[return-value]


async def boom_in_a_partial(context: AgentContext) -> None:
    context.partial(Unserialisable())


async def boom_in_a_suggestion(context: AgentContext) -> None:
    context.suggest("work", {"model": Unserialisable()}, reason="Again.")


async def boom_in_the_background(tasks: BackgroundTasks) -> str:
    tasks.add_task(boom)
    return "done"


async def with_dependency(booming: Annotated[None, Depends(boom)]) -> None: ...


async def with_teardown(booming: Annotated[None, Depends(boom_at_the_end)]) -> str:
    return "done"


PLACES: dict[str, Callable[[], AgentRouter]] = {
    "router-guard": lambda: with_tool(fine, caller=fine_caller, guards=[Depends(boom)]),
    "caller": lambda: with_tool(fine, caller=boom),
    "wrong-caller": lambda: with_tool(fine, caller=lambda: SECRET),
    "tool-guard": lambda: with_tool(fine, dependencies=[Depends(boom)]),
    "tool-guard-teardown": lambda: with_tool(fine, dependencies=[Depends(boom_at_the_end)]),
    "check": lambda: with_tool(fine, policies=[BoomPolicy("check")]),
    "admit": lambda: with_tool(fine, policies=[BoomPolicy("admit")]),
    "reserve": lambda: with_tool(fine, store=BoomStore("reserve")),
    "complete": lambda: with_tool(fine, store=BoomStore("complete")),
    "audit": lambda: with_tool(fine, audit=[BoomSink()]),
    **{
        tool.__name__: lambda tool=tool: with_tool(tool)  # type: ignore[misc]
        for tool in (
            boom_in_the_tool,
            boom_in_a_thread,
            boom_in_a_group,
            boom_in_a_generator,
            boom_as_a_server_error,
            boom_in_the_output,
            wrong_output,
            boom_in_a_partial,
            boom_in_a_suggestion,
            boom_in_the_background,
            with_dependency,
            with_teardown,
        )
    },
}


def fine_caller() -> None:
    return None


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("place", PLACES)
async def test_no_text_of_an_exception_leaves_the_process(place: str, stream: bool) -> None:
    agent = PLACES[place]()

    async with serve_here(app_of(agent)) as served:
        for _ in ("fresh", "repeated"):
            async with call(served, "work", request_id="r", stream=stream) as wire:
                answer = await wire.answer()
            assert SECRET.encode() not in wire.received
            assert b"Traceback" not in wire.received
            # A whole answer all the same, and one that parses.
            assert answer.headers["content-type"] in {"application/json", "text/event-stream"}
            assert "status" in answer.result or "error" in answer.result


@pytest.mark.parametrize("path", ["/.well-known/agent", "/agent/tools"])
@pytest.mark.parametrize("place", ["router-guard"])
async def test_no_text_of_a_guards_exception_is_in_a_document(place: str, path: str) -> None:
    async with serve_here(app_of(PLACES[place]())) as served, connect(served, path) as wire:
        answer = await wire.answer()

    assert (answer.status, answer.code) == (500, "TOOL_PANIC")
    assert SECRET.encode() not in wire.received
