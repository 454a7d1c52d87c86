"""The application: REST endpoints and the agent router side by side."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from example_shop.database import open_database
from example_shop.rest import rest
from example_shop.tools import create_agent
from fastapi_carmy import AgentError, agent_error_handler

__all__ = ("create_app",)


def create_app(database: Path = Path("shop.db"), *, seconds_per_unit: float = 0.1) -> FastAPI:
    """Build the shop.

    Args:
        database: The SQLite file; made and filled on the first start.
        seconds_per_unit: How long it takes to check one unit of a delivery.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with open_database(database) as sessions:
            yield {"sessions": sessions, "seconds_per_unit": seconds_per_unit}

    app = FastAPI(title="Example shop", version="0.1.0", lifespan=lifespan)
    # REST endpoints raise the same errors as tools, and answer with the same bodies.
    app.add_exception_handler(AgentError, agent_error_handler)
    app.include_router(rest)
    app.include_router(create_agent())
    return app
