"""AG-UI 1.0: agents that are served on the same router as the tools."""

try:
    from fastapi_carmy.agui.context import RunContext, RunOutcome
    from fastapi_carmy.agui.emitter import Emitter, StepHandle, SubagentHandle
    from fastapi_carmy.agui.endpoint import (
        AgUiInput,
        EventStreamResponse,
        read_run_input,
        refusal_response,
    )
    from fastapi_carmy.agui.errors import (
        AgUiError,
        DisconnectedError,
        EventEncodingError,
        EventError,
        InvalidStateError,
        ProtocolViolationError,
        RefusedRequestError,
        RunCancelledError,
        SlowConsumerError,
    )
    from fastapi_carmy.agui.handles import MessageHandle, ReasoningHandle, ToolCallHandle
    from fastapi_carmy.agui.input import decode
    from fastapi_carmy.agui.negotiation import negotiate
    from fastapi_carmy.agui.running import run_events
    from fastapi_carmy.agui.tokens import CancelToken
    from fastapi_carmy.agui.transform import FilterToolCalls, ToolResultToState, Transformer
    from fastapi_carmy.agui.verify import Verifier
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("ag_ui", "jsonpatch"):
        raise

    msg = 'AG-UI needs the extra: pip install "fastapi-carmy[agui]"'
    raise ImportError(msg) from error

__all__ = (
    "AgUiError",
    "AgUiInput",
    "CancelToken",
    "DisconnectedError",
    "Emitter",
    "EventEncodingError",
    "EventError",
    "EventStreamResponse",
    "FilterToolCalls",
    "InvalidStateError",
    "MessageHandle",
    "ProtocolViolationError",
    "ReasoningHandle",
    "RefusedRequestError",
    "RunCancelledError",
    "RunContext",
    "RunOutcome",
    "SlowConsumerError",
    "StepHandle",
    "SubagentHandle",
    "ToolCallHandle",
    "ToolResultToState",
    "Transformer",
    "Verifier",
    "decode",
    "negotiate",
    "read_run_input",
    "refusal_response",
    "run_events",
)
