"""AG-UI over HTTP: the only part of `agui` that knows FastAPI."""

from fastapi_carmy.agui.endpoint.by_hand import (
    AgUiInput,
    EventStreamResponse,
    read_run_input,
    refusal_response,
)
from fastapi_carmy.agui.endpoint.mounting import add_agent
from fastapi_carmy.agui.endpoint.serving import AgentEndpoint

__all__ = (
    "AgUiInput",
    "AgentEndpoint",
    "EventStreamResponse",
    "add_agent",
    "read_run_input",
    "refusal_response",
)
