"""The audit trail: one record for each call that reached the runtime, and where it goes."""

import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Protocol

from fastapi_carmy.errors import ConfigurationError

__all__ = ("AuditSink", "ExecutionRecord", "LogSink", "audit_all", "compile_sinks")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """What is kept of one call: who, what and how it ended; never arguments or outputs.

    Source: carmy/1, section 6.
    """

    execution_id: str
    request_id: str | None
    principal: str | None
    session: str | None

    tool: str
    """The name as called; there may be no such tool."""

    effect: str | None
    """The tool's effect; `None` when there is no such tool."""

    status: str
    """`completed`, `failed`, `cancelled` or `timed_out`."""

    error_code: str | None
    duration_ms: int

    started_at: str
    """RFC 3339, UTC."""

    replayed: bool

    def as_dict(self) -> dict[str, object]:
        """Return all fields by name, each always there."""
        return {name: getattr(self, name) for name in self.__slots__}


class AuditSink(Protocol):
    """Where execution records go."""

    def record(self, record: ExecutionRecord) -> Awaitable[None] | None:
        """Keep one record.

        Runs once the answer is settled and before it is sent, in the order of the router's
        sinks. May be `async`; a plain one runs on the event loop, so it must not wait for
        anything. What it raises is logged, and changes nothing.
        """
        ...


class LogSink:
    """Writes each record as one line of a log, with its fields as `extra["execution"]`."""

    def __init__(self, logger: logging.Logger, *, level: int = logging.INFO) -> None:
        """Write to `logger`."""
        self._logger = logger
        self._level = level

    def record(self, record: ExecutionRecord) -> None:
        """Write one line."""
        self._logger.log(
            self._level,
            "%s: %s %s in %d ms",
            record.execution_id,
            record.tool,
            record.error_code or record.status,
            record.duration_ms,
            extra={"execution": record.as_dict()},
        )


def compile_sinks(sinks: Iterable[AuditSink]) -> tuple[AuditSink, ...]:
    """Return `sinks` in order, each of them sure to be one.

    Raises:
        ConfigurationError: If one of them has no method `record`, or is a class.
    """
    compiled = tuple(sinks)
    for sink in compiled:
        if isinstance(sink, type) or not callable(getattr(sink, "record", None)):
            raise ConfigurationError(
                f"{sink!r} is not an audit sink: it needs to be an object with a method `record`."
            )

    return compiled


async def audit_all(sinks: Iterable[AuditSink], record: ExecutionRecord) -> None:
    """Give `record` to each sink, in order; a sink that fails stops nobody."""
    for sink in sinks:
        try:
            outcome = sink.record(record)
            if outcome is not None:
                await outcome
        except Exception:
            # The execution has happened: no fault of the host's trail may change its answer.
            _logger.exception("An audit sink failed on %s", record.execution_id)
