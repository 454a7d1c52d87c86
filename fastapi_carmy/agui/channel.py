"""One run's way from the agent to the client.

Cancellation → transformers → encoding → verifier → outbox. Whatever the agent, the
transformers and the settings do, RUN_STARTED goes out first, exactly one terminal event
last, and RUN_FINISHED only when everything is closed.
"""

import logging
from collections.abc import Iterable
from typing import Protocol

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    TokenUsage,
    ToolCallResultEvent,
    aggregate_token_usage,
)
from pydantic import ValidationError

from fastapi_carmy.agui.encode import encode_event
from fastapi_carmy.agui.errors import AgUiError, ProtocolViolationError, RunCancelledError
from fastapi_carmy.agui.ids import Ids
from fastapi_carmy.agui.outbox import Outbox
from fastapi_carmy.agui.rules import LIFECYCLE_RULES
from fastapi_carmy.agui.tokens import CancelToken
from fastapi_carmy.agui.transform import Chain
from fastapi_carmy.agui.verify import Verifier

__all__ = ("Channel", "Closable")

_logger = logging.getLogger("fastapi_carmy.agui")


class Closable(Protocol):
    """Something that the agent opened and may forget to close."""

    def close(self) -> None:
        """Close it, if it is still open."""
        ...


class Channel:
    """Takes a run's events, in the run's own event loop.

    Attributes:
        token: Once it is cancelled, only closing and terminal events go out.
        outbox: Where the client's side takes the frames.
        ids: What the run hands out.
        failure: What a transformer raised, if one did; the run can't succeed any more.
    """

    __slots__ = (
        "_chain",
        "_end",
        "_enforces",
        "_handles",
        "_input",
        "_keeps_end",
        "_usage",
        "failure",
        "ids",
        "outbox",
        "token",
        "verifier",
    )

    def __init__(
        self,
        run_input: RunAgentInput,
        token: CancelToken,
        outbox: Outbox,
        *,
        chain: Chain,
        verify: bool = True,
        needs_start: bool = True,
    ) -> None:
        """Connect an agent to an outbox.

        Args:
            run_input: The run's input.
            token: The run's cancellation token.
            outbox: Takes the frames.
            chain: The run's transformers.
            verify: Whether events out of order are refused; the run's start and end are
                guarded in any case.
            needs_start: Whether RUN_STARTED must come first, and the end only by `finish`.
        """
        self._input = run_input
        self._chain = chain
        self._enforces = verify
        self._handles: dict[Closable, None] = {}
        self._usage: list[TokenUsage] = []
        self.token = token
        self.outbox = outbox
        self.ids = Ids(run_input)
        self.verifier = Verifier(run_input, needs_start=needs_start)
        self.failure: Exception | None = None
        # The terminal event is kept until everything that belongs to the run is closed:
        # what fails until then fails the run, and a client gets exactly one.
        self._keeps_end = needs_start
        self._end: bytes | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.verifier.has_ended or self.outbox.is_closed

    def emit(self, event: BaseEvent) -> None:
        """Send one event, or refuse it; never waits.

        Raises:
            RunCancelledError: If the run was told to stop.
            DisconnectedError: If nobody reads any more.
            SlowConsumerError: If too much waits for the client already.
            ProtocolViolationError: If the event may not come now.
            EventError: If a value of it does not fit its type.
            EventEncodingError: If JSON can't hold a value.
        """
        if self.token.latch.is_set:
            raise RunCancelledError

        self.outbox.check()
        self._pass(event)

    def emit_closing(self, event: BaseEvent) -> None:
        """Send an event that closes something: also when stopped, or when too much waits."""
        if not self.is_over:
            self._pass(event)

    async def room(self) -> None:
        """Wait for a slow client."""
        await self.outbox.room()

    def hold(self, handle: Closable) -> None:
        """Close `handle` for the agent, unless it does so itself."""
        self._handles[handle] = None

    def release(self, handle: Closable) -> None:
        """Forget a handle that was closed."""
        self._handles.pop(handle, None)

    def add_usage(self, usage: TokenUsage) -> None:
        """Report a model call's tokens with the terminal event."""
        self._usage.append(usage)

    @property
    def usage(self) -> list[TokenUsage] | None:
        """What was reported, one entry a provider and model."""
        if not self._usage:
            return None

        try:
            return aggregate_token_usage(self._usage)
        except ValidationError:
            # A sum past the largest integer that every client can read.
            return list(self._usage)

    def start(self, *, echo: bool) -> None:
        """Send RUN_STARTED.

        Raises:
            Exception: What a transformer raised; RUN_STARTED is out nevertheless.
        """
        event = RunStartedEvent(
            thread_id=self._input.thread_id,
            run_id=self._input.run_id,
            protocol_version=PROTOCOL_VERSION,
            parent_run_id=self._input.parent_run_id,
            input=self._input if echo else None,
        )

        try:
            made = self._chained(event)
        except Exception:
            self._send(event)
            raise

        first = next((one for one in made if isinstance(one, RunStartedEvent)), event)
        self._send_start(first, event)

        for one in made:
            if one is not first:
                self._send(one)

    def close_handles(self) -> None:
        """Close what the agent left open, innermost first."""
        while self._handles:
            handle, _ = self._handles.popitem()

            try:
                handle.close()
            except AgUiError as error:
                _logger.warning("An item could not be closed for the agent: %s", error)
            except Exception:
                # It counts as the run's failure already.
                _logger.exception("A transformer failed while an item was closed.")

    def check_end(self) -> None:
        """Close the handles that are open, and refuse an end that would be no success.

        Raises:
            AgUiError: If something was opened without a handle and left open, if a
                transformer failed, or if the agent has sent RUN_ERROR itself.
        """
        if not self.is_over:
            self.close_handles()
            self.verifier.check_closed()

        if self.failure is not None:
            raise _transformer_failed()

        if self.verifier.has_ended and not self.verifier.has_finished:
            raise AgUiError("The agent ended its run with RUN_ERROR.")

    def close_all(self) -> None:
        """Close everything that is open, also what was opened without a handle."""
        try:
            self.close_handles()

            for event in self.verifier.closing_events():
                self.emit_closing(event)
        except AgUiError as error:
            _logger.warning("An item could not be closed for the agent: %s", error)

    def fail_late(self, event: RunErrorEvent) -> None:
        """Put RUN_ERROR in the place of a RUN_FINISHED that the agent has sent itself."""
        if self.verifier.has_ended and not self.outbox.is_closed:
            self._refusal(event)

    def finish(self, event: RunFinishedEvent | RunErrorEvent) -> None:
        """Close what is open, and end the run with `event`, or with what it turns into."""
        if not self.is_over:
            self._flush()

        if not self.is_over:
            self._conclude(event)

        if self._end is not None:
            self.outbox.put(self._end)

        self.outbox.finish()

    def _flush(self) -> None:
        try:
            self.close_handles()

            for kept_back in self._chain.finish():
                self._send(kept_back)
        except AgUiError as error:
            _logger.warning("An event kept back by a transformer was refused: %s", error)
        except Exception as error:
            self._fail(error)
            _logger.exception("A transformer failed at the end of a run.")

    def _conclude(self, event: RunFinishedEvent | RunErrorEvent) -> None:
        if isinstance(event, RunFinishedEvent):
            if self.failure is None:
                event = self._completed(event)
            else:
                event = self._error(_transformer_failed())

        self._send_all(self._chained_safely(event))

        if not self.verifier.has_ended:
            refusal = self._refusal(event)

            if refusal is not None:
                self._refusal(self._error(refusal))

    def _chained_safely(self, event: RunFinishedEvent | RunErrorEvent) -> list[BaseEvent]:
        try:
            return self._chained(event)
        except Exception:
            _logger.exception("A transformer failed at the end of a run.")

            if isinstance(event, RunErrorEvent):
                return [event]

            return [self._error(_transformer_failed())]

    def _send_all(self, events: Iterable[BaseEvent]) -> None:
        for event in events:
            if self.verifier.has_ended:
                _logger.warning("A transformer put an event behind the end of a run.")
                return

            refusal = self._refusal(event)

            if refusal is not None:
                _logger.warning("An event at the end of a run was refused: %s", refusal)

    def _refusal(self, event: BaseEvent) -> AgUiError | None:
        try:
            self._send(event)
        except AgUiError as error:
            return error

        return None

    def _error(self, error: AgUiError) -> RunErrorEvent:
        return RunErrorEvent(message=str(error), code=error.code, usage=self.usage)

    def _pass(self, event: BaseEvent) -> None:
        if isinstance(event, RunFinishedEvent):
            event = self._completed(event)

        if not self._chain:
            self._send(event)
            return

        if isinstance(event, ToolCallResultEvent):
            # Also when a transformer keeps the result from the client.
            self.verifier.note_answer(event.tool_call_id)

        for made in self._chained(event):
            self._send(made)

    def _chained(self, event: BaseEvent) -> list[BaseEvent]:
        try:
            return self._chain.apply(event)
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error

    def _send(self, event: BaseEvent) -> None:
        # Encoded first: an event that is refused by either leaves no trace in the other.
        frame = encode_event(event)

        try:
            self.verifier.check(event)
        except ProtocolViolationError as error:
            if self._enforces or error.rule in LIFECYCLE_RULES:
                raise

        if self._keeps_end and self.verifier.has_ended:
            self._end = frame
        else:
            self.outbox.put(frame)

    def _send_start(self, event: RunStartedEvent, original: RunStartedEvent) -> None:
        refusal = self._refusal(event)

        if refusal is not None:
            _logger.warning("A transformed RUN_STARTED was refused: %s", refusal)
            self._send(original)

    def _completed(self, event: RunFinishedEvent) -> RunFinishedEvent:
        """Return the event with what the agent did not write: the outcome, pending calls."""
        changes: dict[str, object] = {}
        outcome = event.outcome

        if outcome is None or (
            isinstance(outcome, RunFinishedSuccessOutcome) and outcome.pending_tool_call_ids is None
        ):
            pending: list[str] | None = self.verifier.pending_tool_calls

            # A client that sees no result would count the call as its own, unless told.
            if not pending and not self.verifier.withholds_results:
                pending = None

            changes["outcome"] = RunFinishedSuccessOutcome(pending_tool_call_ids=pending)

        if event.usage is None and self._usage:
            changes["usage"] = self.usage

        return event.model_copy(update=changes) if changes else event


def _transformer_failed() -> AgUiError:
    return AgUiError("A transformer of events failed.")
