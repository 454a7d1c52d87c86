"""Whether a request can be answered with events, and holds what a run needs.

Source: RFC 9110, section 12.5.1, for Accept; AG-UI 1.0: every producer speaks SSE.
"""

from collections.abc import Iterable

from fastapi_carmy.agui.errors import RefusedRequestError
from fastapi_carmy.http.accept import MediaRange, parse_accept

__all__ = ("EVENT_STREAM", "check_content_type", "negotiate")

EVENT_STREAM = "text/event-stream"

_TYPE, _, _SUBTYPE = EVENT_STREAM.partition("/")
_MOST_QUOTED = 200


def negotiate(accept: str | None) -> str:
    """Return the media type to answer with.

    Args:
        accept: The `Accept` header, its lines joined by commas; `None` without one.

    Raises:
        RefusedRequestError: If the client takes no event stream (406, `NOT_ACCEPTABLE`).
    """
    if accept is None or not accept.strip() or _quality(parse_accept(accept)) > 0:
        return EVENT_STREAM

    raise RefusedRequestError(
        406,
        "NOT_ACCEPTABLE",
        f"Accept is {_quoted(accept)}, but a run can only be sent as {EVENT_STREAM}.",
    )


def check_content_type(content_type: str | None, *, is_required: bool = False) -> None:
    """Refuse a body that does not say it is JSON.

    HTML forms can't say so, which keeps other sites from posting with a user's cookies.

    Args:
        content_type: The `Content-Type` header; `None` without one.
        is_required: Whether a body without one is refused as well.

    Raises:
        RefusedRequestError: If it says something else (415, `UNSUPPORTED_MEDIA_TYPE`).
    """
    if not content_type:
        if is_required:
            raise _unsupported("The request has no Content-Type; it must be application/json.")

        return

    essence = content_type.partition(";")[0].strip().lower()

    if essence in ("application/json", "text/json") or essence.endswith("+json"):
        return

    raise _unsupported(f"Content-Type is {_quoted(content_type)}; it must be application/json.")


def _unsupported(message: str) -> RefusedRequestError:
    return RefusedRequestError(415, "UNSUPPORTED_MEDIA_TYPE", message)


def _quality(ranges: Iterable[MediaRange]) -> float:
    """Return the quality of the range that names event streams most exactly."""
    best, quality = -1, 0.0

    for one in ranges:
        exactness = _exactness(one)

        if exactness > best:
            best, quality = exactness, one.quality

    return quality


def _exactness(one: MediaRange) -> int:
    """Return 4 for the type and 2 for the subtype if they are named, less than 0 for no match."""
    if one.type not in (_TYPE, "*") or one.subtype not in (_SUBTYPE, "*"):
        return -1

    return 4 * (one.type == _TYPE) + 2 * (one.subtype == _SUBTYPE)


def _quoted(header: str) -> str:
    return repr(header[:_MOST_QUOTED])
