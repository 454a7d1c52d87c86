"""One response for every stream: it sends, watches, and opens nothing."""

from collections.abc import MutableMapping
from typing import Any

import anyio
import pytest
from starlette.types import Message

from fastapi_carmy.http.sse import KEEP_ALIVE, FrameStream

Sent = list[MutableMapping[str, Any]]


class Frames:
    """A source of frames: `b""` stands for a silence, after which a comment is due."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = list(chunks)
        self.waits: list[float | None] = []

    async def take(self, seconds: float | None) -> bytes | None:
        self.waits.append(seconds)
        return self._chunks.pop(0) if self._chunks else None


async def silence() -> Message:
    await anyio.sleep_forever()
    raise AssertionError


def body(sent: Sent) -> list[tuple[bytes, bool]]:
    return [(message["body"], message["more_body"]) for message in sent[1:]]


async def run(stream: FrameStream, sent: Sent) -> None:
    async def send(message: Message) -> None:
        sent.append(message)

    with anyio.fail_after(5):
        await stream({"type": "http"}, silence, send)


async def test_frames_are_sent_one_after_another_and_silence_by_a_comment() -> None:
    sent: Sent = []
    source = Frames(b"event: a\n\n", b"", b"event: b\n\n")
    left: list[str] = []

    await run(
        FrameStream(
            source,
            headers={"Cache-Control": "no-store"},
            on_disconnect=lambda: left.append("gone"),
        ),
        sent,
    )

    assert sent[0] == {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")],
    }
    assert body(sent) == [
        (b"event: a\n\n", True),
        (KEEP_ALIVE, True),
        (b"event: b\n\n", True),
        (b"", False),
    ]
    assert source.waits == [None, 15.0, 15.0, 15.0]
    assert left == []


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("broken")], ids=["gone", "broken"])
async def test_a_server_that_cannot_send_any_more_is_a_hang_up(error: Exception) -> None:
    left: list[str] = []
    stream = FrameStream(
        Frames(b"event: a\n\n"), headers={}, on_disconnect=lambda: left.append("gone")
    )

    async def send(message: Message) -> None:
        raise error

    if isinstance(error, OSError):
        await stream({"type": "http"}, silence, send)
    else:
        with pytest.raises(RuntimeError, match="broken"):
            await stream({"type": "http"}, silence, send)

    assert left == ["gone"]


@pytest.mark.parametrize("watch", [True, False])
async def test_a_disconnect_is_told_to_whoever_wants_it(watch: bool) -> None:
    told = anyio.Event()

    class Waiting(Frames):
        async def take(self, seconds: float | None) -> bytes | None:
            if not self.waits:
                return await super().take(seconds)
            with anyio.move_on_after(5 if watch else 0.01):
                await told.wait()
            return None

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    sent: Sent = []

    async def send(message: Message) -> None:
        sent.append(message)

    stream = FrameStream(Waiting(b"x"), headers={}, on_disconnect=told.set, watch=watch)
    with anyio.fail_after(5):
        await stream({"type": "http"}, receive, send)

    assert told.is_set() is watch
