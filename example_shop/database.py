"""The connection to the shop's SQLite database, and one session per request or execution."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from example_shop.catalog import seed
from example_shop.models import Base

__all__ = ("CurrentSession", "get_session", "open_database")


@asynccontextmanager
async def open_database(path: Path) -> AsyncIterator[async_sessionmaker[AsyncSession]]:
    """Open the database at `path`; make and fill it when it is new."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 10})
    event.listen(engine.sync_engine, "connect", _configure)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

        sessions = async_sessionmaker(engine, expire_on_commit=False)
        async with sessions.begin() as session:
            await seed(session)

        yield sessions
    finally:
        await engine.dispose()


async def get_session(request: Request) -> AsyncIterator[AsyncSession]:
    """Open a transaction: a success commits it, anything else rolls it back."""
    sessions: async_sessionmaker[AsyncSession] = request.state.sessions
    async with sessions.begin() as session:
        yield session


# `scope="function"`: a REST endpoint, too, commits before it answers.
CurrentSession = Annotated[AsyncSession, Depends(get_session, scope="function")]


def _configure(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    # Readers don't wait for the one writer.
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
