"""One execution: the pipeline that every call goes through. Source: carmy/1, section 4.1.

It knows neither HTTP nor FastAPI: `Opened` stands for the call's dependencies, a
`Cancellation` for its caller's patience, and `report` for whoever watches. It lives in one
task from its guards to its record, because dependencies close in the task that opened them.

Past the usual size, because it is one state machine: every way out of a run is decided here,
by the same few facts, and each part in a module of its own would have to know the others.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn
from uuid import uuid4

from anyio import CancelScope
from pydantic import ValidationError

from fastapi_carmy.cancellation import CancelReason, Interrupted, NoThreadError
from fastapi_carmy.conclusion import (
    audit_refusal,
    audit_unheard,
    conclude,
    see_through,
    started_at,
)
from fastapi_carmy.envelope import Call
from fastapi_carmy.errors import AgentError, HostError
from fastapi_carmy.events import ExecutionStarted
from fastapi_carmy.next_actions import next_actions
from fastapi_carmy.reservation import is_request_id, reserve
from fastapi_carmy.result import ExecutionResult
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
from fastapi_carmy.state import ExecutionState, Phase
from fastapi_carmy.tool import InvalidOutputError, Tool
from fastapi_carmy.tool_run import await_thread, give_turn, perform

__all__ = ("Execution",)

_logger = logging.getLogger(__name__)
_NOBODY_KNOWS = frozenset((CancelReason.DISCONNECT, CancelReason.STOP))


class Execution(ExecutionState):
    """One call, and its way through the pipeline.

    `run` gives the answer. `aclose` then waits for what outlived it: a sync tool past its
    deadline, whose thread can only be told to stop. What never gets as far as being run is
    told to `withdraw`.
    """

    __slots__ = ()

    async def run(self, call: Call) -> ExecutionResult:
        """Take a call through the pipeline, and return its answer once it is recorded.

        Args:
            call: The decoded request.

        Raises:
            AgentError: If one of the tool's own guards refuses: nothing has started then.
            BaseException: If the task is interrupted by somebody else, or the tool raises
                something that is no `Exception`; its dependencies are closed by then, and
                the reservation is settled.
        """
        self.call = call
        self.started = time.monotonic()
        tool, settings, cancellation = call.tool, self.settings, self.cancellation

        try:
            if self.report is not None or (tool is not None and tool.has_guards):
                await self._start(tool)

            try:
                if (
                    tool is not None
                    and not tool.spec.needs_confirmation
                    and not settings.policies.has_own
                    and call.request_id is None
                    and call.invalid is None
                    and cancellation.reason is None
                    and cancellation.interrupts is not None
                ):
                    # So it is with most calls: there is nobody to ask.
                    result = None
                    cancellation.limit(tool.spec.timeout_seconds or settings.timeout_seconds)
                else:
                    tool, result = await self._admit(tool)

                data = b"" if result else tool.output.dump(await perform(self, tool))

                if self.opened.is_open:
                    await self._close_in_time()

                suggestions = () if self.made_context is None else self.suggestions()
                result = result or ExecutionResult.completed(
                    self.id, data, cacheable=tool.spec.is_cacheable, next_actions=suggestions
                )
            except BaseException as error:  # noqa: BLE001
                # The edge of a run: everything becomes an answer, or is raised again.
                return await self._fail(error)

            reservation = self.reservation

            if reservation is None and self.report is None and not settings.audit:
                return result

            give_turn(self)
            settle = None if reservation is None else partial(reservation.complete, result)
            return await conclude(self, result, settle)
        finally:
            if self.outlived is None:
                self._finish()

    async def withdraw(self, error: BaseException) -> BaseException:
        """End an execution whose call could not even be read.

        Args:
            error: Why.

        Returns:
            What is to be raised: `error`, or `CANCELLED` for an interruption of our own.

        Raises:
            BaseException: What a teardown raises.
        """
        cancellation = self.cancellation
        cancellation.end()
        # Always: a guard may have made an error of its own of our interruption.
        is_ours = await cancellation.settle()

        if is_ours and isinstance(error, Interrupted):
            error = cancelled()

        await self._close_limited(error if isinstance(error, Exception) else cancelled())
        return error

    async def aclose(self) -> None:
        """Wait for a thread that outlived the answer, then close what it used.

        Raises:
            Interrupted: If the task was interrupted meanwhile; the first time only after all
                is closed, the second time at once. The thread keeps its turn then until it
                ends, and what it used stays open.
        """
        error = self.outlived

        if error is None:
            return

        self.outlived = None

        try:
            await self._await_thread()
        finally:
            if self.thread is None:
                await self._close_late(error)
            else:
                self._finish()

    async def leave_behind(self) -> None:
        """Settle the `request_id` of an execution that the process does not wait for."""
        self.is_left_behind = True
        await self._settle_unknown()

    async def _start(self, tool: Tool | None) -> None:
        """Pass the tool's own guards, and tell those who watch."""
        if tool is not None and tool.has_guards:
            await self._pass_guards(tool)

        if self.report is not None:
            self.report(ExecutionStarted(self.id, self.call.tool_name))

    async def _admit(self, tool: Tool | None) -> tuple[Tool, ExecutionResult | None]:
        """Steps 2 to 8: refuse the call, or let it run.

        Returns:
            The tool, and the recorded answer if this call was made before.
        """
        call, settings, cancellation = self.call, self.settings, self.cancellation

        if cancellation.interrupts is None:
            cancellation.begin()

        if tool is None:
            raise tool_not_found(settings.nearest(call.tool_name, self.caller))

        spec = tool.spec

        if spec.needs_confirmation or settings.policies.has_own:
            await settings.policies.check(self.asked)

        self._check()
        # From here on nobody else's delay may hold the call for longer than its deadline.
        cancellation.limit(spec.timeout_seconds or settings.timeout_seconds)

        if call.request_id is not None:
            claimed = await reserve(
                settings.store,
                call,
                self.key,
                self.id,
                may_repeat=spec.is_repeatable,
                give_up_seconds=settings.finish_seconds,
            )

            if isinstance(claimed, ExecutionResult):
                cancellation.end()
                return tool, claimed

            self.reservation = claimed

        if settings.policies.admits:
            await settings.policies.admit(self.asked)
            self.admitted = self.asked

        # Whoever ran since may have swallowed a stop, or left an interruption of its own.
        cancellation.begin()
        return tool, None

    def _check(self) -> None:
        """Refuse a call that can't be run."""
        call = self.call

        if call.request_id is not None and not is_request_id(call.request_id):
            raise invalid_id()

        if call.invalid is not None:
            raise _refused_arguments(call.invalid, call.arguments_as_sent())

        if self.cancellation.reason is not None:
            raise Interrupted

    async def _close_in_time(self) -> None:
        """Close the dependencies of a call that has its answer."""
        self.cancellation.limit_finish(self.settings.finish_seconds)
        await self.opened.aclose(None)

        if self.cancellation.overran:
            # A teardown swallowed it: whether it committed is not known.
            raise Interrupted

    async def _pass_guards(self, tool: Tool) -> None:
        try:
            self.cancellation.begin()
            await self.opened.guards(tool, self.context)
            # One of them may have swallowed a stop, or left an interruption of its own.
            self.cancellation.begin()
        except BaseException as error:  # noqa: BLE001
            # The edge of a run: a guard's refusal is an answer of its own.
            refusal = await self._stop(error)
            self.cancellation.limit_finish(self.settings.finish_seconds)
            refusal = await self._close_after(error, refusal)
            await audit_refusal(self, refusal)
            raise refusal from None

    async def _fail(self, raised: BaseException) -> ExecutionResult:
        """Turn whatever ended the call into its answer: close, settle, conclude."""
        error = await self._stop(raised)

        if self.thread is not None:
            if self.cancellation.reason is not CancelReason.DISCONNECT:
                self.outlived = error
                return await self._conclude_failure(error)

            # Nobody waits for the answer, so it may as well be the true one.
            try:
                await await_thread(self)
            except BaseException as cut:  # noqa: BLE001
                # Somebody else's interruption: the thread goes on, this task must not.
                await self._give_up(cut)

        self.cancellation.limit_finish(self.settings.finish_seconds)
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
        may_be_interrupted = isinstance(raised, Interrupted) or cancellation.is_cancelled

        if may_be_interrupted and not await cancellation.settle():
            await self._give_up(raised)

        if not isinstance(raised, Exception | Interrupted):
            await self._give_up(raised)

        if cancellation.overran:
            return execution_uncertain(self.id, started_at(self), "abandoned")

        if not self._is_told_to_stop():
            return self._as_agent_error(raised)

        if not isinstance(raised, Interrupted | AgentError):
            _logger.warning(
                "Execution %s raised after it was told to stop.", self.id, exc_info=raised
            )

        if cancellation.reason is not CancelReason.DEADLINE:
            return cancelled()

        has_waited = self.phase is Phase.WAITING or isinstance(raised, NoThreadError)
        return busy() if has_waited else timed_out()

    def _is_told_to_stop(self) -> bool:
        return self.cancellation.is_cancelled and self.phase is not Phase.RETURNED

    async def _give_up(self, raised: BaseException) -> NoReturn:
        """Leave in order when the task is interrupted by somebody else, or the process ends."""
        try:
            if self.thread is not None:
                await see_through(self, self._settle_unknown)
                await self._await_thread()

            # Not shielded here: a scope around it would not be the innermost one where a
            # dependency holds a scope of its own. FastAPI shields each of them.
            await self._close(cancelled())
        except Exception:
            _logger.exception("Closing the dependencies of execution %s failed.", self.id)
        finally:
            await see_through(self, self._settle_unknown)
            await audit_unheard(self, "cancelled", cancelled())

        raise raised

    async def _conclude_failure(self, error: AgentError) -> ExecutionResult:
        if self.phase >= Phase.RUNNING and isinstance(error, HostError):
            error = error.without_host()

        suggestions = self.suggestions()
        result = ExecutionResult.failed(
            self.id, error, next_actions=next_actions(self.call.tool_name, error, suggestions)
        )
        reservation = self.reservation

        if self.cancellation.overran or (
            self._is_told_to_stop() and self.cancellation.reason in _NOBODY_KNOWS
        ):
            return await self._conclude(result, self._settle_unknown)

        if self.phase < Phase.RUNNING:
            return await self._conclude(result, self._settle_unknown)

        if reservation is None:
            return await self._conclude(result)

        if error.retryable:
            return await self._conclude(result, reservation.release)

        return await self._conclude(result, partial(reservation.complete, result))

    async def _conclude(
        self, result: ExecutionResult, settle: Callable[[], Awaitable[None]] | None = None
    ) -> ExecutionResult:
        """Step 11. Interrupted by somebody else, it waits for what outlived it by itself."""
        try:
            return await conclude(self, result, settle)
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
                await await_thread(self)
        except Interrupted:
            if not self.is_left_behind:
                with CancelScope(shield=True):
                    await await_thread(self)

            raise

    async def _close_late(self, error: AgentError) -> None:
        try:
            await self._close_limited(error)
        except Exception:
            _logger.exception("Closing the dependencies of execution %s failed.", self.id)

    async def _close_limited(self, error: Exception) -> None:
        """Close what nobody waits for any longer than `finish_seconds`, and finish.

        Raises:
            BaseException: What a teardown raises, or `Interrupted` by somebody else.
        """
        self.cancellation.limit_finish(self.settings.finish_seconds)

        try:
            await self._close(error)
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
            if self.opened.is_open:
                await self.opened.aclose(error)
        finally:
            give_turn(self)

    async def _settle_unknown(self) -> None:
        """Free what was taken if nothing happened; otherwise say that nobody knows."""
        has_run = self.phase >= Phase.RUNNING
        admitted = self.admitted
        self.admitted = None

        if admitted is not None and not has_run:
            await self.settings.policies.give_back(admitted)

        reservation = self.reservation

        if reservation is None:
            return

        tool = self.call.tool

        if not has_run or (tool is not None and tool.spec.is_repeatable):
            await reservation.release()
        else:
            await reservation.abandon()

    def _as_agent_error(self, raised: BaseException) -> AgentError:
        if isinstance(raised, AgentError):
            return raised

        if isinstance(raised, Exception):
            error = self.settings.translate(raised)

            if error is not None:
                return error

        correlation_id = uuid4().hex
        is_output = isinstance(raised, InvalidOutputError)
        _logger.error(
            "Execution %s of tool %r failed unexpectedly (correlation_id %s)%s",
            self.id,
            self.call.tool_name,
            correlation_id,
            f": {raised}" if is_output else ".",
            # What led to an invalid output holds parts of it.
            exc_info=None if is_output else raised,
        )
        return invalid_output(correlation_id) if is_output else tool_panic(correlation_id)

    def _finish(self) -> None:
        thread = self.thread

        if thread is not None:
            # Nobody waits for it any more. It has the turn, and lives here, until it ends.
            self.cancellation.close()
            thread.then(self._leave)
            return

        if self.turn is not None:
            # As `give_turn`, without asking once more.
            self.turn.give()
            self.turn = None

        self.cancellation.close()
        self.home.leave(self)

    def _leave(self) -> None:
        """Let go of what the thread kept; called in it."""
        give_turn(self)
        self.home.leave(self)


def _seen_by_dependencies(raised: BaseException, error: AgentError) -> BaseException:
    """Return what dependencies see: an exception that `except Exception` catches."""
    return raised if isinstance(raised, Exception) else error


def _refused_arguments(error: Exception, sent: object) -> Exception:
    """Return what a call is refused with whose arguments did not pass validation."""
    if isinstance(error, ValidationError):
        return invalid_arguments(argument_errors(error, sent))

    return error
