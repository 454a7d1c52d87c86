"""Whose an item is: the agent's own, or a subagent's.

An owner is recorded when an item is opened and stays when it closes, because an event
about it may still follow. An absent tag agrees with every owner.

Source: AG-UI 1.0, attribution; the same reading as the reference client's.
"""

from typing import Any

from ag_ui.core import AssistantMessage, Message

from fastapi_carmy.agui.rules import violation

__all__ = ("Attribution", "Owners", "check_owner")

Owners = dict[str, str | None]
"""Id → the subagent that opened it; `None` is the agent itself."""


class Attribution:
    """The owners of one run's items; ids are unique within a kind only."""

    __slots__ = ("activities", "calls", "known_calls", "messages", "reasoning")

    def __init__(self) -> None:
        self.messages: Owners = {}
        self.calls: Owners = {}
        self.activities: Owners = {}
        self.reasoning: Owners = {}
        self.known_calls: set[str] = set()
        """Calls of earlier turns; this run may answer them."""

    def learn(self, messages: list[Message], *, replace: bool) -> None:
        """Take the owners from a conversation.

        Args:
            messages: In any order.
            replace: Whether they overrule what is recorded, as a snapshot does.
        """
        for message in messages:
            owner = message.subagent_run_id
            _claim(self._bucket(message.role), message.id, owner, replace=replace)

            if isinstance(message, AssistantMessage):
                for call in message.tool_calls or ():
                    self.known_calls.add(call.id)
                    _claim(self.calls, call.id, owner, replace=replace)

    def owner_of_call(self, event: Any, call: str, parent: str | None) -> str | None:
        """Return whose a call is: its tag's, its parent message's, or what it was before.

        Raises:
            ProtocolViolationError: If those contradict each other.
        """
        tag: str | None = event.subagent_run_id
        owner = tag
        is_told = tag is not None

        if parent is not None and parent in self.messages:
            owner = self.messages[parent]
            is_told = True

            if tag is not None and tag != owner:
                raise violation(event.type.value, "owner-mismatch", call)

        if call not in self.calls:
            return owner

        if is_told and owner != self.calls[call]:
            raise violation(event.type.value, "owner-mismatch", call)

        return self.calls[call]

    def check_value(self, event: Any) -> None:
        """Check the tag of an encrypted value against the item that it belongs to.

        Raises:
            ProtocolViolationError: If they differ.
        """
        entity = event.entity_id

        if event.subtype == "tool-call":
            check_owner(event, self.calls, entity)
        elif entity in self.messages:
            check_owner(event, self.messages, entity)
        else:
            check_owner(event, self.reasoning, entity)

    def _bucket(self, role: str) -> Owners:
        if role == "reasoning":
            return self.reasoning

        return self.activities if role == "activity" else self.messages


def check_owner(event: Any, owners: Owners, entity: str) -> None:
    """Check an event's tag against the owner of what it continues.

    Raises:
        ProtocolViolationError: If they differ.
    """
    tag = event.subagent_run_id

    if tag is not None and entity in owners and owners[entity] != tag:
        raise violation(event.type.value, "owner-mismatch", entity)


def _claim(owners: Owners, entity: str, owner: str | None, *, replace: bool) -> None:
    if replace or entity not in owners:
        owners[entity] = owner
