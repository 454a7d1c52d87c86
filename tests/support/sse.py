"""Reading Server-Sent Events as their bytes arrive."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

__all__ = ("Frame", "FrameReader", "parse_frames")


@dataclass(frozen=True)
class Frame:
    """One event, or one comment."""

    event: str = "message"
    data: str = ""
    comment: str | None = None

    def json(self) -> Any:
        """Return the data, parsed."""
        return from_json(self.data)


class FrameReader:
    """Collects bytes, hands out whole frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Frame]:
        """Take more bytes; return the frames that they complete."""
        *whole, self._rest = (self._rest + chunk).split(b"\n\n")
        return [_frame(text.decode()) for text in whole]


def parse_frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Yield the frames of a stream."""
    reader = FrameReader()
    for chunk in chunks:
        yield from reader.feed(chunk)


def _frame(text: str) -> Frame:
    event = "message"
    data: list[str] = []
    comment = None
    for line in text.split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            event = value
        elif field == "data":
            data.append(value)
        elif field == "":
            comment = value
        else:
            raise AssertionError(f"No field of ours: {line!r}")

    return Frame(event=event, data="\n".join(data), comment=comment)
