"""How an execution ends for everybody else: its `request_id`, the audit, those who watch.

Source: carmy/1, section 4.1, step 11, and sections 4.2 and 6.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

from anyio import move_on_after

from fastapi_carmy.audit import ExecutionRecord, audit_all
from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Cancellation, Interrupted
from fastapi_carmy.envelope import Call
from fastapi_carmy.errors import AgentError
from fastapi_carmy.events import Event, ExecutionCompleted, ToolCompleted
from fastapi_carmy.reservation import Reservation
from fastapi_carmy.result import ExecutionResult, ExecutionStatus
from fastapi_carmy.seams import Settings

__all__ = ("Conclusion",)

_logger = logging.getLogger(__name__)
_Settle = Callable[[], Awaitable[None]]


class Conclusion:
    """What is told, recorded and audited of one execution.

    Attributes:
        reservation: The hold on the call's `request_id`, once there is one.
    """

    __slots__ = (
        "_call",
        "_caller",
        "_cancellation",
        "_execution_id",
        "_report",
        "_settings",
        "_started",
        "_started_at",
        "reservation",
    )

    def __init__(
        self,
        execution_id: str,
        settings: Settings,
        call: Call,
        *,
        caller: Caller,
        cancellation: Cancellation,
        report: Callable[[Event], None] | None,
    ) -> None:
        """Begin to count the time. For the arguments see `Execution`."""
        self._execution_id = execution_id
        self._settings = settings
        self._call = call
        self._caller = caller
        self._cancellation = cancellation
        self._report = report
        self._started = time.monotonic()
        self._started_at = time.time()
        self.reservation: Reservation | None = None

    @property
    def started_at(self) -> str:
        """When the execution began, RFC 3339 in UTC."""
        moment = datetime.fromtimestamp(self._started_at, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @property
    def has_more_to_do(self) -> bool:
        """Whether somebody outside is still to be told, and may take his time."""
        return self.reservation is not None or bool(self._settings.audit)

    async def conclude(
        self, result: ExecutionResult, settle: _Settle | None, *, tool_started: float | None
    ) -> ExecutionResult:
        """Tell, record, audit, tell.

        Args:
            result: The answer.
            settle: What becomes of the `request_id`; `None` when there is nothing to do.
            tool_started: When the tool was about to run, by `time.monotonic`, if it was.

        Raises:
            Interrupted: If the task is interrupted by somebody else; it is settled by then.
        """
        if self._report is not None and tool_started is not None:
            duration_ms = round((time.monotonic() - tool_started) * 1000)
            ok = result.error is None
            self._report(ToolCompleted(self._execution_id, self._call.tool_name, duration_ms, ok))

        is_settled = settle is None

        try:
            if settle is not None:
                await settle()
                is_settled = True

            if self._settings.audit:
                await self.audit(result.status, result.error, replayed=result.replayed)
        except Interrupted:
            if not await self._cancellation.settle():
                if settle is not None and not is_settled:
                    await self.see_through(settle)
                    await self.audit_unheard(result.status, result.error, replayed=result.replayed)

                raise

            what = "Auditing" if is_settled else "Recording"
            _logger.error(  # noqa: TRY400 - the traceback of a time limit says nothing
                "%s execution %s took too long and was given up.", what, self._execution_id
            )

        if self._report is not None:
            self._report(ExecutionCompleted(result))

        return result

    async def see_through(self, work: _Settle) -> None:
        """Do what must be done although the task is interrupted; once more if it was cut.

        Raises:
            Interrupted: If it was cut twice.
        """
        try:
            await self._shielded(work)
        except Interrupted:
            await self._shielded(work)
            raise

    async def audit_unheard(
        self, status: ExecutionStatus, error: AgentError | None, *, replayed: bool = False
    ) -> None:
        """Audit an execution whose answer nobody takes."""
        if self._settings.audit:
            await self._shielded(partial(self.audit, status, error, replayed=replayed))

    async def audit(
        self, status: ExecutionStatus, error: AgentError | None, *, replayed: bool
    ) -> None:
        """Give every sink one record of this call."""
        tool = self._call.tool
        request_id = self._call.request_id
        await audit_all(
            self._settings.audit,
            ExecutionRecord(
                execution_id=self._execution_id,
                request_id=request_id if isinstance(request_id, str) else None,
                principal=self._caller.principal,
                session=self._caller.session,
                tool=self._call.tool_name,
                effect=None if tool is None else tool.spec.effect,
                status=status,
                error_code=None if error is None else error.code,
                duration_ms=round((time.monotonic() - self._started) * 1000),
                started_at=self.started_at,
                replayed=replayed,
            ),
        )

    async def _shielded(self, work: _Settle) -> None:
        # From the host's cancel scope, which would interrupt every await.
        with move_on_after(self._settings.finish_seconds, shield=True):
            await work()
