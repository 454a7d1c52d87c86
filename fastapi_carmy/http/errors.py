"""Our errors in the host's own endpoints."""

from starlette.requests import Request
from starlette.responses import Response

from fastapi_carmy.errors import AgentError
from fastapi_carmy.http.responses import error_body

__all__ = ("agent_error_handler",)


async def agent_error_handler(
    request: Request,  # noqa: ARG001 - the signature that Starlette calls
    error: Exception,
) -> Response:
    """Answer an `AgentError` that one of the host's own endpoints raised.

    Register it once: `app.add_exception_handler(AgentError, agent_error_handler)`.

    Args:
        request: Of the endpoint.
        error: An `AgentError`; anything else is raised again.
    """
    if not isinstance(error, AgentError):
        raise error

    return Response(
        error_body(error),
        error.status_code,
        headers=dict(error.headers),
        media_type="application/json",
    )
