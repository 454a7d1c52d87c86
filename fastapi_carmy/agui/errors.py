"""What goes wrong in a run, and why a request never becomes one.

```text
AgUiError                    in a run; ends as RUN_ERROR with `code` when it escapes the agent
  ProtocolViolationError     the verifier refused an event
  EventError                 a value does not fit the protocol's models
  EventEncodingError         JSON can't hold a value
  InvalidStateError          the client's state does not fit the agent's state type
  RunCancelledError          the run was told to stop
  DisconnectedError          nobody reads the run any more
  SlowConsumerError          more was emitted than the client takes
RefusedRequestError          before a run; answered with a status
```
"""

from collections.abc import Mapping
from typing import ClassVar

__all__ = (
    "AgUiError",
    "DisconnectedError",
    "EventEncodingError",
    "EventError",
    "InvalidStateError",
    "ProtocolViolationError",
    "RefusedRequestError",
    "RunCancelledError",
    "SlowConsumerError",
)


class AgUiError(Exception):
    """A run can't go on as it is; its text is the client's to read.

    Attributes:
        code: What RUN_ERROR carries.
    """

    code: ClassVar[str] = "AGENT_ERROR"


class ProtocolViolationError(AgUiError):
    """An event may not come now; it was not sent.

    Attributes:
        event_type: The event's `type` on the wire.
        rule: The rule's name, such as `not-open`.
        entity_id: The id (or the step's name) that it is about, if any.
    """

    code = "PROTOCOL_VIOLATION"

    def __init__(
        self, event_type: str, rule: str, sentence: str, entity_id: str | None = None
    ) -> None:
        """Say which event broke which rule."""
        about = "" if entity_id is None else f' "{entity_id}"'
        super().__init__(f"{event_type}{about} breaks {rule}: {sentence}")
        self.event_type = event_type
        self.rule = rule
        self.entity_id = entity_id


class EventError(AgUiError):
    """A value does not fit the protocol's models; nothing was sent."""

    code = "PROTOCOL"


class EventEncodingError(AgUiError):
    """JSON can't hold a value; nothing was sent."""

    code = "SERIALIZATION"


class InvalidStateError(AgUiError):
    """The client's state does not fit the agent's state type."""

    code = "SERIALIZATION"


class RunCancelledError(AgUiError):
    """The run was told to stop; raised by whatever would emit."""

    code = "CANCELLED"

    def __init__(self) -> None:
        super().__init__("The run was told to stop.")


class DisconnectedError(AgUiError):
    """Nobody reads the run any more: the client is gone, or the run is over."""

    code = "DISCONNECTED"

    def __init__(self) -> None:
        super().__init__("Nobody reads this run any more.")


class SlowConsumerError(AgUiError):
    """More was emitted without waiting than may be kept for a client that reads slowly.

    The awaited methods wait for the client instead.
    """

    def __init__(self) -> None:
        super().__init__("More events are waiting for the client than may be kept.")


class RefusedRequestError(Exception):
    """A request that does not become a run.

    Attributes:
        status_code: The HTTP status.
        code: For programs; not a function of the status.
        message: One sentence, for people.
        headers: What the answer carries besides.
    """

    def __init__(
        self,
        status_code: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the answer."""
        super().__init__(message)
        self.status_code = status_code
        self.code = code
        self.message = message
        self.headers = dict(headers or {})
