"""One run, from RUN_STARTED to its end."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
from ag_ui.core import (
    BaseEvent,
    Interrupt,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunStartedEvent,
)
from pydantic_core import from_json

from fastapi_carmy.agui.agents import BoundAgent
from fastapi_carmy.agui.channel import Channel
from fastapi_carmy.agui.context import RunContext, RunOutcome
from fastapi_carmy.agui.encode import json_text
from fastapi_carmy.agui.errors import AgUiError, EventEncodingError, RunCancelledError
from fastapi_carmy.agui.failures import TIMEOUT, failure_event
from fastapi_carmy.agui.handles import MessageHandle
from fastapi_carmy.agui.interruption import Interruption, close_iterator
from fastapi_carmy.agui.outbox import Outbox
from fastapi_carmy.agui.state import StateType
from fastapi_carmy.agui.tokens import CancelToken
from fastapi_carmy.agui.transform import Chain, TransformerFactory
from fastapi_carmy.cancellation import CancelReason, Interrupted

__all__ = ("Run", "RunOptions", "Teardown")

_logger = logging.getLogger("fastapi_carmy.agui")

Teardown = Callable[[BaseException | None], Awaitable[None]]
"""Closes what the agent was given; told what went wrong, if anything did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How the runs of one agent are treated."""

    state_type: StateType[Any] = field(default_factory=StateType[Any])
    transformers: Sequence[TransformerFactory] = ()
    echo_input: bool = False
    verify: bool = True
    timeout_seconds: float | None = None
    grace_seconds: float = 0.5
    expose_errors: bool = False


class Run:
    """One run of an agent; a task of its own `drive`s it, another one takes the frames.

    Attributes:
        token: Stops the run.
        outbox: The frames, as they come.
    """

    def __init__(
        self,
        run_input: RunAgentInput,
        options: RunOptions | None = None,
        *,
        token: CancelToken | None = None,
        outbox: Outbox | None = None,
        let_go: anyio.Event | None = None,
    ) -> None:
        """Prepare a run; nothing is sent yet.

        Args:
            run_input: What the client sent.
            options: How the run is treated.
            token: Stops the run; a new one by default.
            outbox: Takes the frames; a new one by default.
            let_go: Set when the agent goes on though its run has ended.
        """
        self._input = run_input
        self._options = options or RunOptions()
        self.token = token or CancelToken()
        self.outbox = outbox or Outbox()
        self._let_go_event = let_go
        self._channel = Channel(
            run_input,
            self.token,
            self.outbox,
            chain=Chain(self._options.transformers),
            verify=self._options.verify,
        )
        self._interruption: Interruption | None = None
        self._is_over = False
        self.has_succeeded = False
        """Whether the agent did what it was asked, or asks a person."""

    @property
    def has_ended(self) -> bool:
        """Whether the run's end was told."""
        return self._is_over

    def disconnect(self) -> None:
        """Tell that the client is gone: the token trips, and nothing more is kept."""
        self.token.cancel(CancelReason.DISCONNECT)
        self.outbox.close()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the run's frames, as many at once as are waiting."""
        while (frames := await self.outbox.take(None)) is not None:
            yield frames

    async def drive(self, agent: BoundAgent, teardown: Teardown | None = None) -> None:
        """Run the agent to its end, whatever that is, and tell the client.

        Args:
            agent: Called once, unless the run does not come to that.
            teardown: Called after the agent and before the run's end is told, so that a
                failure in it fails the run.

        Raises:
            Interrupted: If the task was cancelled by somebody else; the run has ended.
        """
        interruption = self._interruption = Interruption(
            self.token, grace_seconds=self._options.grace_seconds, let_go=self._let_go
        )
        returned: object = None
        error: BaseException | None = None

        if self._options.timeout_seconds is not None:
            interruption.limit(self._options.timeout_seconds)

        try:
            self._channel.start(echo=self._options.echo_input)
            interruption.begin()
            returned = await self._perform(agent)
        # The edge of a run: told to the client, and raised again below where it must go on.
        except BaseException as raised:  # noqa: BLE001
            error = raised
        finally:
            interruption.end()

        is_ours = await interruption.settle()

        ending, cause = self._ending(returned, error)

        try:
            await self._conclude(ending, cause, teardown)
        finally:
            if error is not None and _goes_on(error, is_ours=is_ours):
                raise error

    # Stopping.

    def _let_go(self) -> None:
        """End the run for the client, though its agent goes on."""
        self._finish(self._stopped())

        if self._let_go_event is not None:
            self._let_go_event.set()

    def _stopped(self) -> RunFinishedEvent | RunErrorEvent:
        if self.token.reason is CancelReason.DEADLINE:
            return RunErrorEvent(message="The run took longer than it may.", code=TIMEOUT)

        return self._finished(RunFinishedCancelledOutcome(type="cancelled"))

    # The agent.

    async def _perform(self, agent: BoundAgent) -> object:
        if self.token.is_cancelled:
            raise RunCancelledError

        run = RunContext(self._input, self._channel, self._options.state_type)
        work = agent(run)

        if isinstance(work, AsyncIterator):
            return await self._pump(run, work)

        return await work

    async def _pump(self, run: RunContext[Any], items: AsyncIterator[object]) -> object:
        """Send what a generator yields; return the terminal event that it yielded, if it did."""
        sender = _Sender(run, self._input)

        try:
            async for item in items:
                if sender.terminal is not None:
                    _logger.warning("An agent yielded an event behind the end of its run.")
                    break

                await sender.send(item)
                await self.outbox.room()
        finally:
            await close_iterator(items)

        self._channel.close_all()

        return sender.terminal

    # The end.

    def _ending(
        self, returned: object, error: BaseException | None
    ) -> tuple[RunFinishedEvent | RunErrorEvent, BaseException | None]:
        """Return how the run ends, and what went wrong, if anything did."""
        if self.token.is_cancelled:
            if isinstance(error, Exception) and not isinstance(error, AgUiError):
                _logger.error("An agent failed while it was stopped.", exc_info=error)

            return self._stopped(), error or RunCancelledError()

        if error is not None:
            return self._failed(error), error

        # Looked at before what the agent was given is closed, so that it can roll back.
        try:
            ending = self._returned(returned)

            if isinstance(ending, RunErrorEvent):
                return ending, AgUiError(ending.message)

            self._channel.check_end()
        except AgUiError as unfit:
            return self._failed(unfit), unfit

        return ending, None

    def _returned(self, value: object) -> RunFinishedEvent | RunErrorEvent:
        if isinstance(value, RunFinishedEvent | RunErrorEvent):
            return value

        if value is None or isinstance(value, RunOutcome):
            return self._finished(value)

        interrupts = _interrupts_in(value)

        if interrupts:
            return self._finished(
                RunFinishedInterruptOutcome(type="interrupt", interrupts=interrupts)
            )

        result = from_json(json_text(value, "The agent's result"))

        if result is None:
            # `None` itself ended above: this was a number that JSON has no word for.
            raise EventEncodingError("The agent's result is no value that JSON can hold.")

        return self._finished(None, result)

    def _finished(self, outcome: RunOutcome | None, result: object = None) -> RunFinishedEvent:
        return RunFinishedEvent(
            thread_id=self._input.thread_id,
            run_id=self._input.run_id,
            outcome=outcome,
            result=result,
        )

    def _failed(self, error: BaseException) -> RunErrorEvent:
        event = failure_event(error, expose=self._options.expose_errors)
        event.usage = self._channel.usage

        return event

    async def _conclude(
        self,
        ending: RunFinishedEvent | RunErrorEvent,
        cause: BaseException | None,
        teardown: Teardown | None,
    ) -> None:
        try:
            if teardown is not None:
                await teardown(cause)
        except BaseException as failure:
            if cause is None:
                ending = self._failed(failure)
                self._channel.fail_late(ending)
            elif isinstance(failure, Exception):
                _logger.exception("What a failed run was given did not close.")

            if not isinstance(failure, Exception):
                raise
        finally:
            self._finish(ending)

    def _finish(self, ending: RunFinishedEvent | RunErrorEvent) -> None:
        if self._is_over:
            return

        self._is_over = True

        if self._interruption is not None:
            self._interruption.close()

        if self.token.is_cancelled:
            self._channel.close_all()

        self._channel.finish(ending)
        self.has_succeeded = self._channel.verifier.has_finished and not self.token.is_cancelled


class _Sender:
    """Sends what a generator yields, one item after the other."""

    def __init__(self, run: RunContext[Any], run_input: RunAgentInput) -> None:
        self._run = run
        self._ids = (run_input.thread_id, run_input.run_id)
        self._text: MessageHandle | None = None
        self._is_first = True
        self.terminal: RunFinishedEvent | RunErrorEvent | None = None

    async def send(self, item: object) -> None:
        """Send an event, or add a text to a message that lasts as long as texts follow."""
        is_first, self._is_first = self._is_first, False

        if isinstance(item, str):
            self._text = self._text or self._run.message()
            await self._text.delta(item)
            return

        if self._text is not None:
            await self._text.end()
            self._text = None

        if isinstance(item, RunFinishedEvent | RunErrorEvent):
            # Kept until everything is closed: what fails until then fails the run.
            self.terminal = item
        elif not (is_first and self._is_our_start(item)):
            self._run.emit(cast("BaseEvent", item))

    def _is_our_start(self, item: object) -> bool:
        """Whether a framework tells the start of the run, which is told already."""
        return isinstance(item, RunStartedEvent) and (item.thread_id, item.run_id) == self._ids


def _interrupts_in(value: object) -> list[Interrupt]:
    if isinstance(value, Interrupt):
        return [value]

    items = cast("list[object]", value) if isinstance(value, list) else []
    interrupts = [item for item in items if isinstance(item, Interrupt)]

    return interrupts if len(interrupts) == len(items) else []


def _goes_on(error: BaseException, *, is_ours: bool) -> bool:
    """Whether an error is not the run's alone: the task, or the process, is to stop."""
    if isinstance(error, Interrupted):
        return not is_ours

    return not isinstance(error, Exception | BaseExceptionGroup)
