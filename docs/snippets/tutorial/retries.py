from fastapi import FastAPI
from pydantic import BaseModel

from fastapi_carmy import AgentError, AgentRouter, ErrorCategory


class Order(BaseModel):
    number: int
    sku: str


orders: list[Order] = []
attempts: list[str] = []

agent = AgentRouter(server="shop")


@agent.tool(effect="write")
async def create_order(sku: str) -> Order:
    """Place an order.

    Args:
        sku: Stock-keeping unit of the product.
    """
    orders.append(Order(number=len(orders) + 1, sku=sku))
    return orders[-1]


@agent.tool(effect="external_write")
async def pay(number: int) -> str:
    """Pay for an order.

    Args:
        number: The order's number.
    """
    attempts.append(f"order {number}")
    if len(attempts) == 1:
        # Nothing was paid, so the same call may run again.
        raise AgentError(
            "BANK_BUSY",
            "The bank does not answer.",
            ErrorCategory.CAPACITY,
            retryable=True,
            retry_after=1,
        )
    return "paid"


app = FastAPI()
app.include_router(agent)
