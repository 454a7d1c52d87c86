"""JSON text that can always be written, and read back by whoever gets it.

What error bodies and documents are made with.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, cast

from pydantic_core import from_json, to_json

__all__ = ("FREELY_READABLE", "check_readable", "encode")

_MAX_DEPTH: Final = 127
"""A request nests 128 levels; an answer takes one for itself."""

_MAX_DEPTH_OF_PARTS: Final = 100
"""So that what holds them has room left."""

FREELY_READABLE: Final = 2 * _MAX_DEPTH
"""Bytes in which nothing can nest too deep, for a level takes two, nor have too many digits."""

_MAX_DIGITS: Final = 4300
_MAX_BITS: Final = 14_000
_TOO_MANY_DIGITS: Final = b"0" * (_MAX_DIGITS + 1)
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_AS_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')


def encode(value: object) -> bytes:
    """Return `value` as compact UTF-8 JSON; never fails.

    NaN and the infinities become `null`, a lone surrogate becomes `?`, and what JSON can't
    hold, or common readers can't read back, becomes the name of its type in angle brackets.
    """
    try:
        text = to_json(value, inf_nan_mode="null", fallback=_name_of_type)
        check_readable(text)
    except Exception:  # noqa: BLE001
        # Values of users raise what they like while they are looked at.
        return to_json(_mended(value, ()), inf_nan_mode="null")

    return text


def check_readable(data: bytes, *, may_nest: bool = True) -> None:
    """Refuse JSON that common readers, ours among them, can't read back.

    Args:
        data: Well-formed JSON.
        may_nest: Whether its type lets it nest without end.

    Raises:
        ValueError: If it nests too deep, or an integer has too many digits.
    """
    if may_nest and len(data) > FREELY_READABLE and _nests_too_deep(data):
        raise ValueError(f"It nests deeper than {_MAX_DEPTH}.")

    # Texts may have as many digits as they like.
    if len(data) > _MAX_DIGITS and _TOO_MANY_DIGITS in data.translate(_AS_ZEROS):
        from_json(data)


def _name_of_type(value: object) -> str:
    return f"<{type(value).__name__}>"


def _mended(value: object, above: tuple[object, ...]) -> object:
    """Return a plain value; what can't be one is replaced, and nothing else.

    Args:
        value: Whatever it is.
        above: The values that it stands in.
    """
    if value is None or isinstance(value, str | bytes | bytearray | int | float):
        return _mended_leaf(value)

    if len(above) == _MAX_DEPTH_OF_PARTS or any(value is outer for outer in above):
        return _name_of_type(value)

    try:
        return _mended_parts(value, (*above, value))
    except Exception:  # noqa: BLE001
        # As above.
        return _name_of_type(value)


def _mended_leaf(value: str | bytes | bytearray | float | None) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()

    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")

    is_huge = isinstance(value, int) and value.bit_length() > _MAX_BITS
    return _name_of_type(value) if is_huge else value


def _mended_parts(value: object, above: tuple[object, ...]) -> object:
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        return {str(_mended(key, ())): _mended(item, above) for key, item in members.items()}

    if isinstance(value, list | tuple | set | frozenset):
        return [_mended(item, above) for item in cast("Iterable[object]", value)]

    written = to_json(value, inf_nan_mode="null", fallback=_name_of_type)
    return _mended(from_json(written), above)


def _nests_too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= _MAX_DEPTH:
        return False

    # Brackets inside of texts mostly pair up, too.
    return _is_deep(data) and _is_deep(_TEXT.sub(b"", data))


def _is_deep(brackets: bytes) -> bool:
    """Take pairs away, innermost first: one level a round."""
    left = brackets.translate(_AS_SQUARE, _NO_BRACKETS)

    for _ in range(_MAX_DEPTH):
        rest = left.replace(b"[]", b"")

        if len(rest) == len(left):
            break

        left = rest

    return bool(left)
