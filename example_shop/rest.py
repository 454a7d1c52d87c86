"""What people and their programs can do in the shop, as plain FastAPI endpoints."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from example_shop.auth import User, may_order
from example_shop.models import Order, Product
from example_shop.schemas import OrderId, OrderOut, ProductOut, Quantity, Sku
from example_shop.shop import CurrentShop

__all__ = ("rest",)

rest = APIRouter(tags=["shop"])


class ErrorOut(BaseModel):
    """A failure that a program can act on; agents get the same."""

    error: dict[str, Any]


class OrderIn(BaseModel):
    """What to order."""

    sku: Sku
    quantity: Quantity = 1


NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": ErrorOut}}
CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": ErrorOut}}
NEEDS_TOKEN: dict[int | str, dict[str, Any]] = {
    401: {"description": "No token, or an unknown one"},
    403: {"description": "The token lacks a permission"},
}


@rest.get("/products")
async def list_products(
    shop: CurrentShop,
    text: Annotated[str, Query(max_length=100)] = "",
    in_stock: bool = False,
    limit: Annotated[int, Query(ge=1, le=50)] = 20,
) -> list[ProductOut]:
    """Find products by words in their name or description."""
    products = await shop.search(text, in_stock=in_stock, limit=limit)
    return [ProductOut.model_validate(product) for product in products]


@rest.get("/products/{sku}", response_model=ProductOut, responses=NOT_FOUND)
async def read_product(sku: Sku, shop: CurrentShop) -> Product:
    """Return one product, with what is left of it."""
    return await shop.product(sku)


@rest.post(
    "/orders",
    status_code=201,
    response_model=OrderOut,
    responses={400: {"description": "No JSON"}, **NEEDS_TOKEN, **NOT_FOUND, **CONFLICT},
)
async def place_order(order: OrderIn, shop: CurrentShop, user: Annotated[User, may_order]) -> Order:
    """Place an order."""
    return await shop.order(order.sku, order.quantity, placed_by=user.principal)


@rest.get(
    "/orders/{order_id}",
    response_model=OrderOut,
    dependencies=[may_order],
    responses={**NEEDS_TOKEN, **NOT_FOUND},
)
async def read_order(order_id: OrderId, shop: CurrentShop) -> Order:
    """Return one order."""
    return await shop.find_order(order_id)


@rest.post(
    "/orders/{order_id}/cancel",
    response_model=OrderOut,
    dependencies=[may_order],
    responses={**NEEDS_TOKEN, **NOT_FOUND, **CONFLICT},
)
async def withdraw_order(order_id: OrderId, shop: CurrentShop) -> Order:
    """Cancel an order that was not sent yet."""
    return await shop.cancel(order_id)
