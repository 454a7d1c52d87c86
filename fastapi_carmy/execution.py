"""One execution: the pipeline that every call goes through. Source: carmy/1, section 4.1.

It knows neither HTTP nor FastAPI: `Opened` stands for the call's dependencies, a
`Cancellation` for its caller's patience, and `report` for whoever watches. It lives in one
task from its guards to its record, because dependencies close in the task that opened them.

Past the usual size, because it is one state machine: every way out of a run is decided here,
by the same few facts, and each part in a module of its own would have to know the others.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn
from uuid import uuid4

from anyio import CancelScope
from pydantic import ValidationError

from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Cancellation, CancelReason, Interrupted, NoThreadError
from fastapi_carmy.conclusion import Conclusion
from fastapi_carmy.envelope import Call
from fastapi_carmy.errors import AgentError, HostError
from fastapi_carmy.events import Event, ExecutionStarted
from fastapi_carmy.next_actions import next_actions
from fastapi_carmy.policies import PolicyCall
from fastapi_carmy.reservation import is_request_id, reserve
from fastapi_carmy.result import ExecutionResult, new_execution_id, status_of
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
        "_admitted",
        "_call",
        "_caller",
        "_conclusion",
        "_is_left_behind",
        "_leave",
        "_opened",
        "_outlived",
        "_report",
        "_run",
        "_settings",
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
        self._conclusion = Conclusion(
            self.id,
            settings,
            call,
            caller=caller,
            cancellation=cancellation,
            report=report,
        )
        self._admitted: PolicyCall | None = None
        self._outlived: AgentError | None = None
        self._is_left_behind = False

    async def run(self) -> ExecutionResult:
        """Take the call through the pipeline, and return its answer once it is recorded.

        Raises:
            AgentError: If one of the tool's own guards refuses: nothing has started then.
            BaseException: If the task is interrupted by somebody else, or the tool raises
                something that is no `Exception`; its dependencies are closed by then, and
                the reservation is settled.
        """
        try:
            tool = self._call.tool

            if tool is not None and tool.has_guards:
                await self._pass_guards(tool)

            if self._report is not None:
                self._report(ExecutionStarted(self.id, self._call.tool_name))

            try:
                result = await self._attempt()
            except BaseException as error:  # noqa: BLE001
                # The edge of a run: everything becomes an answer, or is raised again.
                return await self._fail(error)

            if result.replayed or self._conclusion.reservation is None:
                return await self._conclude(result)

            return await self._conclude(
                result, partial(self._conclusion.reservation.complete, result)
            )
        finally:
            if self._outlived is None:
                self._finish()

    @property
    def has_outlived(self) -> bool:
        """Whether something of it still lives, so that `aclose` has to wait."""
        return self._outlived is not None

    async def aclose(self) -> None:
        """Wait for a thread that outlived the answer, then close what it used.

        Raises:
            Interrupted: If the task was interrupted meanwhile; the first time only after all
                is closed, the second time at once.
        """
        error = self._outlived

        if error is None:
            return

        self._outlived = None

        try:
            await self._await_thread()
        finally:
            if not self._run.has_thread:
                await self._close_late(error)

    async def leave_behind(self) -> None:
        """Settle the `request_id` of an execution that the process does not wait for."""
        self._is_left_behind = True
        await self._settle_unknown()

    async def _attempt(self) -> ExecutionResult:
        """Steps 2 to 10: everything between the guards and the record."""
        tool, recorded = await self._claim()
        data = b""

        if recorded is None:
            value = await self._run.perform(tool)
            data = tool.output.dump(value)

        if self._opened.is_open or self._conclusion.has_more_to_do:
            self.cancellation.limit_finish(self._settings.finish_seconds)

        if self._opened.is_open:
            await self._opened.aclose(None)

            if self.cancellation.overran:
                # A teardown swallowed it: whether it committed is not known.
                raise Interrupted

        self._run.give_turn()

        if recorded is not None:
            return recorded

        return ExecutionResult.completed(
            self.id,
            data,
            cacheable=tool.spec.is_cacheable,
            next_actions=self._run.suggestions,
        )

    async def _pass_guards(self, tool: Tool) -> None:
        try:
            self.cancellation.begin()
            await self._opened.guards(tool, self._run.context)
            self.cancellation.end()
        except BaseException as error:  # noqa: BLE001
            # The edge of a run: a guard's refusal is an answer of its own.
            refusal = await self._stop(error)
            self.cancellation.limit_finish(self._settings.finish_seconds)
            refusal = await self._close_after(error, refusal)
            await self._conclude_refusal(refusal)
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
            raise tool_not_found(settings.nearest(call.tool_name, self._caller))

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
            raise _refused_arguments(call.invalid, call.arguments_as_sent())

        if self.cancellation.is_cancelled:
            raise Interrupted

        # From here on nobody else's delay may hold the call for longer than its deadline.
        self.cancellation.limit(tool.spec.timeout_seconds or settings.timeout_seconds)

        if request_id is not None:
            claimed = await reserve(
                settings.store,
                call,
                self._caller,
                self.id,
                may_repeat=tool.spec.is_repeatable,
                give_up_seconds=settings.finish_seconds,
            )

            if isinstance(claimed, ExecutionResult):
                self.cancellation.end()
                return tool, claimed

            self._conclusion.reservation = claimed

        if settings.policies.admits:
            await settings.policies.admit(asked)
            self._admitted = asked

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
        error = await self._close_after(raised, error)
        return await self._conclude_failure(error)

    async def _close_after(self, raised: BaseException, error: AgentError) -> AgentError:
        """Close the dependencies after a failure; return what it is called in the end."""
        try:
            await self._close(_seen_by_dependencies(raised, error))
        except BaseException as late:  # noqa: BLE001
            # The edge of a run: a teardown's own failure is the later truth.
            if late is not raised and late is not error:
                return await self._stop(late)

        return error

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
            return execution_uncertain(self.id, self._conclusion.started_at, "abandoned")

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
        conclusion = self._conclusion

        try:
            if self._run.has_thread:
                await conclusion.see_through(self._settle_unknown)
                await self._await_thread()

            # Not shielded here: a scope around it would not be the innermost one where a
            # dependency holds a scope of its own. FastAPI shields each of them.
            await self._close(cancelled())
        except Exception:
            _logger.exception("Closing the dependencies of execution %s failed.", self.id)
        finally:
            await conclusion.see_through(self._settle_unknown)
            await conclusion.audit_unheard("cancelled", cancelled())

        raise raised

    async def _conclude_failure(self, error: AgentError) -> ExecutionResult:
        if self._run.phase >= Phase.RUNNING and isinstance(error, HostError):
            error = error.without_host()

        suggestions = self._run.suggestions
        result = ExecutionResult.failed(
            self.id, error, next_actions=next_actions(self._call.tool_name, error, suggestions)
        )
        reservation = self._conclusion.reservation

        if self.cancellation.overran or (
            self._is_told_to_stop() and self.cancellation.reason in _NOBODY_KNOWS
        ):
            return await self._conclude(result, self._settle_unknown)

        if self._run.phase < Phase.RUNNING:
            return await self._conclude(result, self._settle_unknown)

        if reservation is None:
            return await self._conclude(result)

        if error.retryable:
            return await self._conclude(result, reservation.release)

        return await self._conclude(result, partial(reservation.complete, result))

    async def _conclude_refusal(self, refusal: AgentError) -> None:
        if self._settings.audit:
            status = status_of(refusal)
            await self._conclusion.audit(status, refusal, replayed=False)

    async def _conclude(
        self, result: ExecutionResult, settle: Callable[[], Awaitable[None]] | None = None
    ) -> ExecutionResult:
        """Step 11. Interrupted by somebody else, it waits for what outlived it by itself."""
        try:
            return await self._conclusion.conclude(result, settle, tool_started=self._run.started)
        except BaseException:
            await self.aclose()
            raise

    async def _await_thread(self) -> None:
        """Wait for the tool's thread, which uses the dependencies until it ends.

        Raises:
            Interrupted: If the task was interrupted. The first time the thread is waited for
                all the same, unless the process waits for this execution no more.
        """
        try:
            with CancelScope(shield=True):
                await self._run.await_thread()
        except Interrupted:
            if not self._is_left_behind:
                with CancelScope(shield=True):
                    await self._run.await_thread()

            raise

    async def _close_late(self, error: AgentError) -> None:
        self.cancellation.limit_finish(self._settings.finish_seconds)

        try:
            await self._close(error)
        except Exception:
            _logger.exception("Closing the dependencies of execution %s failed.", self.id)
        except Interrupted:
            if not await self.cancellation.settle():
                raise

            _logger.error(  # noqa: TRY400 - the traceback of a time limit says nothing
                "Closing the dependencies of execution %s took too long.", self.id
            )
        finally:
            self._finish()

    async def _close(self, error: BaseException | None) -> None:
        try:
            if self._opened.is_open:
                await self._opened.aclose(error)
        finally:
            self._run.give_turn()

    async def _settle_unknown(self) -> None:
        """Free what was taken if nothing happened; otherwise say that nobody knows."""
        has_run = self._run.phase >= Phase.RUNNING
        admitted = self._admitted
        self._admitted = None

        if admitted is not None and not has_run:
            await self._settings.policies.give_back(admitted)

        reservation = self._conclusion.reservation
        tool = self._call.tool

        if reservation is None:
            return

        if not has_run or (tool is not None and tool.spec.is_repeatable):
            await reservation.release()
        else:
            await reservation.abandon()

    def _as_agent_error(self, raised: BaseException) -> AgentError:
        if isinstance(raised, AgentError):
            return raised

        if isinstance(raised, Exception):
            error = self._settings.translate(raised)

            if error is not None:
                return error

        correlation_id = uuid4().hex
        is_output = isinstance(raised, InvalidOutputError)
        _logger.error(
            "Execution %s of tool %r failed unexpectedly (correlation_id %s)%s",
            self.id,
            self._call.tool_name,
            correlation_id,
            f": {raised}" if is_output else ".",
            # What led to an invalid output holds parts of it.
            exc_info=None if is_output else raised,
        )
        return invalid_output(correlation_id) if is_output else tool_panic(correlation_id)

    def _finish(self) -> None:
        self._run.give_turn()
        self.cancellation.close()
        self._leave(self)


def _seen_by_dependencies(raised: BaseException, error: AgentError) -> BaseException:
    """Return what dependencies see: an exception that `except Exception` catches."""
    return raised if isinstance(raised, Exception) else error


def _refused_arguments(error: Exception, sent: object) -> Exception:
    """Return what a call is refused with whose arguments did not pass validation."""
    if isinstance(error, ValidationError):
        return invalid_arguments(argument_errors(error, sent))

    return error
