from typing import Annotated

from fastapi import FastAPI
from pydantic import BaseModel, Field

from fastapi_carmy import AgentError, AgentRouter, ErrorCategory

PRICES = {"TEA-001": 790, "POT-001": 4900}


class Order(BaseModel):
    sku: str
    quantity: int
    total_cents: int


agent = AgentRouter(server="shop")


@agent.tool(effect="read", idempotent=True)
async def list_products() -> dict[str, int]:
    """Return the price of each product, in cents, by SKU."""
    return PRICES


@agent.tool(effect="write")
async def create_order(sku: str, quantity: Annotated[int, Field(ge=1, le=10)] = 1) -> Order:
    """Place an order.

    Args:
        sku: Stock-keeping unit, as `list_products` returns it.
        quantity: How many to order.
    """
    if sku not in PRICES:
        raise AgentError(
            "PRODUCT_NOT_FOUND",
            "No product has this SKU.",
            ErrorCategory.NOT_FOUND,
            recoverable=True,
            suggested_action="list_products",
        )
    return Order(sku=sku, quantity=quantity, total_cents=quantity * PRICES[sku])


app = FastAPI()
app.include_router(agent)
