"""The tool in the official SDK of MCP: streamable HTTP, stateless, answered as JSON."""

from mcp.server.mcpserver import MCPServer

from benchmarks.contenders.orders import Order, place

server = MCPServer("shop")


@server.tool()
async def create_order(sku: str, quantity: int = 1) -> Order:
    """Place an order."""
    return place(sku, quantity)


app = server.streamable_http_app(stateless_http=True, json_response=True)
