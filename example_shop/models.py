"""The shop's tables. What must always hold is a constraint of the database."""

from datetime import UTC, datetime

from sqlalchemy import JSON, CheckConstraint, DateTime, Dialect, ForeignKey, String, TypeDecorator
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = ("AccessToken", "Base", "Order", "Product", "TrackingStep")


class Base(DeclarativeBase):
    """The registry of all tables."""


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time; SQLite keeps no time zone, so it is UTC there and back."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Take a time of any zone."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return a time in UTC."""
        return None if value is None else value.replace(tzinfo=UTC)


class Product(Base):
    """Something to sell."""

    __tablename__ = "products"
    __table_args__ = (CheckConstraint("price_cents >= 0"), CheckConstraint("stock >= 0"))

    sku: Mapped[str] = mapped_column(String(20), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    description: Mapped[str]
    price_cents: Mapped[int]
    stock: Mapped[int]


class Order(Base):
    """What somebody bought."""

    __tablename__ = "orders"
    __table_args__ = (
        CheckConstraint("quantity > 0"),
        CheckConstraint("status IN ('placed', 'sent', 'delivered', 'cancelled')"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str] = mapped_column(ForeignKey("products.sku"))
    quantity: Mapped[int]
    total_cents: Mapped[int]
    status: Mapped[str] = mapped_column(default="placed")
    placed_by: Mapped[str]


class TrackingStep(Base):
    """One thing that happened to an order."""

    __tablename__ = "tracking_steps"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"), index=True)
    status: Mapped[str]
    happened_at: Mapped[datetime] = mapped_column(UtcDateTime, default=lambda: datetime.now(UTC))


class AccessToken(Base):
    """A bearer token, kept as its SHA-256, and what its holder may do."""

    __tablename__ = "access_tokens"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    principal: Mapped[str]
    permissions: Mapped[list[str]] = mapped_column(JSON)
