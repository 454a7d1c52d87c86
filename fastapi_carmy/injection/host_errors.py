"""The host's own exceptions as data. Source: carmy/1, section 3."""

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import cast
from uuid import uuid4

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fastapi_carmy.errors import AgentError, ErrorCategory, HostError
from fastapi_carmy.runtime_errors import cancelled, invalid_request, tool_panic
from fastapi_carmy.schemas import describe_error

__all__ = ("to_agent_error",)

_logger = logging.getLogger(__name__)
_MAX_ERRORS = 50

_CODES: Mapping[int, tuple[str, ErrorCategory]] = {
    401: ("UNAUTHENTICATED", ErrorCategory.PERMISSION),
    403: ("FORBIDDEN", ErrorCategory.PERMISSION),
    404: ("NOT_FOUND", ErrorCategory.NOT_FOUND),
    409: ("CONFLICT", ErrorCategory.CONFLICT),
    429: ("RATE_LIMITED", ErrorCategory.CAPACITY),
}


def to_agent_error(error: Exception) -> AgentError | None:
    """Return what an exception tells an agent, or `None` for an unexpected one."""
    if isinstance(error, AgentError):
        return error

    if isinstance(error, HTTPException):
        return _from_http(error)

    if isinstance(error, RequestValidationError):
        return _invalid_parameters(error.errors())

    # Who reads the body while the client leaves.
    return cancelled() if isinstance(error, ClientDisconnect) else None


def _invalid_parameters(errors: Iterable[Mapping[str, object]]) -> AgentError:
    """Refuse a request whose headers, cookies, path or query FastAPI could not read.

    Args:
        errors: As FastAPI reports them; what was sent in them is left out.
    """
    described: list[dict[str, str]] = []

    for error in list(errors)[:_MAX_ERRORS]:
        location = cast("Iterable[object]", error.get("loc", ()))
        described.append(describe_error(error, location=location))

    place = described[0]["path"] if described else "a parameter"
    return invalid_request(f"{place} is not valid", errors=described)


def _from_http(error: HTTPException) -> HostError:
    status = error.status_code
    headers = dict(error.headers or {})

    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        # What went wrong inside is nobody's business outside.
        correlation_id = uuid4().hex
        _logger.error(
            "The host answered %d (correlation_id %s).", status, correlation_id, exc_info=error
        )
        panic = tool_panic(correlation_id)
        return HostError(
            panic.code,
            panic.message,
            panic.category,
            host_status=status,
            host_headers=headers,
            details=panic.details,
        )

    code, category = _CODES.get(status, ("HTTP_ERROR", ErrorCategory.VALIDATION))
    # Typed as text, and often something else: FastAPI takes any JSON.
    detail = cast("object", error.detail)
    return HostError(
        code,
        detail if isinstance(detail, str) else _phrase(status),
        category,
        host_status=status,
        host_headers=headers,
        retryable=category is ErrorCategory.CAPACITY,
        retry_after=_retry_after(headers) if category is ErrorCategory.CAPACITY else None,
        details=None if isinstance(detail, str) else detail,
    )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "The request was refused."


def _retry_after(headers: Mapping[str, str]) -> int | None:
    """Read whole seconds; the header's other form, a date, is left to whoever reads headers."""
    for name, value in headers.items():
        if name.lower() == "retry-after" and value.isascii() and value.isdigit():
            return int(value)

    return None
