"""Agent tools for FastAPI: safe retries, machine-readable errors, real cancellation."""

from fastapi_carmy.caller import Caller
from fastapi_carmy.context import AgentContext
from fastapi_carmy.errors import AgentError, ErrorCategory
from fastapi_carmy.http.errors import agent_error_handler
from fastapi_carmy.injection import CurrentCaller, CurrentContext
from fastapi_carmy.router import AgentRouter
from fastapi_carmy.signature import Arguments
from fastapi_carmy.tool import Effect

__all__ = (
    "AgentContext",
    "AgentError",
    "AgentRouter",
    "Arguments",
    "Caller",
    "CurrentCaller",
    "CurrentContext",
    "Effect",
    "ErrorCategory",
    "agent_error_handler",
)
