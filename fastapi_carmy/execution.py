"""One execution: the pipeline that every call goes through. Source: carmy/1, section 4.1.

It knows neither HTTP nor FastAPI: `Opened` stands for the call's dependencies, a
`Cancellation` for its caller's patience, and `report` for whoever watches. It lives in one
task from its guards to its record, because dependencies close in the task that opened them.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import NoReturn
from uuid import uuid4

from anyio import CancelScope

from fastapi_carmy.audit import ExecutionRecord, audit_all
from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Cancellation, CancelReason, Interrupted, NoThreadError
from fastapi_carmy.envelope import Call
from fastapi_carmy.errors import AgentError, HostError
from fastapi_carmy.events import Event, ExecutionCompleted, ExecutionStarted, ToolCompleted
from fastapi_carmy.next_actions import next_actions
from fastapi_carmy.policies import PolicyCall
from fastapi_carmy.reservation import Reservation, is_request_id, reserve
from fastapi_carmy.result import (
    ExecutionResult,
    ExecutionStatus,
    new_execution_id,
    status_of,
)
from fastapi_carmy.runtime_errors import (
    busy,
    cancelled,
    execution_uncertain,
    invalid_arguments,
    invalid_id,
    invalid_output,
    timed_out,
    tool_not_found,
    tool_panic,
)
from fastapi_carmy.schemas import argument_errors
from fastapi_carmy.seams import Opened, Settings
from fastapi_carmy.tool import InvalidOutputError, Tool
from fastapi_carmy.tool_run import Phase, ToolRun

__all__ = ("Execution",)

_logger = logging.getLogger(__name__)
_NOBODY_KNOWS = frozenset((CancelReason.DISCONNECT, CancelReason.STOP))


class Execution:
    """One call on its way through the pipeline.

    `run` gives the answer. `aclose` then waits for what outlived it: a sync tool past its
    deadline, whose thread can only be told to stop.
    """

    __slots__ = (
        "_call",
        "_caller",
        "_leave",
        "_opened",
        "_outlived",
        "_report",
        "_reservation",
        "_run",
        "_settings",
        "_started",
        "_started_at",
        "cancellation",
        "id",
    )

    def __init__(
        self,
        settings: Settings,
        call: Call,
        caller: Caller,
        opened: Opened,
        cancellation: Cancellation,
        *,
        report: Callable[[Event], None] | None,
        leave: Callable[["Execution"], None],
    ) -> None:
        """Prepare one call; nothing runs yet.

        Args:
            settings: What the router's executions share.
            call: The decoded request.
            caller: Who calls.
            opened: The call's dependencies.
            cancellation: The call's signal.
            report: Takes the execution's events, or `None` when nobody watches.
            leave: Told once, when nothing of the execution is left.
        """
        self.id = new_execution_id()
        self.cancellation = cancellation
        self._settings = settings
        self._call = call
        self._caller = caller
        self._opened = opened
        self._report = report
        self._leave = leave
        self._run = ToolRun(
            self.id,
            settings,
            call,
            caller=caller,
            opened=opened,
            cancellation=cancellation,
            report=report,
        )
        self._reservation: Reservation | None = None
        self._outlived: AgentError | None = None
        self._started = time.monotonic()
        self._started_at = time.time()

    async def run(self) -> ExecutionResult:
        """Take the call through the pipeline, and return its answer once it is recorded.

        Raises:
            AgentError: If one of the tool's own guards refuses: nothing has started then.
            BaseException: If the task is interrupted by somebody else, or the tool raises
                something that is no `Exception`; its dependencies are closed by then, and
                the reservation is settled.
        """
        tool = self._call.tool

        if tool is not None and tool.has_guards:
            await self._pass_guards(tool)

        if self._report is not None:
            self._report(ExecutionStarted(self.id, self._call.tool_name))

        try:
            tool, recorded = await self._claim()
            data = b""

            if recorded is None:
                value = await self._run.perform(tool)
                data = tool.output.dump(value)

            if self._opened.is_open or self._reservation is not None:
                self.cancellation.limit_finish(self._settings.finish_seconds)

            if self._opened.is_open:
                await self._opened.aclose(None)

            self._run.give_turn()
        except BaseException as error:  # noqa: BLE001
            # The edge of a run: everything becomes an answer, or is raised again.
            return await self._fail(error)

        if recorded is not None:
            return await self._conclude(recorded)

        return await self._conclude_success(tool, data)

    @property
    def has_outlived(self) -> bool:
        """Whether something of it still lives, so that `aclose` has to wait."""
        return self._outlived is not None

    async def aclose(self) -> None:
        """Wait for a thread that outlived the answer, then close what it used."""
        error = self._outlived

        if error is None:
            return

        self._outlived = None

        try:
            with CancelScope(shield=True):
                await self._run.await_thread()

            await self._close(error)
        except Exception:
            _logger.exception("Closing the dependencies of execution %s failed.", self.id)
        finally:
            self._finish()

    async def leave_behind(self) -> None:
        """Settle the `request_id` of an execution that the process does not wait for."""
        await self._settle_unknown()

    async def _pass_guards(self, tool: Tool) -> None:
        try:
            self.cancellation.begin()
            await self._opened.guards(tool, self._run.context)
            self.cancellation.end()
        except BaseException as error:  # noqa: BLE001
            # The edge of a run: a guard's refusal is an answer of its own.
            refusal = await self._stop(error)

            try:
                await self._close(_seen_by_dependencies(error, refusal))
            except Exception as late:  # noqa: BLE001
                if late is not error:
                    refusal = self._as_agent_error(late)

            await self._audit(status_of(refusal), refusal, replayed=False)
            self._finish()
            raise refusal from None

    async def _claim(self) -> tuple[Tool, ExecutionResult | None]:
        """Steps 2 to 7: look up, ask the policies, check, reserve, admit.

        Returns:
            The tool, and the recorded answer if this call was made before.
        """
        call = self._call
        settings = self._settings
        tool = call.tool
        self.cancellation.begin()

        if tool is None:
            raise tool_not_found(settings.nearest(call.tool_name))

        request_id = call.request_id
        asked = PolicyCall(
            tool.spec,
            self._caller,
            request_id if isinstance(request_id, str) else None,
            call.arguments_as_sent,
        )
        await settings.policies.check(asked)

        if request_id is not None and not is_request_id(request_id):
            raise invalid_id()

        if call.invalid is not None:
            raise invalid_arguments(argument_errors(call.invalid, call.arguments_as_sent()))

        # A claim that is interrupted half-way would leave nobody to settle it.
        self.cancellation.end()

        if self.cancellation.is_cancelled:
            raise Interrupted

        if request_id is not None:
            claimed = await reserve(
                settings.store, call, self._caller, self.id, may_repeat=tool.spec.is_repeatable
            )

            if isinstance(claimed, ExecutionResult):
                return tool, claimed

            self._reservation = claimed

        if settings.policies.admits:
            await settings.policies.admit(asked)

        return tool, None

    async def _fail(self, raised: BaseException) -> ExecutionResult:
        """Turn whatever ended the call into its answer: close, settle, conclude."""
        error = await self._stop(raised)

        if self._run.has_thread:
            if self.cancellation.reason is not CancelReason.DISCONNECT:
                self._outlived = error
                return await self._conclude_failure(error)

            # Nobody waits for the answer, so it may as well be the true one.
            try:
                await self._run.await_thread()
            except BaseException as cut:  # noqa: BLE001
                # Somebody else's interruption: the thread goes on, this task must not.
                await self._give_up(cut)

        self.cancellation.limit_finish(self._settings.finish_seconds)

        try:
            await self._close(_seen_by_dependencies(raised, error))
        except BaseException as late:  # noqa: BLE001
            # The edge of a run: a teardown's own failure is the later truth.
            if late is not raised and late is not error:
                error = await self._stop(late)

        return await self._conclude_failure(error)

    async def _stop(self, raised: BaseException) -> AgentError:
        """Let nothing interrupt any more, and name what happened.

        Raises:
            BaseException: `raised`, if the interruption was not ours, or is no `Exception`.
        """
        cancellation = self.cancellation
        cancellation.end()
        cancellation.lift()

        may_be_interrupted = isinstance(raised, Interrupted) or cancellation.is_cancelled

        if may_be_interrupted and not await cancellation.settle():
            await self._give_up(raised)

        if not isinstance(raised, Exception | Interrupted):
            await self._give_up(raised)

        if cancellation.overran:
            return execution_uncertain(self.id, self._started_text(), "abandoned")

        if not self._is_told_to_stop():
            return self._as_agent_error(raised)

        if not isinstance(raised, Interrupted | AgentError):
            _logger.warning(
                "Execution %s raised after it was told to stop.", self.id, exc_info=raised
            )

        if cancellation.reason is not CancelReason.DEADLINE:
            return cancelled()

        has_waited = self._run.phase is Phase.WAITING or isinstance(raised, NoThreadError)
        return busy() if has_waited else timed_out()

    def _is_told_to_stop(self) -> bool:
        return self.cancellation.is_cancelled and self._run.phase is not Phase.RETURNED

    async def _give_up(self, raised: BaseException) -> NoReturn:
        """Leave in order when the task is interrupted by somebody else, or the process ends."""
        try:
            # Shielded from the host's cancel scope, which would interrupt every await.
            with CancelScope(shield=True):
                if self._run.has_thread:
                    await self._settle_unknown()
                    await self._run.await_thread()

            # Not shielded here: a scope around it would not be the innermost one where a
            # dependency holds a scope of its own. FastAPI shields each of them.
            await self._close(cancelled())
        except Exception:
            _logger.exception("Closing the dependencies of execution %s failed.", self.id)
        finally:
            with CancelScope(shield=True):
                await self._settle_unknown()
                await self._audit("cancelled", cancelled(), replayed=False)

            self._finish()

        raise raised

    async def _conclude_success(self, tool: Tool, data: bytes) -> ExecutionResult:
        result = ExecutionResult.completed(
            self.id,
            data,
            cacheable=tool.spec.is_cacheable,
            next_actions=self._run.suggestions,
        )

        if self._reservation is not None:
            return await self._conclude(result, partial(self._reservation.complete, result))

        return await self._conclude(result)

    async def _conclude_failure(self, error: AgentError) -> ExecutionResult:
        if self._run.phase >= Phase.RUNNING and isinstance(error, HostError):
            error = error.without_host()

        suggestions = self._run.suggestions
        result = ExecutionResult.failed(
            self.id, error, next_actions=next_actions(self._call.tool_name, error, suggestions)
        )
        reservation = self._reservation

        if reservation is None:
            return await self._conclude(result)

        nobody_knows = self._is_told_to_stop() and self.cancellation.reason in _NOBODY_KNOWS

        if nobody_knows or self.cancellation.overran:
            return await self._conclude(result, self._settle_unknown)

        if self._run.phase < Phase.RUNNING or error.retryable:
            return await self._conclude(result, reservation.release)

        return await self._conclude(result, partial(reservation.complete, result))

    async def _conclude(
        self, result: ExecutionResult, settle: Callable[[], Awaitable[None]] | None = None
    ) -> ExecutionResult:
        """Step 11: tell, record, audit, tell."""
        if self._report is not None and self._run.started is not None:
            duration_ms = round((time.monotonic() - self._run.started) * 1000)
            ok = result.error is None
            self._report(ToolCompleted(self.id, self._call.tool_name, duration_ms, ok))

        is_settled = settle is None

        try:
            if settle is not None:
                await settle()
                is_settled = True

            if self._settings.audit:
                await self._audit(result.status, result.error, replayed=result.replayed)
        except Interrupted:
            if not await self.cancellation.settle():
                await self._conclude_unheard(result, None if is_settled else settle)
                raise

            _logger.error(  # noqa: TRY400
                "Recording execution %s took too long; its reservation stays.", self.id
            )

        if self._report is not None:
            self._report(ExecutionCompleted(result))

        if self._outlived is None:
            self._finish()
        else:
            self.cancellation.lift()

        return result

    async def _conclude_unheard(
        self, result: ExecutionResult, settle: Callable[[], Awaitable[None]] | None
    ) -> None:
        """Record once more what somebody else's interruption cut: the store may not have."""
        with CancelScope(shield=True):
            try:
                if settle is not None:
                    await settle()
                    await self._audit(result.status, result.error, replayed=result.replayed)
            finally:
                await self.aclose()
                self._finish()

    async def _close(self, error: BaseException | None) -> None:
        try:
            if self._opened.is_open:
                await self._opened.aclose(error)
        finally:
            self._run.give_turn()

    async def _settle_unknown(self) -> None:
        reservation = self._reservation

        if reservation is None:
            return

        tool = self._call.tool

        if self._run.phase < Phase.RUNNING or (tool is not None and tool.spec.is_repeatable):
            await reservation.release()
        else:
            await reservation.abandon()

    async def _audit(
        self, status: ExecutionStatus, error: AgentError | None, *, replayed: bool
    ) -> None:
        tool = self._call.tool
        request_id = self._call.request_id
        await audit_all(
            self._settings.audit,
            ExecutionRecord(
                execution_id=self.id,
                request_id=request_id if isinstance(request_id, str) else None,
                principal=self._caller.principal,
                session=self._caller.session,
                tool=self._call.tool_name,
                effect=None if tool is None else tool.spec.effect,
                status=status,
                error_code=None if error is None else error.code,
                duration_ms=round((time.monotonic() - self._started) * 1000),
                started_at=self._started_text(),
                replayed=replayed,
            ),
        )

    def _as_agent_error(self, raised: BaseException) -> AgentError:
        if isinstance(raised, AgentError):
            return raised

        if isinstance(raised, Exception):
            error = self._settings.translate(raised)

            if error is not None:
                return error

        correlation_id = uuid4().hex
        _logger.error(
            "Execution %s of tool %r failed unexpectedly (correlation_id %s).",
            self.id,
            self._call.tool_name,
            correlation_id,
            exc_info=raised,
        )

        if isinstance(raised, InvalidOutputError):
            return invalid_output(correlation_id)

        return tool_panic(correlation_id)

    def _started_text(self) -> str:
        moment = datetime.fromtimestamp(self._started_at, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _finish(self) -> None:
        self._run.give_turn()
        self.cancellation.close()
        self._leave(self)


def _seen_by_dependencies(raised: BaseException, error: AgentError) -> BaseException:
    """Return what dependencies see: an exception that `except Exception` catches."""
    return raised if isinstance(raised, Exception) else error
