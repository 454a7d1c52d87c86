"""What the shop takes and answers, the same over REST and for agents."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ("OrderId", "OrderOut", "ProductOut", "Quantity", "RestockOut", "Sku", "TrackingOut")

Sku = Annotated[str, Field(min_length=1, max_length=20, examples=["TEA-001"])]
Quantity = Annotated[int, Field(ge=1, le=100)]
# The largest integer that every JSON client keeps exactly.
OrderId = Annotated[int, Field(ge=1, le=2**53 - 1)]
Status = Literal["placed", "sent", "delivered", "cancelled"]


class ProductOut(BaseModel):
    """A product as customers see it."""

    model_config = ConfigDict(from_attributes=True)

    sku: str
    name: str
    description: str
    price_cents: int
    stock: int


class OrderOut(BaseModel):
    """An order."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    sku: str
    quantity: int
    total_cents: int
    status: Status
    placed_by: str


class RestockOut(BaseModel):
    """What a delivery came to."""

    sku: str
    booked: int
    stock: int


class TrackingOut(BaseModel):
    """One thing that happened to an order."""

    model_config = ConfigDict(from_attributes=True)

    status: Status
    happened_at: datetime
