"""Errors as data: what an agent is told, and what stops an application from starting.

```text
ConfigurationError(ValueError)    while the application is built; raised early
  ToolError                       a mistake in one tool; names it, the parameter and the mend
AgentError                        while a call is served; carries the wire's fields
  HostError                       an HTTPException of the host, with the status it named
```
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from pydantic_core import from_json

from fastapi_carmy.jsontext import encode

__all__ = (
    "STATUS",
    "AgentError",
    "ConfigurationError",
    "ErrorCategory",
    "HostError",
    "ToolError",
)

_CODE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")


class ErrorCategory(StrEnum):
    """What kind of failure an error is; decides the HTTP status.

    Source: carmy/1, section 3.
    """

    VALIDATION = "validation"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    CAPACITY = "capacity"
    INTERNAL = "internal"


STATUS: Final[Mapping[ErrorCategory, int]] = MappingProxyType(
    {
        ErrorCategory.VALIDATION: 400,
        ErrorCategory.PERMISSION: 403,
        ErrorCategory.NOT_FOUND: 404,
        ErrorCategory.CANCELLED: 408,
        ErrorCategory.CONFLICT: 409,
        ErrorCategory.INTERNAL: 500,
        ErrorCategory.CAPACITY: 503,
        ErrorCategory.TIMEOUT: 504,
    }
)
"""Category → HTTP status. Source: carmy/1, section 3."""


class ConfigurationError(ValueError):
    """The application is put together wrongly; raised before it serves anything."""


class ToolError(ConfigurationError):
    """A mistake in one tool.

    Attributes:
        tool: The tool's name.
        problem: What is wrong, and how to mend it.
        parameter: The parameter at fault, or `None` when it is the tool itself.
    """

    def __init__(self, tool: str, problem: str, *, parameter: str | None = None) -> None:
        """Say what is wrong with `tool`, and how to mend it."""
        place = f"Tool {tool!r}" if parameter is None else f"Tool {tool!r}, parameter {parameter!r}"
        super().__init__(f"{place}: {problem}")
        self.tool = tool
        self.problem = problem
        self.parameter = parameter


class AgentError(Exception):
    """A failure that an agent can read and act on.

    A tool that raises a retryable error asserts that nothing happened, or that
    repeating it is harmless: the call's `request_id` is free again.

    Source: carmy/1, section 5.
    """

    def __init__(
        self,
        code: str,
        message: str,
        category: ErrorCategory,
        *,
        recoverable: bool = False,
        retryable: bool = False,
        retry_after: int | None = None,
        suggested_action: str | None = None,
        details: object = None,
    ) -> None:
        """Describe one failure.

        Args:
            code: Stable name in `UPPER_SNAKE`, for programs.
            message: One sentence, for people and models.
            category: Decides the HTTP status.
            recoverable: The agent can change the request and go on.
            retryable: The same request may succeed later; implies `recoverable`.
            retry_after: Whole seconds to wait before that.
            suggested_action: Name of a tool that helps.
            details: Any JSON value.

        Raises:
            ValueError: If `code` is not `UPPER_SNAKE`, or `retry_after` is no whole number of
                0 or more.
        """
        if _CODE.fullmatch(code) is None:
            raise ValueError(f"An error code is UPPER_SNAKE, not {code!r}.")

        if retry_after is not None and (type(retry_after) is not int or retry_after < 0):
            raise ValueError(f"retry_after is in whole seconds, 0 or more, not {retry_after!r}.")

        super().__init__(message)
        self.code = code
        self.message = message
        self.category = ErrorCategory(category)
        self.recoverable = recoverable or retryable
        self.retryable = retryable
        self.retry_after = retry_after
        self.suggested_action = suggested_action
        self.details = details

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    @property
    def status_code(self) -> int:
        """The HTTP status of this error's category."""
        return STATUS[self.category]

    @property
    def headers(self) -> Mapping[str, str]:
        """HTTP headers that belong to this error: name → value."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    def as_dict(self) -> dict[str, object]:
        """Return the wire's fields; those that are absent are left out.

        The values are plain JSON: what JSON can't hold in `details` is replaced.
        """
        fields: dict[str, object] = {
            "code": self.code,
            "message": self.message,
            "category": self.category.value,
            "recoverable": self.recoverable,
            "retryable": self.retryable,
        }
        optional = {
            "retry_after": self.retry_after,
            "suggested_action": self.suggested_action,
            "details": self.details,
        }
        fields.update((name, value) for name, value in optional.items() if value is not None)
        plain: dict[str, object] = from_json(encode(fields))
        return plain


class HostError(AgentError):
    """An `HTTPException` of the host, as data.

    From a guard, or from a dependency in JSON mode, it keeps the status and the
    headers that the host named; from a tool it gets its category's status.
    """

    def __init__(
        self,
        code: str,
        message: str,
        category: ErrorCategory,
        *,
        host_status: int,
        host_headers: Mapping[str, str],
        recoverable: bool = False,
        retryable: bool = False,
        retry_after: int | None = None,
        details: object = None,
    ) -> None:
        """Keep what the host said beside the wire's fields."""
        super().__init__(
            code,
            message,
            category,
            recoverable=recoverable,
            retryable=retryable,
            retry_after=retry_after,
            details=details,
        )
        self._host_status = host_status
        self._host_headers = host_headers

    @property
    def status_code(self) -> int:
        """The status that the host named, unless no error and no body can have it."""
        status = self._host_status
        fits = status >= HTTPStatus.MULTIPLE_CHOICES and status != HTTPStatus.NOT_MODIFIED
        return status if fits else super().status_code

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the host named."""
        return {**super().headers, **self._host_headers}

    def without_host(self) -> AgentError:
        """Return the same error with its category's status and no headers."""
        return AgentError(
            self.code,
            self.message,
            self.category,
            recoverable=self.recoverable,
            retryable=self.retryable,
            retry_after=self.retry_after,
            details=self.details,
        )
