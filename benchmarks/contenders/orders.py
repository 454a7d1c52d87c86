"""What every contender does: take an order, and say what it costs."""

from pydantic import BaseModel

PRICE = 2.5


class OrderIn(BaseModel):
    """What is ordered."""

    sku: str
    quantity: int = 1


class Order(BaseModel):
    """An order that was placed."""

    sku: str
    quantity: int
    total: float


def place(sku: str, quantity: int) -> Order:
    """Return the order."""
    return Order(sku=sku, quantity=quantity, total=quantity * PRICE)
