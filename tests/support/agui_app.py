"""An application with all sample agents, for servers in a process of their own."""

import anyio
from fastapi import FastAPI

from fastapi_carmy import AgentRouter
from tests.support.agui import (
    Waiting,
    broken,
    cautious,
    chatty,
    chunks,
    deployer,
    forecaster,
    patches,
    planner,
    reader,
    searcher,
    stateful,
    verbose,
)

__all__ = ("app",)

waiting = Waiting()

router = AgentRouter()

for path, agent in {
    "/chatty": chatty,
    "/verbose": verbose,
    "/cautious": cautious,
    "/broken": broken,
    "/chunks": chunks,
    "/stateful": stateful,
    "/patches": patches,
    "/reader": reader,
    "/searcher": searcher,
    "/forecaster": forecaster,
    "/planner": planner,
    "/deployer": deployer,
    "/waiting": waiting,
}.items():
    router.add_agui_route(path, agent)

router.add_agui_route("/small", chatty, max_body_bytes=10)
app = FastAPI()
app.include_router(router)


@app.get("/waiting/stopped")
async def stopped() -> dict[str, object]:
    """Return once the waiting agent has been stopped."""
    with anyio.fail_after(10):
        while not waiting.saw_cancelled:  # noqa: ASYNC110 - Its runs know of no event.
            await anyio.sleep(0.01)
    return {"saw_cancelled": waiting.saw_cancelled}
