"""The tool in FastMCP: streamable HTTP, stateless, answered as JSON."""

from fastmcp import FastMCP

from benchmarks.contenders.orders import Order, place

server = FastMCP("shop")


@server.tool
async def create_order(sku: str, quantity: int = 1) -> Order:
    """Place an order."""
    return place(sku, quantity)


app = server.http_app(stateless_http=True, json_response=True)
