from fastapi import FastAPI

from fastapi_carmy import AgentRouter

orders = AgentRouter()


@orders.tool(effect="write")
async def create_order(sku: str) -> str:
    """Place an order."""
    return f"ordered {sku}"


products = AgentRouter()


@products.tool(effect="read")
async def list_products() -> list[str]:
    """Return the SKU of each product."""
    return ["TEA-001", "POT-001"]


# One catalog for the tools of both.
shop = AgentRouter(server="shop")
shop.include_router(orders)
shop.include_router(products)

# A catalog of its own, under a prefix of its own.
back_office = AgentRouter(server="back-office")


@back_office.tool(effect="read")
async def count_orders() -> int:
    """Return how many orders there are."""
    return 3


app = FastAPI()
app.include_router(shop)
app.include_router(back_office, prefix="/back-office")
