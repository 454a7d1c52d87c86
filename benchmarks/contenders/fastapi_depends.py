"""The same endpoint with one dependency."""

from typing import Annotated

from fastapi import Depends, FastAPI, Header

from benchmarks.contenders.orders import Order, OrderIn, place

app = FastAPI()


async def get_shop(x_shop: Annotated[str, Header()] = "main") -> str:
    """Return which shop is asked."""
    return x_shop


@app.post("/orders")
async def create_order(order: OrderIn, shop: Annotated[str, Depends(get_shop)]) -> Order:
    """Place an order."""
    assert shop
    return place(order.sku, order.quantity)
