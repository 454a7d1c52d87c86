from fastapi import FastAPI
from pydantic import BaseModel

from fastapi_carmy import AgentRouter

PRICES = {"TEA-001": 790, "POT-001": 4900}


class Order(BaseModel):
    sku: str
    quantity: int
    total_cents: int


agent = AgentRouter(server="shop")


@agent.tool(effect="write")
async def create_order(sku: str, quantity: int = 1) -> Order:
    """Place an order.

    Args:
        sku: Stock-keeping unit of the product.
        quantity: How many to order.
    """
    return Order(sku=sku, quantity=quantity, total_cents=quantity * PRICES[sku])


app = FastAPI()
app.include_router(agent)
