"""The errors that the runtime itself gives: each code once, with its fixed fields.

Source: carmy/1, section 4.5.
"""

from collections.abc import Sequence

from fastapi_carmy.errors import AgentError, ErrorCategory

__all__ = (
    "busy",
    "cancelled",
    "execution_uncertain",
    "idempotency_capacity",
    "idempotency_conflict",
    "invalid_arguments",
    "invalid_id",
    "invalid_output",
    "invalid_request",
    "method_not_allowed",
    "payload_too_large",
    "store_error",
    "timed_out",
    "tool_not_found",
    "tool_panic",
)


def invalid_request(reason: str, **details: object) -> AgentError:
    """Refuse a request that can't be decoded.

    Args:
        reason: Names the place; never holds any of the input.
        details: What else helps to mend it.
    """
    return AgentError(
        "INVALID_REQUEST",
        "The request is not one of carmy/1.",
        ErrorCategory.VALIDATION,
        recoverable=True,
        details={"reason": reason, **details},
    )


class _PayloadTooLargeError(AgentError):
    @property
    def status_code(self) -> int:
        return 413


def payload_too_large(max_bytes: int) -> AgentError:
    """Refuse a body of more than `max_bytes` bytes."""
    return _PayloadTooLargeError(
        "PAYLOAD_TOO_LARGE",
        "The request body is too large.",
        ErrorCategory.CAPACITY,
        recoverable=True,
        details={"reason": f"a body has at most {max_bytes} bytes"},
    )


class _MethodNotAllowedError(AgentError):
    def __init__(self, allow: str) -> None:
        super().__init__(
            "HTTP_ERROR",
            "This path does not answer this method.",
            ErrorCategory.VALIDATION,
            recoverable=True,
            details={"reason": f"allowed: {allow}"},
        )
        self._allow = allow

    @property
    def status_code(self) -> int:
        return 405

    @property
    def headers(self) -> dict[str, str]:
        return {"Allow": self._allow}


def method_not_allowed(allow: str) -> AgentError:
    """Refuse a method; `allow` lists those that work, separated by commas."""
    return _MethodNotAllowedError(allow)


def tool_not_found(nearest: str | None) -> AgentError:
    """Say that no tool has the requested name, and which one is near."""
    return AgentError(
        "TOOL_NOT_FOUND",
        "There is no tool with this name.",
        ErrorCategory.NOT_FOUND,
        recoverable=True,
        suggested_action=nearest,
    )


def invalid_id() -> AgentError:
    """Refuse a request_id that is not 1 to 256 bytes of UTF-8, or contradicts itself."""
    return AgentError(
        "INVALID_ID",
        "A request_id is a string of 1 to 256 bytes of UTF-8, the same in body and header.",
        ErrorCategory.VALIDATION,
        recoverable=True,
    )


def invalid_arguments(errors: Sequence[object]) -> AgentError:
    """Refuse arguments; `errors` is a list of `{path, message, type}`."""
    return AgentError(
        "INVALID_ARGUMENTS",
        "The arguments do not fit the tool's input schema.",
        ErrorCategory.VALIDATION,
        recoverable=True,
        details={"errors": list(errors)},
    )


def cancelled() -> AgentError:
    """Say that the execution was stopped."""
    return AgentError("CANCELLED", "The execution was cancelled.", ErrorCategory.CANCELLED)


def timed_out() -> AgentError:
    """Say that the execution met its deadline."""
    return AgentError("TIMEOUT", "The tool did not finish in time.", ErrorCategory.TIMEOUT)


def busy() -> AgentError:
    """Say that the deadline was met while waiting, before anything ran."""
    return AgentError(
        "BUSY",
        "The tool is busy with other calls; nothing was done.",
        ErrorCategory.CAPACITY,
        retryable=True,
        retry_after=1,
    )


def idempotency_conflict() -> AgentError:
    """Say that the request_id belongs to a call with another tool or other arguments."""
    return AgentError(
        "IDEMPOTENCY_CONFLICT",
        "This request_id was used for a different call.",
        ErrorCategory.CONFLICT,
    )


def execution_uncertain(execution_id: str, started_at: str, state: str) -> AgentError:
    """Say that nobody knows how the call with this request_id ends, or ended.

    Args:
        execution_id: Of the execution that holds the request_id.
        started_at: When it began, RFC 3339 in UTC.
        state: `running` or `abandoned`.
    """
    return AgentError(
        "EXECUTION_UNCERTAIN",
        "The call with this request_id has not finished, or was abandoned half-way; "
        "it is not run again.",
        ErrorCategory.CONFLICT,
        details={"execution_id": execution_id, "started_at": started_at, "state": state},
    )


def idempotency_capacity() -> AgentError:
    """Say that no more unfinished calls can be remembered."""
    return AgentError(
        "IDEMPOTENCY_CAPACITY",
        "Too many calls with a request_id are unfinished; nothing was done.",
        ErrorCategory.CAPACITY,
        retryable=True,
        retry_after=1,
    )


def store_error() -> AgentError:
    """Say that the request_id could not be reserved; nothing ran."""
    return AgentError(
        "STORE_ERROR",
        "The request_id could not be checked; nothing was done.",
        ErrorCategory.INTERNAL,
        retryable=True,
        retry_after=1,
    )


def tool_panic(correlation_id: str) -> AgentError:
    """Answer for an unexpected exception; its text stands in the log only."""
    return AgentError(
        "TOOL_PANIC",
        "The tool failed unexpectedly.",
        ErrorCategory.INTERNAL,
        details={"correlation_id": correlation_id},
    )


def invalid_output(correlation_id: str) -> AgentError:
    """Answer for a tool that returned something else than it declares."""
    return AgentError(
        "INVALID_OUTPUT",
        "The tool's output does not fit its output schema.",
        ErrorCategory.INTERNAL,
        details={"correlation_id": correlation_id},
    )
