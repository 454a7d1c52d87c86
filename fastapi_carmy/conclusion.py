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
from fastapi_carmy.cancellation import Interrupted
from fastapi_carmy.errors import AgentError
from fastapi_carmy.events import ExecutionCompleted, ToolCompleted
from fastapi_carmy.result import ExecutionResult, ExecutionStatus, status_of
from fastapi_carmy.state import ExecutionState

__all__ = ("audit_refusal", "audit_unheard", "conclude", "see_through", "started_at")

_logger = logging.getLogger(__name__)
_Settle = Callable[[], Awaitable[None]]


def started_at(state: ExecutionState) -> str:
    """Return when the execution began, RFC 3339 in UTC."""
    moment = datetime.fromtimestamp(time.time() - (time.monotonic() - state.started), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def conclude(
    state: ExecutionState, result: ExecutionResult, settle: _Settle | None
) -> ExecutionResult:
    """Tell, record, audit, tell; none of it is waited for longer than `finish_seconds`.

    Args:
        state: The execution.
        result: Its answer.
        settle: What becomes of the `request_id`; `None` when there is nothing to do.

    Raises:
        Interrupted: If the task is interrupted by somebody else; it is settled by then.
    """
    if state.report is not None and state.tool_started is not None:
        duration_ms = round((time.monotonic() - state.tool_started) * 1000)
        ok = result.error is None
        state.report(ToolCompleted(state.id, state.call.tool_name, duration_ms, ok))

    is_settled = settle is None
    cancellation = state.cancellation
    cancellation.limit_finish(state.settings.finish_seconds)

    try:
        if settle is not None:
            await settle()
            is_settled = True

        if state.settings.audit:
            await _audit(state, result.status, result.error, replayed=result.replayed)
    except Interrupted:
        if not await cancellation.settle():
            if settle is not None and not is_settled:
                await see_through(state, settle)
                await audit_unheard(state, result.status, result.error, replayed=result.replayed)

            raise

        _log_cut("Auditing" if is_settled else "Recording", state)

    # The answer is sent in the same task, and a thread may be waited for.
    cancellation.end()

    if state.report is not None:
        state.report(ExecutionCompleted(result))

    return result


async def see_through(state: ExecutionState, work: _Settle) -> None:
    """Do what must be done although the task is interrupted; once more if it was cut.

    Raises:
        Interrupted: If it was cut twice.
    """
    try:
        await _shielded(state, work)
    except Interrupted:
        await _shielded(state, work)
        raise


async def audit_refusal(state: ExecutionState, refusal: AgentError) -> None:
    """Audit an execution that the tool's own guards refused.

    Raises:
        Interrupted: If the task is interrupted by somebody else.
    """
    if not state.settings.audit:
        return

    try:
        await _audit(state, status_of(refusal), refusal, replayed=False)
    except Interrupted:
        if not await state.cancellation.settle():
            raise

        _log_cut("Auditing", state)


async def audit_unheard(
    state: ExecutionState,
    status: ExecutionStatus,
    error: AgentError | None,
    *,
    replayed: bool = False,
) -> None:
    """Audit an execution whose answer nobody takes."""
    if state.settings.audit:
        await _shielded(state, partial(_audit, state, status, error, replayed=replayed))


async def _audit(
    state: ExecutionState, status: ExecutionStatus, error: AgentError | None, *, replayed: bool
) -> None:
    """Give every sink one record of this call."""
    tool = state.call.tool
    await audit_all(
        state.settings.audit,
        ExecutionRecord(
            execution_id=state.id,
            request_id=state.request_id,
            principal=state.caller.principal,
            session=state.caller.session,
            tool=state.call.tool_name,
            effect=None if tool is None else tool.spec.effect,
            status=status,
            error_code=None if error is None else error.code,
            duration_ms=round((time.monotonic() - state.started) * 1000),
            started_at=started_at(state),
            replayed=replayed,
        ),
    )


def _log_cut(what: str, state: ExecutionState) -> None:
    # Without the traceback: that of a time limit says nothing.
    _logger.error("%s execution %s took too long and was given up.", what, state.id)


async def _shielded(state: ExecutionState, work: _Settle) -> None:
    # From the host's cancel scope, which would interrupt every await.
    with move_on_after(state.settings.finish_seconds, shield=True):
        await work()
