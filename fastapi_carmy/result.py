"""An execution's answer: made once, as the bytes that are sent, recorded and replayed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import urandom
from typing import Any, Literal, cast

from pydantic_core import from_json

from fastapi_carmy.errors import AgentError, ErrorCategory
from fastapi_carmy.jsontext import encode

__all__ = (
    "ExecutionResult",
    "ExecutionStatus",
    "NextAction",
    "execution_ids",
    "status_of",
)

ExecutionStatus = Literal["completed", "failed", "cancelled", "timed_out"]

_PLAIN = (b'{"cacheable":false,"next_actions":[]}', b'{"cacheable":true,"next_actions":[]}')
"""What most answers say to the agent, by whether they may be cached."""

_IDS_AT_ONCE = 256
_FORM = b"exec_00000000-0000-0000-0000-000000000000 "
_DIGITS = [place for place, letter in enumerate(_FORM) if letter == ord("0")]
_BYTES = 16

_VERSION = bytes(0x40 | byte & 0x0F for byte in range(256))
_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))

_STATUS_OF_CATEGORY: Mapping[ErrorCategory, ExecutionStatus] = {
    ErrorCategory.CANCELLED: "cancelled",
    ErrorCategory.TIMEOUT: "timed_out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAction:
    """What the agent may do next. Source: carmy/1, section 2.2."""

    tool: str
    reason: str
    arguments: Mapping[str, object] | None = None
    """`None` means the same arguments as in this call."""
    after_ms: int | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the wire's fields; those that are absent are left out."""
        fields: dict[str, object] = {"tool": self.tool}

        if self.arguments is not None:
            fields["arguments"] = self.arguments

        fields["reason"] = self.reason

        if self.after_ms is not None:
            fields["after_ms"] = self.after_ms

        return fields


@dataclass(slots=True)
class ExecutionResult:
    """How one execution ended.

    Attributes:
        execution_id: `exec_` and a UUID; on a replay the original's.
        status: `completed`, `failed`, `cancelled` or `timed_out`.
        error: What went wrong; `None` on success.
        body: The answer as JSON bytes, byte-identical on every replay.
        replayed: Whether this is the recorded answer of an earlier call.
    """

    execution_id: str
    status: ExecutionStatus
    body: bytes
    error: AgentError | None = None
    replayed: bool = False

    @property
    def data(self) -> object:
        """What the tool returned, as plain JSON values; `None` when it failed."""
        return self._parsed().get("data")

    @property
    def cacheable(self) -> bool:
        """Whether the agent may cache this answer."""
        return bool(self._agent()["cacheable"])

    @property
    def next_actions(self) -> tuple[NextAction, ...]:
        """What the agent may do next."""
        actions = cast("list[dict[str, Any]]", self._agent()["next_actions"])
        return tuple(NextAction(**action) for action in actions)

    @classmethod
    def completed(
        cls,
        execution_id: str,
        data: bytes,
        *,
        cacheable: bool,
        next_actions: Sequence[NextAction] = (),
    ) -> "ExecutionResult":
        """Answer with what a tool returned.

        Args:
            execution_id: The execution's id.
            data: The tool's output as JSON.
            cacheable: Whether the agent may cache it.
            next_actions: What the tool suggested.
        """
        agent = _agent(next_actions, cacheable=cacheable) if next_actions else _PLAIN[cacheable]
        start = b'{"execution_id":"' + execution_id.encode()
        body = b"".join(
            (start, b'","status":"completed","data":', data, b',"_agent":', agent, b"}")
        )
        return cls(execution_id, "completed", body)

    @classmethod
    def failed(
        cls, execution_id: str, error: AgentError, *, next_actions: Sequence[NextAction] = ()
    ) -> "ExecutionResult":
        """Answer with what went wrong."""
        status = status_of(error)
        body = b'{"execution_id":"%b","status":"%b","error":%b,"_agent":%b}' % (
            execution_id.encode(),
            status.encode(),
            encode(error.as_dict()),
            _agent(next_actions, cacheable=False),
        )
        return cls(execution_id=execution_id, status=status, body=body, error=error)

    @classmethod
    def replay(cls, execution_id: str, status: str, body: bytes) -> "ExecutionResult":
        """Answer with what was recorded; a success is not even read."""
        return cls(
            execution_id=execution_id,
            status=cast("ExecutionStatus", status),
            body=body,
            error=None if status == "completed" else AgentError(**from_json(body)["error"]),
            replayed=True,
        )

    def _parsed(self) -> dict[str, object]:
        parsed: dict[str, object] = from_json(self.body)
        return parsed

    def _agent(self) -> dict[str, object]:
        return cast("dict[str, object]", self._parsed()["_agent"])


def execution_ids() -> Iterator[str]:
    """Yield `exec_` and a random UUID, for ever; in one thread, and never across a fork.

    Source: carmy/1, section 2.2; RFC 9562, 5.4.
    """
    while True:
        # Asking the system for each of them, and cutting it up, would take longer than a call
        # of a store. So a page of them is written at once, one column of digits after the other.
        random = bytearray(urandom(_BYTES * _IDS_AT_ONCE))
        random[6::_BYTES] = random[6::_BYTES].translate(_VERSION)
        random[8::_BYTES] = random[8::_BYTES].translate(_VARIANT)
        digits = random.hex().encode()
        page = bytearray(_FORM * _IDS_AT_ONCE)

        for number, place in enumerate(_DIGITS):
            page[place :: len(_FORM)] = digits[number :: len(_DIGITS)]

        yield from page.decode().split()


def status_of(error: AgentError) -> ExecutionStatus:
    """Return the status of an execution that ended with `error`."""
    return _STATUS_OF_CATEGORY.get(error.category, "failed")


def _agent(next_actions: Sequence[NextAction], *, cacheable: bool) -> bytes:
    actions = [action.as_dict() for action in next_actions]
    return encode({"cacheable": cacheable, "next_actions": actions})
