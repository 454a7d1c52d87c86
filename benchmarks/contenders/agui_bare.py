"""The least that answers with AG-UI events: FastAPI's `StreamingResponse`, the SDK's encoder."""

from collections.abc import AsyncIterator

from ag_ui.core import (
    RunAgentInput,
    RunFinishedEvent,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
)
from ag_ui.encoder import EventEncoder
from anyio.lowlevel import checkpoint
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

EVENTS = 2000

app = FastAPI()


@app.post("/agent")
async def agent(run_input: RunAgentInput, *, pause: bool = False) -> StreamingResponse:
    """Answer with one long message."""
    encoder = EventEncoder()

    async def events() -> AsyncIterator[str]:
        thread, run = run_input.thread_id, run_input.run_id
        yield encoder.encode(RunStartedEvent(thread_id=thread, run_id=run))
        yield encoder.encode(TextMessageStartEvent(message_id="m", role="assistant"))
        for _ in range(EVENTS):
            yield encoder.encode(TextMessageContentEvent(message_id="m", delta="a few words "))
            if pause:
                await checkpoint()
        yield encoder.encode(TextMessageEndEvent(message_id="m"))
        yield encoder.encode(RunFinishedEvent(thread_id=thread, run_id=run))

    return StreamingResponse(events(), media_type=encoder.get_content_type())
