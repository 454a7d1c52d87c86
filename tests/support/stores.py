"""Idempotency stores of the tests' own: one that waits when told to, one that keeps a log."""

from pathlib import Path

import anyio
from pydantic_core import to_json

from fastapi_carmy.stores import Key, MemoryStore, Record, Reservation

__all__ = ("GatedStore", "LoggingStore")


class GatedStore(MemoryStore):
    """Waits in one of its methods, before or after what the method does."""

    def __init__(self, method: str, *, acts_first: bool = False) -> None:
        super().__init__()
        self.entered = anyio.Event()
        """Set once somebody waits in the method."""
        self.may_go_on = anyio.Event()
        self.closed = 0
        self._method = method
        self._acts_first = acts_first

    async def reserve(
        self, key: Key, *, fingerprint: str, execution_id: str, may_repeat: bool
    ) -> Reservation:
        await self._wait("reserve", is_before=True)
        outcome = await super().reserve(
            key, fingerprint=fingerprint, execution_id=execution_id, may_repeat=may_repeat
        )
        await self._wait("reserve", is_before=False)
        return outcome

    async def complete(self, key: Key, *, execution_id: str, record: Record) -> bool:
        await self._wait("complete", is_before=True)
        outcome = await super().complete(key, execution_id=execution_id, record=record)
        await self._wait("complete", is_before=False)
        return outcome

    async def release(self, key: Key, *, execution_id: str) -> bool:
        await self._wait("release", is_before=True)
        outcome = await super().release(key, execution_id=execution_id)
        await self._wait("release", is_before=False)
        return outcome

    async def aclose(self) -> None:
        self.closed += 1
        await super().aclose()

    async def _wait(self, method: str, *, is_before: bool) -> None:
        if method == self._method and is_before is not self._acts_first:
            self.entered.set()
            await self.may_go_on.wait()


class LoggingStore(MemoryStore):
    """Appends what becomes of each key to a file, which outlives the process."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def reserve(
        self, key: Key, *, fingerprint: str, execution_id: str, may_repeat: bool
    ) -> Reservation:
        self._log("reserve", key)
        return await super().reserve(
            key, fingerprint=fingerprint, execution_id=execution_id, may_repeat=may_repeat
        )

    async def complete(self, key: Key, *, execution_id: str, record: Record) -> bool:
        # As a database does, it takes its time: whoever stops meanwhile must wait.
        await anyio.lowlevel.checkpoint()
        outcome = await super().complete(key, execution_id=execution_id, record=record)
        self._log("complete", key, outcome=outcome)
        return outcome

    async def release(self, key: Key, *, execution_id: str) -> bool:
        await anyio.lowlevel.checkpoint()
        outcome = await super().release(key, execution_id=execution_id)
        self._log("release", key, outcome=outcome)
        return outcome

    async def abandon(self, key: Key, *, execution_id: str) -> bool:
        await anyio.lowlevel.checkpoint()
        outcome = await super().abandon(key, execution_id=execution_id)
        self._log("abandon", key, outcome=outcome)
        return outcome

    async def aclose(self) -> None:
        self._log("aclose", None)

    def _log(self, verb: str, key: Key | None, *, outcome: bool = True) -> None:
        if outcome:
            line = {"verb": verb, "key": None if key is None else key.request_id}
            with self._path.open("ab") as log:
                log.write(to_json(line) + b"\n")
