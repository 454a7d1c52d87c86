"""A tool that reports its progress a hundred times, each time after an `await`."""

from anyio.lowlevel import checkpoint
from fastapi import FastAPI

from fastapi_carmy import AgentContext, AgentRouter

STEPS = 100

agent = AgentRouter(server="shop")


@agent.tool(effect="write", parallel_safe=True)
async def restock(sku: str, context: AgentContext) -> str:
    """Fill the shelves."""
    for step in range(STEPS):
        await checkpoint()
        context.progress(step + 1, total=STEPS)

    return sku


app = FastAPI()
app.include_router(agent)
