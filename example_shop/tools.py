"""What agents can do in the shop."""

from collections.abc import AsyncIterator
from typing import Annotated

from pydantic import Field

from example_shop.auth import User, get_caller, may_order, may_restock
from example_shop.schemas import (
    OrderId,
    OrderOut,
    ProductOut,
    Quantity,
    RestockOut,
    Sku,
    TrackingOut,
)
from example_shop.shop import CurrentShop
from fastapi_carmy import AgentContext, AgentRouter

__all__ = ("create_agent",)


async def search_products(
    shop: CurrentShop,
    text: Annotated[str, Field(max_length=100)] = "",
    in_stock: bool = False,
    limit: Annotated[int, Field(ge=1, le=50)] = 20,
) -> list[ProductOut]:
    """Find products by words in their name or description.

    Args:
        text: What to look for; empty finds everything.
        in_stock: Leave out what is sold out.
        limit: Most products to return.
    """
    products = await shop.search(text, in_stock=in_stock, limit=limit)
    return [ProductOut.model_validate(product) for product in products]


async def get_product(sku: Sku, shop: CurrentShop) -> ProductOut:
    """Return one product, with what is left of it.

    Args:
        sku: Stock-keeping unit, as `search_products` returns it.
    """
    return ProductOut.model_validate(await shop.product(sku))


async def create_order(
    sku: Sku,
    shop: CurrentShop,
    user: Annotated[User, may_order],
    context: AgentContext,
    quantity: Quantity = 1,
) -> OrderOut:
    """Place an order.

    Args:
        sku: Stock-keeping unit, as `search_products` returns it.
        quantity: How many to order.
    """
    order = await shop.order(sku, quantity, placed_by=user.principal)
    context.suggest("track_order", {"order_id": order.id}, reason="See what happens to the order.")
    return OrderOut.model_validate(order)


async def cancel_order(order_id: OrderId, shop: CurrentShop) -> OrderOut:
    """Cancel an order that was not sent yet.

    Args:
        order_id: As `create_order` returned it.
    """
    return OrderOut.model_validate(await shop.cancel(order_id))


async def restock(
    sku: Sku, quantity: Quantity, shop: CurrentShop, context: AgentContext
) -> RestockOut:
    """Check a delivery unit by unit and book it; a delivery broken off is not booked.

    Args:
        sku: Stock-keeping unit, as `search_products` returns it.
        quantity: How many were delivered.
    """

    def checked(number: int) -> None:
        context.progress(number, quantity, f"{number} of {quantity} checked")

    product = await shop.restock(sku, quantity, checked=checked)
    return RestockOut(sku=sku, booked=quantity, stock=product.stock)


async def track_order(order_id: OrderId, shop: CurrentShop) -> AsyncIterator[TrackingOut]:
    """Tell what happened to an order, step by step.

    Args:
        order_id: As `create_order` returned it.
    """
    async for step in shop.track(order_id):
        yield TrackingOut.model_validate(step)


def create_agent() -> AgentRouter:
    """Return the router through which agents reach the shop."""
    agent = AgentRouter(server="example-shop", caller=get_caller, tags=["agent"])
    agent.add_tool(search_products, effect="read", idempotent=True, parallel_safe=True)
    agent.add_tool(get_product, effect="read", parallel_safe=True)
    agent.add_tool(create_order, effect="write", parallel_safe=True)
    agent.add_tool(
        cancel_order, effect="destructive", confirmation="required", dependencies=[may_order]
    )
    agent.add_tool(restock, effect="write", timeout_seconds=60, dependencies=[may_restock])
    agent.add_tool(track_order, effect="read", parallel_safe=True, dependencies=[may_order])
    return agent
