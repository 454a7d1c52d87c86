"""Which media type a client prefers. Source: RFC 9110, section 12.5.1."""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ("MediaRange", "parse_accept", "quality", "wants_event_stream")


_EXACT = 2


@dataclass(frozen=True, slots=True)
class MediaRange:
    """One entry of an `Accept` header."""

    type: str
    subtype: str
    quality: float

    def specificity(self, media_type: str) -> int | None:
        """Return how exactly this range names `media_type`: 2, 1, 0; `None` when not at all."""
        if f"{self.type}/{self.subtype}" == media_type:
            return _EXACT

        if self.subtype != "*":
            return None

        if self.type == media_type.partition("/")[0]:
            return 1

        return 0 if self.type == "*" else None


def parse_accept(accept: str) -> list[MediaRange]:
    """Read an `Accept` header; entries that are no media range are left out.

    Args:
        accept: The header's lines, joined by commas.
    """
    return list(_ranges(accept))


def quality(ranges: list[MediaRange], media_type: str) -> float:
    """Return the quality of `media_type`: that of the range which names it most exactly.

    Of equally exact ranges the first one counts; without any, the quality is 0.
    """
    best = -1
    found = 0.0

    for entry in ranges:
        specificity = entry.specificity(media_type)

        if specificity is not None and specificity > best:
            best = specificity
            found = entry.quality

    return found


def wants_event_stream(accept: str) -> bool:
    """Tell whether a client asks for an event stream rather than for JSON.

    It does when it names `text/event-stream` with a quality above 0 and not below that of
    `application/json`; wildcards ask for JSON.

    Source: carmy/1, section 2.1.
    """
    # Most callers do not stream, and pay for no more than this look.
    if "text/event-stream" not in accept.lower():
        return False

    ranges = parse_accept(accept)

    if not any(entry.specificity("text/event-stream") == _EXACT for entry in ranges):
        return False

    stream = quality(ranges, "text/event-stream")
    return stream > 0 and stream >= quality(ranges, "application/json")


def _ranges(accept: str) -> Iterator[MediaRange]:
    for entry in accept.split(","):
        media_range, *parameters = entry.split(";")
        kind, slash, subtype = media_range.strip().lower().partition("/")

        if slash and kind and subtype:
            yield MediaRange(kind, subtype, _quality(parameters))


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")

        if name.strip().lower() == "q":
            try:
                number = float(value.strip().strip('"'))
            except ValueError:
                return 1.0

            # NaN is no preference at all.
            return number if number == number else 0.0  # noqa: PLR0124

    return 1.0
