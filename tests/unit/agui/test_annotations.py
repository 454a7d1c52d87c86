"""Agents whose annotations are postponed, and use what is defined beside them."""

from __future__ import annotations

from typing import Annotated, Any

import httpx2
from fastapi import Depends, FastAPI
from pydantic import BaseModel

from fastapi_carmy import AgentRouter
from fastapi_carmy.agui import RunContext
from fastapi_carmy.agui.testing import collect
from tests.support.agui import INPUT, events_in


async def result_of(router: AgentRouter) -> Any:
    app = FastAPI()
    app.include_router(router)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://testserver"
    ) as client:
        answer = await client.post("/agent", json=dict(INPUT))
    return events_in(answer.text)[-1]["result"]


async def test_a_class_of_the_same_function_is_found() -> None:
    class Count(BaseModel):
        hits: int = 3

    async def limit() -> int:
        return 4

    router = AgentRouter()

    @router.agui("/agent")
    async def agent(run: RunContext[Count], limit: Annotated[int, Depends(limit)]) -> int:
        return run.state.hits + limit

    assert await result_of(router) == 7


async def test_it_is_found_for_the_plain_form_too() -> None:
    class Count(BaseModel):
        hits: int = 3

    class Agent:
        async def run(self, run: Annotated[RunContext[Count], "the run"], /) -> int:
            return run.state.hits

    router = AgentRouter()
    router.add_agui_route("/agent", Agent())

    assert await result_of(router) == 3


async def test_module_level_annotations_need_nothing() -> None:
    async def agent(run: RunContext[Any]) -> int:
        return 5

    *_, last = await collect(agent)
    assert last.model_dump()["result"] == 5
