"""A call's hold on its `request_id`: taken before the tool runs, settled once it is over."""

import logging
from collections.abc import Awaitable

from anyio import move_on_after

from fastapi_carmy.envelope import Call, fingerprint
from fastapi_carmy.result import ExecutionResult
from fastapi_carmy.runtime_errors import (
    execution_uncertain,
    idempotency_capacity,
    idempotency_conflict,
    store_error,
)
from fastapi_carmy.stores.base import (
    Acquired,
    Conflict,
    IdempotencyCapacityError,
    IdempotencyStore,
    InProgress,
    Key,
    Record,
    Replay,
)

__all__ = ("Reservation", "is_request_id", "reserve")

_logger = logging.getLogger(__name__)
_MAX_ID_BYTES = 256
_STAYS = "The idempotency store failed; the reservation of execution %s stays."


def is_request_id(value: object) -> bool:
    """Tell whether `value` is 1 to 256 bytes of UTF-8. Source: carmy/1, section 2.1."""
    if not isinstance(value, str) or not value or len(value) > _MAX_ID_BYTES:
        return False

    if value.isascii():
        return True

    try:
        return len(value.encode()) <= _MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


class Reservation:
    """One execution's hold on a key. A store that fails here is logged, and harms nobody.

    The answer is given all the same; the reservation stays, so nothing runs twice.
    """

    __slots__ = ("_execution_id", "_key", "_store")

    def __init__(self, store: IdempotencyStore, key: Key, execution_id: str) -> None:
        """Hold `key` in `store` for `execution_id`."""
        self._store = store
        self._key = key
        self._execution_id = execution_id

    async def complete(self, result: ExecutionResult) -> None:
        """Record the answer; every later claim is answered with it."""
        record = Record(self._execution_id, result.status, result.body)

        try:
            recorded = await self._store.complete(
                self._key, execution_id=self._execution_id, record=record
            )
        except Exception:
            _logger.exception(_STAYS, self._execution_id)
            return

        if recorded is False and not await self._is_recorded():
            _logger.warning(
                "Execution %s finished after its request_id had gone to another execution; "
                "its answer is not recorded.",
                self._execution_id,
            )

    async def _is_recorded(self) -> bool:
        """Tell whether an earlier try, which was interrupted, did record after all."""
        try:
            entry = await self._store.lookup(self._key)
        except Exception:
            _logger.exception("The idempotency store failed.")
            return False

        return (
            entry is not None
            and entry.execution_id == self._execution_id
            and entry.record is not None
        )

    async def release(self) -> None:
        """Free the key: nothing happened, or repeating it is harmless."""
        await self._told(self._store.release(self._key, execution_id=self._execution_id))

    async def abandon(self) -> None:
        """Say that nobody will ever know how this execution ended."""
        await self._told(self._store.abandon(self._key, execution_id=self._execution_id))

    async def _told(self, answer: Awaitable[bool]) -> None:
        try:
            await answer
        except Exception:
            _logger.exception(_STAYS, self._execution_id)


async def reserve(
    store: IdempotencyStore,
    call: Call,
    key: Key,
    execution_id: str,
    *,
    may_repeat: bool,
    give_up_seconds: float,
) -> Reservation | ExecutionResult:
    """Claim the call's `request_id`.

    Args:
        store: Where calls are remembered.
        call: The call.
        key: What it is remembered under.
        execution_id: The execution that wants to run.
        may_repeat: Running the call twice is safe.
        give_up_seconds: Limit for taking back a claim that was interrupted.

    Returns:
        The hold on it, or the recorded answer of the same call.

    Raises:
        AgentError: `IDEMPOTENCY_CONFLICT`, `EXECUTION_UNCERTAIN`, `IDEMPOTENCY_CAPACITY`
            or `STORE_ERROR`.
    """
    held = Reservation(store, key, execution_id)

    try:
        outcome = await store.reserve(
            key,
            fingerprint=fingerprint(call),
            execution_id=execution_id,
            may_repeat=may_repeat,
        )
    except IdempotencyCapacityError:
        raise idempotency_capacity() from None
    except BaseException as error:
        # The claim may have happened all the same; nobody else would ever settle it.
        with move_on_after(give_up_seconds, shield=True):
            await held.release()

        if not isinstance(error, Exception):
            raise

        _logger.exception("The idempotency store failed; nothing was run.")
        raise store_error() from None

    if isinstance(outcome, Acquired):
        return held

    if isinstance(outcome, Replay):
        record = outcome.record
        return ExecutionResult.replay(record.execution_id, record.status, record.body)

    if isinstance(outcome, InProgress):
        raise execution_uncertain(outcome.execution_id, outcome.started_at, outcome.state)

    if isinstance(outcome, Conflict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise idempotency_conflict()

    # A store is somebody else's code, and may answer what no type allows. Whether the call is
    # free is not known then, so it does not run.
    _logger.error("The idempotency store answered with a %s.", type(outcome).__name__)
    raise store_error()
