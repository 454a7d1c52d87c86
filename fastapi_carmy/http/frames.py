"""An execution's events as Server-Sent Events. Source: carmy/1, section 2.3."""

from fastapi_carmy.buffer import EventBuffer
from fastapi_carmy.events import (
    Event,
    ExecutionCompleted,
    ExecutionStarted,
    ToolCompleted,
    ToolProgress,
    ToolStarted,
)
from fastapi_carmy.jsontext import encode

__all__ = ("ExecutionFrames",)


class ExecutionFrames:
    """The frames of one execution; a `FrameSource`."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        buffer = EventBuffer(_frame, size=len)
        self._buffer = buffer
        self.report = buffer.report
        """Takes the execution's events."""
        self.end = buffer.end
        """Ends the stream; with an error before its first event, `opened` raises that."""

    async def opened(self) -> None:
        """Return once the stream has something to send.

        Raises:
            BaseException: What refused the execution before it started.
        """
        await self._buffer.wait()

    async def take(self, seconds: float | None) -> bytes | None:
        """See `FrameSource.take`."""
        await self._buffer.wait(seconds)
        frames = self._buffer.take()
        return None if frames is None else b"".join(frames)


def _frame(event: Event) -> bytes:
    """Return one event as a frame. JSON is one line, so there is nothing to split."""
    if isinstance(event, ExecutionCompleted):
        replayed = b"true" if event.result.replayed else b"false"
        data = b'%b,"replayed":%b}' % (event.result.body[:-1], replayed)
        return b"event: execution.completed\ndata: %b\n\n" % data

    name, fields = _named(event)
    return b"event: %b\ndata: %b\n\n" % (name, encode(fields))


def _named(
    event: ExecutionStarted | ToolStarted | ToolProgress | ToolCompleted,
) -> tuple[bytes, dict[str, object]]:
    fields: dict[str, object] = {"execution_id": event.execution_id, "tool": event.tool}

    # There may be many of these, and one of each other kind.
    if isinstance(event, ToolProgress):
        fields["progress"] = event.progress

        if event.total is not None:
            fields["total"] = event.total

        if event.message is not None:
            fields["message"] = event.message

        if event.has_partial:
            fields["partial"] = event.partial

        return b"tool.progress", fields

    if isinstance(event, ToolCompleted):
        return b"tool.completed", {**fields, "duration_ms": event.duration_ms, "ok": event.ok}

    if isinstance(event, ToolStarted):
        return b"tool.started", fields

    return b"execution.started", fields
