"""What an idempotency store promises, and the values it speaks in.

The promise is held by `tests/contract/test_store_contract.py`, which runs over every
store of the package; a store of your own passes it when it is added to its fixture.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

__all__ = (
    "Acquired",
    "Conflict",
    "Entry",
    "IdempotencyCapacityError",
    "IdempotencyStore",
    "InProgress",
    "Key",
    "Record",
    "Replay",
    "Reservation",
)


class Key(NamedTuple):
    """The identity of a repeated call. Source: carmy/1, section 4.2.

    Two keys are the same when all three parts are; an absent part equals only an absent one.
    """

    principal: str | None
    session: str | None
    request_id: str
    """1 to 256 bytes of UTF-8, as the caller chose it."""


class Record(NamedTuple):
    """The answer of a finished execution; a tuple, because it is made for each of them."""

    execution_id: str
    """The execution that gave it."""

    status: str
    """`completed`, `failed`, `cancelled` or `timed_out`."""

    body: bytes
    """The JSON answer as it was first sent; a store gives it back byte for byte."""


@dataclass(frozen=True, slots=True)
class Acquired:
    """The key is yours: run the call, then `complete`, `release` or `abandon` it."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The same call has finished: answer with its record, run nothing."""

    record: Record


@dataclass(frozen=True, slots=True)
class InProgress:
    """The same call has begun and not finished: nobody knows how it ends."""

    execution_id: str

    started_at: str
    """When it was reserved: RFC 3339, UTC, in milliseconds."""

    state: Literal["running", "abandoned"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key belongs to another call: its fingerprint differs."""


Reservation = Acquired | Replay | InProgress | Conflict
"""What `IdempotencyStore.reserve` answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a store holds under one key."""

    execution_id: str
    """The owner: the execution that reserved the key last."""

    fingerprint: str

    started_at: str
    """When the owner reserved it: RFC 3339, UTC, in milliseconds."""

    state: Literal["running", "abandoned", "finished"]

    record: Record | None = None
    """The answer; there exactly when `state` is `finished`."""


class IdempotencyCapacityError(Exception):
    """The store is full of entries that have not finished, and those are never dropped.

    Attributes:
        max_entries: How many entries the store holds at most.
    """

    def __init__(self, max_entries: int) -> None:
        """Say how much the store holds."""
        super().__init__(f"All {max_entries} entries are in progress or abandoned.")
        self.max_entries = max_entries


class IdempotencyStore(Protocol):
    """Remembers which calls have begun and how they ended, so that none runs twice.

    An entry is `running` from `reserve` on, then `finished` by `complete`, gone by
    `release`, or `abandoned` by `abandon`. It is owned by the execution that reserved
    it: `complete`, `release` and `abandon` of any other execution change nothing.

    Guarantees:

    - Each method is atomic, also between event loops, threads and, for a store that is
      shared, processes: no method is ever seen half done.
    - Entries under different keys never meet.
    - A store is bound to no event loop when it is created, and works in each loop that
      uses it.
    - An entry that has not finished is never dropped by itself. One that has is kept for
      as long as the store says, then it is as if its key had never been used.
    - A method that is interrupted (a cancelled task) has happened or has not; its caller
      finds out by `lookup`.

    Any exception that is not named here means that the store does not know: the runtime
    then answers `STORE_ERROR` before a tool runs, and keeps the reservation after.

    Contract test: `tests/contract/test_store_contract.py`.
    """

    async def reserve(
        self, key: Key, *, fingerprint: str, execution_id: str, may_repeat: bool
    ) -> Reservation:
        """Claim `key` for `execution_id`, or say why not.

        Of any number of simultaneous claims of one free key, exactly one is `Acquired`.

        Args:
            key: Whose call it is, and which.
            fingerprint: What the call asks for; compared, never interpreted.
            execution_id: The execution that wants to run; new for each claim.
            may_repeat: Running the call twice is safe, so an abandoned entry does not
                stand in its way.

        Returns:
            `Acquired` when the key was free, or when `may_repeat` took over an abandoned
            entry with the same fingerprint; `execution_id` then owns it, from now on.
            `Conflict` when there is an entry with another fingerprint, in whichever state.
            `Replay` when the same call has finished. `InProgress` when it has not; also to
            the owner itself: a claim is made once.

        Raises:
            IdempotencyCapacityError: If a new entry finds no room.
        """
        ...

    async def complete(self, key: Key, *, execution_id: str, record: Record) -> bool:
        """Finish the entry with its answer.

        Works on an abandoned entry too: a late finisher that still owns it, or the host
        that found out how the execution ended. The first answer stays: a second
        `complete` changes nothing.

        Args:
            key: As reserved.
            execution_id: The owner.
            record: What later claims are answered with; its `execution_id` is the owner.

        Returns:
            Whether `record` is now the answer under `key`. `False` when there is no entry,
            when another execution owns it, or when it has finished already.
        """
        ...

    async def release(self, key: Key, *, execution_id: str) -> bool:
        """Forget the entry, so that the same key runs again.

        For executions that did nothing, and for the host that found out that an abandoned
        one did nothing.

        Returns:
            Whether the entry is gone by this call. `False`, and nothing changed, when there
            is none, when another execution owns it, or when it has finished.
        """
        ...

    async def abandon(self, key: Key, *, execution_id: str) -> bool:
        """Mark the entry as one of which nobody will say how it ended.

        Harmless when it is abandoned already.

        Returns:
            Whether the entry is abandoned now. `False`, and nothing changed, when there is
            none, when another execution owns it, or when it has finished.
        """
        ...

    async def lookup(self, key: Key) -> Entry | None:
        """Return the entry under `key`, or `None`; looking keeps nothing alive."""
        ...

    async def aclose(self) -> None:
        """Let go of connections; entries stay. Harmless when repeated.

        A later call of any method opens what it needs again: one router can be part of two
        applications, and they do not stop together.
        """
        ...
