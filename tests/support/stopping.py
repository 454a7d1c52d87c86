"""An application to be stopped while it works; `STOP_LOG` names the file its store writes.

Served as `tests.support.stopping:app`.
"""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import anyio
from fastapi import Depends, FastAPI

from fastapi_carmy import AgentContext, AgentRouter
from tests.support.stores import LoggingStore

__all__ = ("app",)

LOG = Path(os.environ.get("STOP_LOG", os.devnull))


class Crowd:
    """Counts who is inside, and knows when all are."""

    def __init__(self) -> None:
        self.inside = 0
        self._arrival = anyio.Event()

    def enter(self) -> None:
        self.inside += 1
        self._arrival.set()
        self._arrival = anyio.Event()

    async def until(self, count: int) -> None:
        while self.inside < count:
            await self._arrival.wait()


crowd = Crowd()
store = LoggingStore(LOG)
agent = AgentRouter(store=store, stop_seconds=float(os.environ.get("STOP_SECONDS", "5")))


def note(line: str) -> None:
    with LOG.open("a") as log:
        log.write(f'{{"verb": "{line}", "key": null}}\n')


async def session() -> AsyncIterator[None]:
    try:
        yield
    except Exception:
        # A rollback that takes a while, as over a network.
        await anyio.sleep(0.05)
        note("rolled back")
        raise
    else:
        note("committed")


Session = Annotated[None, Depends(session)]


@agent.tool(effect="read", parallel_safe=True)
async def look(session: Session) -> str:
    """Look for longer than anybody waits."""
    crowd.enter()
    await anyio.sleep_forever()
    return "never"


@agent.tool(effect="write", parallel_safe=True)
async def book(session: Session) -> str:
    """Book for longer than anybody waits."""
    crowd.enter()
    await anyio.sleep_forever()
    return "never"


@agent.tool(effect="write", parallel_safe=True, on_disconnect="finish")
async def ship(session: Session) -> str:
    """Ship for longer than anybody waits, whoever hangs up."""
    crowd.enter()
    await anyio.sleep_forever()
    return "never"


@agent.tool(effect="write", parallel_safe=True)
def print_label(context: AgentContext, session: Session) -> str:
    """Print in a thread that stops when it is told."""
    _enter_from_thread()
    while not context.is_cancelled:
        time.sleep(0.01)
    return "half"


@agent.tool(effect="write", parallel_safe=True)
def engrave(session: Session) -> str:
    """Engrave in a thread that listens to nobody."""
    _enter_from_thread()
    time.sleep(30)
    return "late"


@agent.tool(effect="write", parallel_safe=True)
async def pack(session: Session) -> str:
    """Pack, which is done soon."""
    crowd.enter()
    await anyio.sleep(0.4)
    return "packed"


def _enter_from_thread() -> None:
    anyio.from_thread.run_sync(crowd.enter)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    note("resources closed")


app = FastAPI(lifespan=lifespan)
app.include_router(agent)


@app.get("/inside/{count}")
async def inside(count: int) -> None:
    """Answer once so many tools run."""
    await crowd.until(count)
