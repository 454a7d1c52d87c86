"""The same events by hand, with `sse-starlette` in a FastAPI endpoint."""

from collections.abc import AsyncIterator
from uuid import uuid4

from anyio.lowlevel import checkpoint
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic_core import to_json
from sse_starlette import EventSourceResponse

from benchmarks.contenders.carmy_progress import STEPS


class Restock(BaseModel):
    """What is filled up."""

    sku: str


app = FastAPI()


@app.post("/restock")
async def restock(order: Restock) -> EventSourceResponse:
    """Fill the shelves."""
    execution = {"execution_id": f"exec_{uuid4()}", "tool": "restock"}

    def event(name: str, **fields: object) -> dict[str, str]:
        return {"event": name, "data": to_json({**execution, **fields}).decode()}

    async def events() -> AsyncIterator[dict[str, str]]:
        yield event("execution.started")
        yield event("tool.started")

        for step in range(STEPS):
            await checkpoint()
            yield event("tool.progress", progress=float(step + 1), total=float(STEPS))

        yield event("tool.completed", duration_ms=1, ok=True)
        yield event("execution.completed", status="completed", data=order.sku)

    return EventSourceResponse(events(), sep="\n")
