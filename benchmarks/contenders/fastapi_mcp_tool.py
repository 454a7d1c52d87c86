"""The plain endpoint behind fastapi-mcp, over HTTP."""

from fastapi import FastAPI
from fastapi_mcp import FastApiMCP

from benchmarks.contenders.orders import Order, OrderIn, place

app = FastAPI()


@app.post("/orders", operation_id="create_order")
async def create_order(order: OrderIn) -> Order:
    """Place an order."""
    return place(order.sku, order.quantity)


FastApiMCP(app).mount_http()
