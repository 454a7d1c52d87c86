from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI

from fastapi_carmy import AgentError, AgentRouter, CurrentCaller, ErrorCategory

journal: list[str] = []


async def transaction(caller: CurrentCaller) -> AsyncIterator[list[str]]:
    who = caller.principal or "somebody"
    changes: list[str] = []
    try:
        yield changes
    except BaseException:
        journal.append(f"{who} rolled back")
        raise
    journal.append(f"{who} committed {', '.join(changes)}")


Transaction = Annotated[list[str], Depends(transaction)]


def paging(skip: int = 0, limit: int = 10) -> slice:
    return slice(skip, skip + limit)


agent = AgentRouter(server="shop")


@agent.tool(effect="write")
async def create_order(sku: str, changes: Transaction) -> str:
    """Place an order."""
    changes.append(sku)
    if sku == "POT-001":
        raise AgentError("OUT_OF_STOCK", "None is left.", ErrorCategory.CONFLICT)
    return "placed"


@agent.tool(effect="read")
async def read_journal(page: Annotated[slice, Depends(paging)]) -> list[str]:
    """Return what happened, oldest first."""
    return journal[page]


app = FastAPI()
app.include_router(agent)
