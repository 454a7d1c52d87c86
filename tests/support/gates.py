"""Places where an execution stops until the test has seen it there."""

from dataclasses import dataclass, field

import anyio

from fastapi_carmy.audit import ExecutionRecord
from fastapi_carmy.policies import PolicyCall

__all__ = ("Audit", "Gate", "GatedPolicy", "reached")

LIMIT_SECONDS = 5.0


async def reached(event: anyio.Event) -> None:
    """Wait, bounded, for something to happen."""
    with anyio.fail_after(LIMIT_SECONDS):
        await event.wait()


@dataclass
class Gate:
    """Where the first one stops until the test lets it go; later ones walk through."""

    entered: anyio.Event = field(default_factory=anyio.Event)
    may_go_on: anyio.Event = field(default_factory=anyio.Event)
    left: list[str] = field(default_factory=list[str])
    """How each one left: `through`, or the name of what it saw."""

    async def __call__(self) -> None:
        first = not self.entered.is_set()
        self.entered.set()
        try:
            if first:
                await self.may_go_on.wait()
        except BaseException as error:
            self.left.append(type(error).__name__)
            raise
        self.left.append("through")


@dataclass
class GatedPolicy:
    """Waits in `check` or in `admit`."""

    check_gate: Gate | None = None
    admit_gate: Gate | None = None

    async def check(self, call: PolicyCall) -> None:
        """See `ChecksCalls.check`."""
        if self.check_gate is not None:
            await self.check_gate()

    async def admit(self, call: PolicyCall) -> None:
        """See `AdmitsCalls.admit`."""
        if self.admit_gate is not None:
            await self.admit_gate()


class Audit:
    """Knows how many calls are over."""

    def __init__(self) -> None:
        self.records: list[ExecutionRecord] = []
        self._arrival = anyio.Event()

    def record(self, record: ExecutionRecord) -> None:
        """See `AuditSink.record`."""
        self.records.append(record)
        self._arrival.set()
        self._arrival = anyio.Event()

    async def until(self, count: int) -> ExecutionRecord:
        """Wait until `count` calls are over; returns the last one's record."""
        with anyio.fail_after(LIMIT_SECONDS):
            while len(self.records) < count:
                await self._arrival.wait()
        return self.records[-1]
