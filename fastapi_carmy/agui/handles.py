"""Messages, reasoning and tool calls while they are being streamed.

Making a handle sends the opening event. The end is sent once: by the handle's own
method, by leaving its `with` or `async with` block, or by the run when it ends.
"""

from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from ag_ui.core import (
    BaseEvent,
    ContentPart,
    ReasoningEncryptedValueEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from ag_ui.core.events import TextMessageRole
from pydantic import BaseModel, TypeAdapter, ValidationError

from fastapi_carmy.agui.channel import Channel
from fastapi_carmy.agui.encode import json_text
from fastapi_carmy.agui.errors import AgUiError, EventError
from fastapi_carmy.agui.rules import violation

__all__ = ("Handle", "MessageHandle", "ReasoningHandle", "ToolCallHandle", "made")

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


def made(model: type[M], /, **fields: Any) -> M:
    """Return an event, or a part of one.

    Raises:
        EventError: If a value does not fit its type.
    """
    try:
        return model(**fields)
    except ValidationError as error:
        name = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise EventError(f"{model.__name__} takes another value for {name}.") from error


class Handle:
    """Something open in a run; closed once."""

    def __init__(self, channel: Channel) -> None:
        """Take part in `channel` until closed; the subclass has sent the opening."""
        self._channel = channel
        self._is_open = True
        channel.hold(self)

    def close(self) -> None:
        """Send the end, if it was not sent; never waits."""
        if not self._is_open:
            return

        self._is_open = False
        self._channel.release(self)
        self._send_end()

    def _send_end(self) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        self.close()
        await self._channel.outbox.turn()

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._channel.room().__await__()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del kind, traceback

        try:
            self.close()
        except AgUiError:
            # What the block raised tells more.
            if error is None:
                raise

    async def __aenter__(self) -> Self:
        await self._channel.room()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

        if error is None:
            await self._channel.outbox.turn()


class MessageHandle(Handle):
    """One text message, told piece by piece.

    Attributes:
        id: The message's id.
        role: Who it is from.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        id: str,
        role: TextMessageRole,
        name: str | None,
        owner: str | None,
    ) -> None:
        """Send TEXT_MESSAGE_START."""
        channel.emit(
            made(TextMessageStartEvent, message_id=id, role=role, name=name, subagent_run_id=owner)
        )
        super().__init__(channel)
        self.id = id
        self.role = role
        self._owner = owner

    async def delta(self, text: str) -> None:
        """Add to the message; an empty text adds nothing.

        Raises:
            ProtocolViolationError: If the message has ended.
        """
        if not self._is_open:
            raise violation("TEXT_MESSAGE_CONTENT", "not-open", self.id)

        if text != "":
            self._channel.emit(
                made(
                    TextMessageContentEvent,
                    message_id=self.id,
                    delta=text,
                    subagent_run_id=self._owner,
                )
            )
            await self._channel.outbox.room()

    async def end(self) -> None:
        """End the message; once is enough."""
        await self._end()

    def emit(self, event: BaseEvent) -> None:
        """See `RunContext.emit`."""
        self._channel.emit(event)

    def _send_end(self) -> None:
        self._channel.emit_closing(
            TextMessageEndEvent(message_id=self.id, subagent_run_id=self._owner)
        )


class ReasoningHandle(Handle):
    """One piece of reasoning: a span with one message in it.

    Attributes:
        id: The id of both.
    """

    def __init__(self, channel: Channel, *, id: str, owner: str | None) -> None:
        """Send REASONING_START and REASONING_MESSAGE_START."""
        self.id = id
        self._owner = owner
        channel.emit(made(ReasoningStartEvent, message_id=id, subagent_run_id=owner))

        try:
            channel.emit(
                made(
                    ReasoningMessageStartEvent,
                    message_id=id,
                    role="reasoning",
                    subagent_run_id=owner,
                )
            )
        except Exception:
            channel.emit_closing(ReasoningEndEvent(message_id=id, subagent_run_id=owner))
            raise

        super().__init__(channel)

    async def delta(self, text: str) -> None:
        """Add to the reasoning; an empty text adds nothing.

        Raises:
            ProtocolViolationError: If it has ended.
        """
        if not self._is_open:
            raise violation("REASONING_MESSAGE_CONTENT", "not-open", self.id)

        if text != "":
            self._channel.emit(
                made(
                    ReasoningMessageContentEvent,
                    message_id=self.id,
                    delta=text,
                    subagent_run_id=self._owner,
                )
            )
            await self._channel.outbox.room()

    async def encrypted_value(self, value: str) -> None:
        """Hand the client a provider's opaque value of this reasoning, to send back later."""
        self._channel.emit(
            made(
                ReasoningEncryptedValueEvent,
                subtype="message",
                entity_id=self.id,
                encrypted_value=value,
                subagent_run_id=self._owner,
            )
        )
        await self._channel.room()

    async def end(self) -> None:
        """End the reasoning; once is enough."""
        await self._end()

    def _send_end(self) -> None:
        try:
            self._channel.emit_closing(
                ReasoningMessageEndEvent(message_id=self.id, subagent_run_id=self._owner)
            )
        finally:
            self._channel.emit_closing(
                ReasoningEndEvent(message_id=self.id, subagent_run_id=self._owner)
            )


class ToolCallHandle(Handle):
    """One tool call: its arguments, its end, and its result if this side runs the tool.

    A call that ends without a result is the client's to run.

    Attributes:
        id: The call's id.
        name: The tool's name.
        result_message_id: The id that the result's message has, or would have.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        id: str,
        name: str,
        result_message_id: str,
        parent_message_id: str | None,
        owner: str | None,
    ) -> None:
        """Send TOOL_CALL_START."""
        channel.emit(
            made(
                ToolCallStartEvent,
                tool_call_id=id,
                tool_call_name=name,
                parent_message_id=parent_message_id,
                subagent_run_id=owner,
            )
        )
        super().__init__(channel)
        self.id = id
        self.name = name
        self.result_message_id = result_message_id
        self._owner = owner
        self._args: list[str] = []
        self._has_result = False

    @property
    def raw_args(self) -> str:
        """The arguments so far, as text."""
        return "".join(self._args)

    @overload
    def parse_args(self) -> Any: ...

    @overload
    def parse_args(self, type_: type[T]) -> T: ...

    def parse_args(self, type_: Any = Any) -> Any:
        """Return the arguments so far, validated.

        Args:
            type_: Whatever pydantic knows; any JSON by default.

        Raises:
            pydantic.ValidationError: If they are incomplete, or do not fit.
        """
        return TypeAdapter(type_).validate_json(self.raw_args)

    async def args(self, text: str) -> None:
        """Add to the arguments' JSON; an empty text adds nothing.

        Raises:
            ProtocolViolationError: If the call has ended.
        """
        if not self._is_open:
            raise violation("TOOL_CALL_ARGS", "not-open", self.id)

        if text != "":
            self._channel.emit(
                made(
                    ToolCallArgsEvent, tool_call_id=self.id, delta=text, subagent_run_id=self._owner
                )
            )
            self._args.append(text)
            await self._channel.outbox.room()

    async def args_json(self, arguments: object) -> None:
        """Add any value as compact JSON to the arguments."""
        await self.args(json_text(arguments, "The arguments").decode())

    async def end(self) -> None:
        """End the arguments; once is enough."""
        await self._end()

    async def result(self, content: str | Sequence[ContentPart]) -> str:
        """End the call if it is open, and tell its result.

        Returns:
            The id of the result's message.

        Raises:
            ProtocolViolationError: If a result was told before.
        """
        if self._has_result:
            raise violation("TOOL_CALL_RESULT", "out-of-order", self.id)

        self.close()
        self._channel.emit(
            made(
                ToolCallResultEvent,
                message_id=self.result_message_id,
                tool_call_id=self.id,
                content=content if isinstance(content, str) else list(content),
                role="tool",
                subagent_run_id=self._owner,
            )
        )
        self._has_result = True
        await self._channel.outbox.turn()

        return self.result_message_id

    async def result_json(self, value: object) -> str:
        """End the call, and tell any value as compact JSON; see `result`."""
        return await self.result(json_text(value, "The result").decode())

    async def encrypted_value(self, value: str) -> None:
        """Hand the client a provider's opaque value of this call, to send back later."""
        self._channel.emit(
            made(
                ReasoningEncryptedValueEvent,
                subtype="tool-call",
                entity_id=self.id,
                encrypted_value=value,
                subagent_run_id=self._owner,
            )
        )
        await self._channel.room()

    def _send_end(self) -> None:
        self._channel.emit_closing(
            ToolCallEndEvent(tool_call_id=self.id, subagent_run_id=self._owner)
        )
