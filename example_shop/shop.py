"""What the shop does, whoever asks: REST endpoints and agents share it, errors included."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated

import anyio
from fastapi import Depends, Request
from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from example_shop.database import CurrentSession
from example_shop.models import Order, Product, TrackingStep
from fastapi_carmy import AgentError, ErrorCategory

__all__ = ("CurrentShop", "Shop", "get_shop")


class Shop:
    """The shop, within one transaction."""

    def __init__(self, session: AsyncSession, *, seconds_per_unit: float) -> None:
        """Work within the transaction of `session`.

        Args:
            session: Committed, or rolled back, by whoever opened it.
            seconds_per_unit: How long it takes to check one unit of a delivery.
        """
        self._session = session
        self._seconds_per_unit = seconds_per_unit

    async def search(self, text: str, *, in_stock: bool, limit: int) -> Sequence[Product]:
        """Return products whose name or description contains `text`, by name."""
        found = select(Product).where(
            or_(
                Product.name.icontains(text, autoescape=True),
                Product.description.icontains(text, autoescape=True),
            )
        )
        if in_stock:
            found = found.where(Product.stock > 0)

        products = await self._session.scalars(found.order_by(Product.name).limit(limit))
        return products.all()

    async def product(self, sku: str) -> Product:
        """Return one product.

        Raises:
            AgentError: `PRODUCT_NOT_FOUND`.
        """
        product = await self._session.get(Product, sku)
        if product is None:
            raise AgentError(
                "PRODUCT_NOT_FOUND",
                "No product has this SKU.",
                ErrorCategory.NOT_FOUND,
                recoverable=True,
                suggested_action="search_products",
            )
        return product

    async def order(self, sku: str, quantity: int, *, placed_by: str) -> Order:
        """Take `quantity` from the stock and place an order for it.

        Raises:
            AgentError: `PRODUCT_NOT_FOUND` or `OUT_OF_STOCK`.
        """
        product = await self.product(sku)
        # One statement checks and takes, so that two orders never share a unit.
        taken = await self._session.execute(
            update(Product)
            .where(Product.sku == sku, Product.stock >= quantity)
            .values(stock=Product.stock - quantity)
            .returning(Product.stock)
        )
        if taken.scalar_one_or_none() is None:
            raise AgentError(
                "OUT_OF_STOCK",
                "There are not that many in stock.",
                ErrorCategory.CONFLICT,
                recoverable=True,
                details={"in_stock": product.stock},
            )

        order = Order(
            sku=sku,
            quantity=quantity,
            total_cents=quantity * product.price_cents,
            status="placed",
            placed_by=placed_by,
        )
        self._session.add(order)
        await self._session.flush()
        self._session.add(TrackingStep(order_id=order.id, status="placed"))
        return order

    async def find_order(self, order_id: int) -> Order:
        """Return one order.

        Raises:
            AgentError: `ORDER_NOT_FOUND`.
        """
        order = await self._session.get(Order, order_id)
        if order is None:
            raise AgentError(
                "ORDER_NOT_FOUND",
                "There is no order with this id.",
                ErrorCategory.NOT_FOUND,
                recoverable=True,
            )
        return order

    async def cancel(self, order_id: int) -> Order:
        """Cancel an order that was not sent yet, and put its units back.

        Raises:
            AgentError: `ORDER_NOT_FOUND` or `ORDER_NOT_CANCELLABLE`.
        """
        order = await self.find_order(order_id)
        cancelled = await self._session.execute(
            update(Order)
            .where(Order.id == order_id, Order.status == "placed")
            .values(status="cancelled")
            .returning(Order.id)
        )
        if cancelled.scalar_one_or_none() is None:
            raise AgentError(
                "ORDER_NOT_CANCELLABLE",
                "Only an order that was not sent yet can be cancelled.",
                ErrorCategory.CONFLICT,
                details={"status": order.status},
            )

        await self._add_to_stock(order.sku, order.quantity)
        self._session.add(TrackingStep(order_id=order_id, status="cancelled"))
        await self._session.flush()
        await self._session.refresh(order)
        return order

    async def restock(self, sku: str, quantity: int, *, checked: Callable[[int], None]) -> Product:
        """Check a delivery unit by unit, then book all of it.

        Nothing is written before the last unit was checked, so a delivery that is
        broken off is not booked, and no other writer waits for a slow one.

        Args:
            sku: What was delivered.
            quantity: How many.
            checked: Told how many units were checked so far.

        Raises:
            AgentError: `PRODUCT_NOT_FOUND`.
        """
        product = await self.product(sku)
        for number in range(1, quantity + 1):
            await anyio.sleep(self._seconds_per_unit)
            checked(number)

        await self._add_to_stock(sku, quantity)
        await self._session.refresh(product)
        return product

    async def track(self, order_id: int) -> AsyncIterator[TrackingStep]:
        """Yield what happened to an order, oldest first.

        Raises:
            AgentError: `ORDER_NOT_FOUND`.
        """
        await self.find_order(order_id)
        steps = select(TrackingStep).where(TrackingStep.order_id == order_id)
        async for step in await self._session.stream_scalars(steps.order_by(TrackingStep.id)):
            yield step

    async def _add_to_stock(self, sku: str, quantity: int) -> None:
        await self._session.execute(
            update(Product).where(Product.sku == sku).values(stock=Product.stock + quantity)
        )


def get_shop(request: Request, session: CurrentSession) -> Shop:
    """Return the shop for one request or execution."""
    return Shop(session, seconds_per_unit=request.state.seconds_per_unit)


CurrentShop = Annotated[Shop, Depends(get_shop)]
