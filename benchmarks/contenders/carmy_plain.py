"""The tool of this package; also with a `request_id`, as events, and its catalog."""

from fastapi import FastAPI

from benchmarks.contenders.orders import Order, place
from fastapi_carmy import AgentRouter

agent = AgentRouter(server="shop")


@agent.tool(effect="write")
async def create_order(sku: str, quantity: int = 1) -> Order:
    """Place an order."""
    return place(sku, quantity)


app = FastAPI()
app.include_router(agent)
