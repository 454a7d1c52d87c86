"""The same tool with one dependency."""

from typing import Annotated

from fastapi import Depends, FastAPI

from benchmarks.contenders.fastapi_depends import get_shop
from benchmarks.contenders.orders import Order, place
from fastapi_carmy import AgentRouter

agent = AgentRouter(server="shop")


@agent.tool(effect="write")
async def create_order(
    sku: str, shop: Annotated[str, Depends(get_shop)], quantity: int = 1
) -> Order:
    """Place an order."""
    assert shop
    return place(sku, quantity)


app = FastAPI()
app.include_router(agent)
