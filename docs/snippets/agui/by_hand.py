from typing import Any

from fastapi import FastAPI, Request, Response

from fastapi_carmy.agui import (
    AgUiInput,
    CancelToken,
    EventStreamResponse,
    RunContext,
    negotiate,
    run_events,
)

app = FastAPI()


async def greeter(run: RunContext[Any]) -> None:
    await run.say(f"Hello, {run.forwarded_props['tenant']}!")


@app.post("/{tenant}/chat")
async def chat(tenant: str, run_input: AgUiInput, request: Request) -> Response:
    negotiate(request.headers.get("accept"))
    run_input.forwarded_props = {"tenant": tenant}
    token = CancelToken()
    return EventStreamResponse(run_events(greeter, run_input, token=token), token=token)
