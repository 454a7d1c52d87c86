import logging
from dataclasses import FrozenInstanceError

import anyio
import pytest

from fastapi_carmy.audit import (
    AuditSink,
    ExecutionRecord,
    LogSink,
    audit_all,
    compile_sinks,
)
from fastapi_carmy.errors import ConfigurationError

RECORD = ExecutionRecord(
    execution_id="exec_1",
    request_id=None,
    principal="alice",
    session=None,
    tool="count",
    effect="write",
    status="failed",
    error_code="TOOL_PANIC",
    duration_ms=12,
    started_at="2026-01-02T03:04:05.678Z",
    replayed=False,
)


class Kept:
    def __init__(self) -> None:
        self.records: list[ExecutionRecord] = []

    def record(self, record: ExecutionRecord) -> None:
        self.records.append(record)


class KeptLater(Kept):
    async def record(self, record: ExecutionRecord) -> None:  # type: ignore[override]
        await anyio.lowlevel.checkpoint()
        self.records.append(record)


class Broken:
    def record(self, record: ExecutionRecord) -> None:
        raise OSError("disk full")


class BrokenLater:
    async def record(self, record: ExecutionRecord) -> None:
        raise OSError("disk full")


@pytest.mark.spec("carmy/1 6")
def test_a_record_has_every_key_always() -> None:
    assert RECORD.as_dict() == {
        "execution_id": "exec_1",
        "request_id": None,
        "principal": "alice",
        "session": None,
        "tool": "count",
        "effect": "write",
        "status": "failed",
        "error_code": "TOOL_PANIC",
        "duration_ms": 12,
        "started_at": "2026-01-02T03:04:05.678Z",
        "replayed": False,
    }


def test_a_record_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        RECORD.status = "completed"  # type: ignore[misc]


async def test_each_sink_gets_the_record_plain_or_async() -> None:
    plain, later = Kept(), KeptLater()

    await audit_all(compile_sinks([plain, later]), RECORD)

    assert plain.records == later.records == [RECORD]


async def test_a_failing_sink_is_logged_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()

    await audit_all(compile_sinks([Broken(), BrokenLater(), kept]), RECORD)

    assert kept.records == [RECORD]
    assert [line.name for line in caplog.records] == ["fastapi_carmy.audit"] * 2
    for line in caplog.records:
        assert line.levelno == logging.ERROR
        assert "exec_1" in line.getMessage()
        assert line.exc_info is not None
        assert isinstance(line.exc_info[1], OSError)


async def test_a_cancelled_audit_is_not_swallowed() -> None:
    class Hanging:
        async def record(self, record: ExecutionRecord) -> None:
            await anyio.sleep_forever()

    with anyio.move_on_after(0) as scope:
        await audit_all(compile_sinks([Hanging()]), RECORD)

    assert scope.cancelled_caught


@pytest.mark.parametrize("sink", [Kept, print, None])
def test_what_is_no_sink_stops_the_start(sink: AuditSink) -> None:
    with pytest.raises(ConfigurationError, match="is not an audit sink"):
        compile_sinks([sink])


async def test_a_log_sink_writes_one_line_with_all_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    await audit_all(compile_sinks([LogSink(logging.getLogger("trail"))]), RECORD)

    (line,) = caplog.records
    assert line.name == "trail"
    assert line.levelno == logging.INFO
    assert line.getMessage() == "exec_1: count TOOL_PANIC in 12 ms"
    assert line.__dict__["execution"] == RECORD.as_dict()
