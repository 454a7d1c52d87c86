from collections.abc import AsyncIterator

import anyio
from fastapi import FastAPI

from fastapi_carmy import AgentContext, AgentRouter

STOCK = {"TEA-001": 40, "POT-001": 5}

agent = AgentRouter(server="shop")


@agent.tool(effect="write")
async def restock(sku: str, quantity: int, context: AgentContext) -> int:
    """Check a delivery unit by unit, then book it; return the new stock.

    Args:
        sku: Stock-keeping unit of the product.
        quantity: How many were delivered.
    """
    for number in range(1, quantity + 1):
        await anyio.sleep(0.1)
        context.progress(number, quantity, f"{number} of {quantity} checked")

    STOCK[sku] += quantity
    return STOCK[sku]


@agent.tool(effect="read")
async def count_stock() -> AsyncIterator[dict[str, int]]:
    """Count the stock, product by product."""
    for sku, stock in STOCK.items():
        yield {sku: stock}


app = FastAPI()
app.include_router(agent)
