"""What an agent says with: the same in a run, in one of its steps, and in a subagent."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from ag_ui.core import (
    ActivityDeltaEvent,
    ActivitySnapshotEvent,
    BaseEvent,
    CustomEvent,
    Message,
    MessagesSnapshotEvent,
    RawEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedOutcome,
    SubagentStartedEvent,
)
from ag_ui.core.events import TextMessageRole

from fastapi_carmy.agui.channel import Channel
from fastapi_carmy.agui.handles import (
    Handle,
    MessageHandle,
    ReasoningHandle,
    ToolCallHandle,
    made,
)

__all__ = ("Emitter", "StepHandle", "SubagentHandle")


class Emitter:
    """Sends events of one run.

    Everything that is awaited waits for a client that reads slowly; `emit` does not.
    Once the run is told to stop, whatever would send raises `RunCancelledError`.
    """

    def __init__(self, channel: Channel, owner: str | None = None) -> None:
        """Send through `channel`.

        Args:
            channel: The run's.
            owner: The subagent run that everything is tagged with.
        """
        self._channel = channel
        self._owner = owner

    def emit(self, event: BaseEvent) -> None:
        """Send any event of `ag_ui.core`; never waits.

        Raises:
            ProtocolViolationError: If it may not come now; it was not sent.
            SlowConsumerError: If too much waits for the client already.
            RunCancelledError: If the run was told to stop.
            DisconnectedError: If nobody reads any more.
            EventError: If a value of it does not fit its type.
            EventEncodingError: If JSON can't hold a value.
        """
        self._channel.emit(event)

    async def drain(self) -> None:
        """Wait until the client was handed everything that was sent so far."""
        await self._channel.outbox.drained()

    def new_message_id(self) -> str:
        """Return an id that no message of this run or its input has."""
        return self._channel.ids.message()

    def new_tool_call_id(self) -> str:
        """Return an id that no tool call of this run or its input has."""
        return self._channel.ids.tool_call()

    def message(
        self,
        role: TextMessageRole = "assistant",
        *,
        id: str | None = None,
        name: str | None = None,
    ) -> MessageHandle:
        """Open a text message.

        Args:
            role: Who it is from.
            id: Its id; a new one by default.
            name: The author's name, where one role has several authors.
        """
        return MessageHandle(
            self._channel,
            id=self.new_message_id() if id is None else id,
            role=role,
            name=name,
            owner=self._owner,
        )

    def assistant_message(self) -> MessageHandle:
        """Open a text message of the assistant."""
        return self.message()

    def message_with_id(self, id: str, role: TextMessageRole = "assistant") -> MessageHandle:
        """Open a text message under an id of your own."""
        return self.message(role, id=id)

    async def say(self, text: str, *, role: TextMessageRole = "assistant") -> str:
        """Send a whole message; return its id."""
        async with self.message(role) as message:
            await message.delta(text)

        return message.id

    def reasoning(self, *, id: str | None = None) -> ReasoningHandle:
        """Open a piece of reasoning."""
        return ReasoningHandle(
            self._channel, id=self.new_message_id() if id is None else id, owner=self._owner
        )

    def reasoning_with_id(self, id: str) -> ReasoningHandle:
        """Open a piece of reasoning under an id of your own."""
        return self.reasoning(id=id)

    async def think(self, text: str) -> str:
        """Send a whole piece of reasoning; return its id."""
        async with self.reasoning() as reasoning:
            await reasoning.delta(text)

        return reasoning.id

    def tool_call(
        self,
        name: str,
        *,
        id: str | None = None,
        parent_message_id: str | None = None,
    ) -> ToolCallHandle:
        """Open a tool call.

        Args:
            name: The tool's name.
            id: The call's id; a new one by default.
            parent_message_id: The assistant message that the call belongs to.
        """
        return ToolCallHandle(
            self._channel,
            id=self.new_tool_call_id() if id is None else id,
            name=name,
            result_message_id=self.new_message_id(),
            parent_message_id=parent_message_id,
            owner=self._owner,
        )

    def tool_call_with_id(self, id: str, name: str) -> ToolCallHandle:
        """Open a tool call under an id of your own."""
        return self.tool_call(name, id=id)

    def step(self, name: str) -> "StepHandle":
        """Begin a step; messages, calls and further steps may be made through it."""
        return StepHandle(self._channel, name, self._owner)

    def subagent(
        self,
        name: str,
        *,
        id: str | None = None,
        description: str | None = None,
        parent_tool_call_id: str | None = None,
        parent_message_id: str | None = None,
    ) -> "SubagentHandle":
        """Begin a subagent's run; what is made through it is tagged as the subagent's.

        Args:
            name: The subagent's name.
            id: This invocation's id; a new one by default.
            description: What the subagent is for.
            parent_tool_call_id: The call that delegates to it.
            parent_message_id: The message that delegates to it.
        """
        return SubagentHandle(
            self._channel,
            id=self._channel.ids.subagent() if id is None else id,
            name=name,
            description=description,
            parent_subagent_run_id=self._owner,
            parent_tool_call_id=parent_tool_call_id,
            parent_message_id=parent_message_id,
        )

    async def custom(self, name: str, value: object) -> None:
        """Send an event of your own; prefix its name with a namespace."""
        await self._send(CustomEvent, name=name, value=value)

    async def raw(self, event: object, source: str | None = None) -> None:
        """Pass on an event of another system as it is."""
        self.emit(made(RawEvent, event=event, source=source, subagent_run_id=self._owner))
        await self._channel.room()

    async def activity(
        self,
        activity_type: str,
        content: Mapping[str, object],
        *,
        id: str | None = None,
        replace: bool | None = None,
    ) -> str:
        """Show what goes on besides the conversation; return the activity's id.

        Args:
            activity_type: What the client renders it as.
            content: Whatever that needs.
            id: An activity to show anew; a new one by default.
            replace: Whether an activity with this id is replaced; yes by default.
        """
        message_id = self.new_message_id() if id is None else id
        await self._send(
            ActivitySnapshotEvent,
            message_id=message_id,
            activity_type=activity_type,
            content=dict(content),
            replace=replace,
        )

        return message_id

    async def activity_delta(
        self,
        id: str,
        activity_type: str,
        patch: Sequence[Mapping[str, object]],
    ) -> None:
        """Change an activity by a JSON Patch."""
        await self._send(
            ActivityDeltaEvent,
            message_id=id,
            activity_type=activity_type,
            patch=[dict(operation) for operation in patch],
        )

    async def messages_snapshot(self, messages: Sequence[Message]) -> None:
        """Tell the whole conversation anew."""
        self.emit(made(MessagesSnapshotEvent, messages=list(messages)))
        await self._channel.room()

    async def _send(self, event: type[BaseEvent], **fields: Any) -> None:
        self.emit(made(event, subagent_run_id=self._owner, **fields))
        await self._channel.room()


class StepHandle(Handle, Emitter):
    """One step of the work; ends once.

    Attributes:
        name: The step's name.
    """

    def __init__(self, channel: Channel, name: str, owner: str | None) -> None:
        """Send STEP_STARTED."""
        channel.emit(made(StepStartedEvent, step_name=name, subagent_run_id=owner))
        Handle.__init__(self, channel)
        Emitter.__init__(self, channel, owner)
        self.name = name

    async def finish(self) -> None:
        """End the step; once is enough."""
        await self._end()

    def _send_end(self) -> None:
        self._channel.emit_closing(
            StepFinishedEvent(step_name=self.name, subagent_run_id=self._owner)
        )


class SubagentHandle(Handle, Emitter):
    """One invocation of a subagent; ends once.

    A block that raises ends it as failed, without the exception's text.

    Attributes:
        id: The invocation's id.
        name: The subagent's name.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        id: str,
        name: str,
        description: str | None,
        parent_subagent_run_id: str | None,
        parent_tool_call_id: str | None,
        parent_message_id: str | None,
    ) -> None:
        """Send SUBAGENT_STARTED."""
        channel.emit(
            made(
                SubagentStartedEvent,
                subagent_run_id=id,
                name=name,
                description=description,
                parent_subagent_run_id=parent_subagent_run_id,
                parent_tool_call_id=parent_tool_call_id,
                parent_message_id=parent_message_id,
            )
        )
        Handle.__init__(self, channel)
        Emitter.__init__(self, channel, id)
        self.id = id
        self.name = name
        self._last: BaseEvent = SubagentFinishedEvent(subagent_run_id=id)

    async def finish(
        self, result: object = None, *, outcome: SubagentFinishedOutcome | None = None
    ) -> None:
        """End it well.

        Args:
            result: Any JSON value.
            outcome: Success by default, or suspended.
        """
        if self._is_open:
            self._last = made(
                SubagentFinishedEvent, subagent_run_id=self.id, result=result, outcome=outcome
            )

        await self._end()

    async def fail(self, message: str, *, code: str | None = None) -> None:
        """End it as failed.

        Args:
            message: For people.
            code: For programs.
        """
        if self._is_open:
            self._last = made(
                SubagentErrorEvent, subagent_run_id=self.id, message=message, code=code
            )

        await self._end()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._is_open:
            self._last = SubagentErrorEvent(
                subagent_run_id=self.id, message="The subagent did not finish."
            )

        super().__exit__(kind, error, traceback)

    def _send_end(self) -> None:
        self._channel.emit_closing(self._last)
