"""What the database holds on the first start."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncSession

from example_shop.models import AccessToken, Base, Order, Product, TrackingStep

__all__ = ("seed", "token_hash")

PRODUCTS = (
    ("TEA-001", "Green tea", "Sencha from Shizuoka, 100 g.", 790, 40),
    ("TEA-002", "Black tea", "Assam, second flush, 250 g.", 1190, 25),
    ("POT-001", "Tea pot", "Cast iron, 0.8 l, with a strainer.", 4900, 5),
    ("CUP-001", "Tea cup", "Stoneware, 180 ml.", 1250, 60),
    ("CUP-002", "Travel cup", "Steel, keeps tea hot for six hours.", 2900, 0),
)

TOKENS: tuple[tuple[str, str, list[str]], ...] = (
    ("anna-token", "anna", ["orders", "stock", "confirm:cancel_order"]),
    ("agent-token", "shop-agent", ["orders", "stock"]),
    ("guest-token", "guest", []),
)
"""Token, principal, permissions. They are public: this is an example."""

FIRST_ORDER = ("placed", "sent", "delivered")
FIRST_ORDER_AT = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def token_hash(token: str) -> str:
    """Return the form in which the database keeps a bearer token."""
    return sha256(token.encode()).hexdigest()


async def seed(session: AsyncSession) -> None:
    """Add what is missing; what is there stays as it is."""
    for sku, name, description, price_cents, stock in PRODUCTS:
        product = {"sku": sku, "name": name, "description": description}
        await _add(session, Product, product | {"price_cents": price_cents, "stock": stock})

    for token, principal, permissions in TOKENS:
        row = {"sha256": token_hash(token), "principal": principal, "permissions": permissions}
        await _add(session, AccessToken, row)

    order = {"id": 1, "sku": "TEA-001", "quantity": 2, "total_cents": 1580, "placed_by": "anna"}
    await _add(session, Order, order | {"status": FIRST_ORDER[-1]})
    for number, status in enumerate(FIRST_ORDER):
        at = FIRST_ORDER_AT.replace(day=FIRST_ORDER_AT.day + number)
        step = {"id": number + 1, "order_id": 1, "status": status, "happened_at": at}
        await _add(session, TrackingStep, step)


async def _add(session: AsyncSession, table: type[Base], row: dict[str, Any]) -> None:
    # Two first starts at once may both come here.
    await session.execute(insert(table).values(row).on_conflict_do_nothing())
