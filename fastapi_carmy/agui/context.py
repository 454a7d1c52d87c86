"""The run as its agent sees it."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

from ag_ui.core import (
    Context,
    Interrupt,
    Message,
    ResumeEntry,
    RunAgentInput,
    RunFinishedCancelledOutcome,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    TextPart,
    TokenUsage,
    Tool,
    UserMessage,
)

from fastapi_carmy.agui.channel import Channel
from fastapi_carmy.agui.emitter import Emitter
from fastapi_carmy.agui.errors import RunCancelledError
from fastapi_carmy.agui.handles import made
from fastapi_carmy.agui.state import StatePublisher, StateType
from fastapi_carmy.agui.tokens import CancelToken
from fastapi_carmy.cancellation import race

__all__ = ("RunContext", "RunOutcome")

S = TypeVar("S")
T = TypeVar("T")

RunOutcome = RunFinishedSuccessOutcome | RunFinishedInterruptOutcome | RunFinishedCancelledOutcome
"""How a run ended, if it did not fail."""


class RunContext(Emitter, Generic[S]):
    """One run of an agent: what the client asks, what it is told, and their shared state.

    It belongs to the run's event loop; only `cancel_token.cancel()` may be called from
    another thread.

    Attributes:
        input: What the client sent, without what AG-UI 1.0 does not know.
        state: The state, as the client sent it or as the agent has changed it since.
        cancel_token: Stops the run; helpers may hold it.
    """

    def __init__(
        self, run_input: RunAgentInput, channel: Channel, state_type: StateType[S]
    ) -> None:
        """Belong to one run.

        Args:
            run_input: What the client sent.
            channel: Takes what the agent emits.
            state_type: The type of the state.

        Raises:
            InvalidStateError: If the client's state does not fit.
        """
        super().__init__(channel)
        self.input = run_input
        self.state: S = state_type.read(run_input.state)
        self.cancel_token: CancelToken = channel.token
        self._publisher = StatePublisher(state_type)

    # The request.

    @property
    def thread_id(self) -> str:
        """The conversation's id."""
        return self.input.thread_id

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.input.run_id

    @property
    def parent_run_id(self) -> str | None:
        """The id of the run that this one branches off."""
        return self.input.parent_run_id

    @property
    def messages(self) -> list[Message]:
        """The conversation, oldest first."""
        return self.input.messages

    @property
    def last_user_text(self) -> str | None:
        """The newest user message's text; its text parts by line, `None` without one."""
        for message in reversed(self.input.messages):
            if isinstance(message, UserMessage):
                return _text_of(message)

        return None

    @property
    def tools(self) -> list[Tool]:
        """The tools that the client offers to run itself."""
        return self.input.tools or []

    def tool(self, name: str) -> Tool | None:
        """Return the client's tool of this name."""
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def context(self) -> list[Context]:
        """What the client tells besides the conversation."""
        return self.input.context or []

    @property
    def forwarded_props(self) -> Any:
        """Whatever the client's application passes on; any JSON."""
        return self.input.forwarded_props

    # Interrupts.

    @property
    def is_resume(self) -> bool:
        """Whether the client answers interrupts of an earlier run."""
        return bool(self.input.resume)

    def resume(self) -> list[ResumeEntry]:
        """Return the answers to interrupts of an earlier run."""
        return self.input.resume or []

    def resume_for(self, interrupt_id: str) -> ResumeEntry | None:
        """Return the answer to one interrupt."""
        return next((one for one in self.resume() if one.interrupt_id == interrupt_id), None)

    def interrupt(
        self,
        *interrupts: Interrupt,
        reason: str | None = None,
        id: str | None = None,
        message: str | None = None,
        tool_call_id: str | None = None,
        response_schema: dict[str, Any] | None = None,
        expires_at: datetime | str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> RunOutcome:
        """Make the outcome that asks a person; the agent returns it.

        Args:
            interrupts: Several questions at once, ready made.
            reason: Why one question is asked, for programs.
            id: What the answer names; a new one by default.
            message: The question, for people.
            tool_call_id: The tool call that it is about.
            response_schema: The JSON Schema of the answer's payload.
            expires_at: When the question is void.
            metadata: Whatever else the client needs.

        Raises:
            EventError: If there is no question.
        """
        questions = list(interrupts)

        if reason is not None:
            expiry = expires_at.isoformat() if isinstance(expires_at, datetime) else expires_at
            questions.append(
                made(
                    Interrupt,
                    id=self._channel.ids.interrupt() if id is None else id,
                    reason=reason,
                    message=message,
                    tool_call_id=tool_call_id,
                    response_schema=response_schema,
                    expires_at=expiry,
                    metadata=metadata,
                )
            )

        return made(RunFinishedInterruptOutcome, type="interrupt", interrupts=questions)

    # State.

    async def set_state(self, state: S) -> None:
        """Put `state` in the place of the old one, and publish it."""
        self.state = state
        await self.publish_state()

    async def update_state(self, change: Callable[[S], S | None]) -> None:
        """Change the state, and publish it.

        Args:
            change: Changes its argument, or returns what goes in its place.
        """
        replacement = change(self.state)

        if replacement is not None:
            self.state = replacement

        await self.publish_state()

    async def publish_state(self) -> None:
        """Bring the client's copy of the state up to date.

        The first time by STATE_SNAPSHOT, later by the smaller of that and STATE_DELTA,
        not at all if nothing changed.

        Raises:
            EventEncodingError: If JSON can't hold the state.
        """
        event = self._publisher.publish(self.state)

        if event is not None:
            try:
                self.emit(event)
            except BaseException:
                self._publisher.reset()
                raise

        await self._channel.room()

    def reset_published_state(self) -> None:
        """Let the next publication be a snapshot; after one that was emitted by hand."""
        self._publisher.reset()

    # Usage.

    def usage(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        total_tokens: int | None = None,
        reasoning_tokens: int | None = None,
        cached_input_tokens: int | None = None,
        cache_write_input_tokens: int | None = None,
    ) -> None:
        """Report one model call's tokens; the run's end tells the sums.

        Raises:
            EventError: If a count is negative or not whole.
        """
        self._channel.add_usage(
            made(
                TokenUsage,
                provider=provider,
                model=model,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                total_tokens=total_tokens,
                reasoning_tokens=reasoning_tokens,
                cached_input_tokens=cached_input_tokens,
                cache_write_input_tokens=cache_write_input_tokens,
            )
        )

    # Cancellation.

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was told to stop: by a disconnect, a limit, or the host."""
        return self.cancel_token.is_cancelled

    def check_cancelled(self) -> None:
        """Raise if the run was told to stop.

        Raises:
            RunCancelledError: If it was.
        """
        if self.cancel_token.is_cancelled:
            raise RunCancelledError

    async def cancelled(self) -> None:
        """Return once the run is told to stop."""
        await self.cancel_token.wait()

    async def until_cancelled(self, work: Awaitable[T]) -> T | None:
        """Return what `work` returns, or `None` when the run is told to stop first.

        `work` is interrupted then, once.
        """
        _, result = await race(work, self.cancel_token.latch)

        return result


def _text_of(message: UserMessage) -> str:
    if isinstance(message.content, str):
        return message.content

    return "\n".join(part.text for part in message.content if isinstance(part, TextPart))
