"""The endpoint that one would write by hand."""

from fastapi import FastAPI

from benchmarks.contenders.orders import Order, OrderIn, place

app = FastAPI()


@app.post("/orders")
async def create_order(order: OrderIn) -> Order:
    """Place an order."""
    return place(order.sku, order.quantity)
