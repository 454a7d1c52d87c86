"""JSON text that can always be written: what error bodies and documents are made with."""

from collections.abc import Iterable
from typing import cast

from pydantic_core import PydanticSerializationError, to_json

__all__ = ("encode",)


def encode(value: object) -> bytes:
    """Return `value` as compact UTF-8 JSON; never fails.

    NaN and the infinities become `null`, a lone surrogate becomes `?`, and an
    object that JSON can't hold becomes the name of its type in angle brackets.
    """
    try:
        return to_json(value, inf_nan_mode="null", fallback=_name_of_type)
    except (PydanticSerializationError, ValueError, RecursionError):
        pass

    try:
        return to_json(_mended(value), inf_nan_mode="null", fallback=_name_of_type)
    except (PydanticSerializationError, ValueError, RecursionError):
        return to_json(_name_of_type(value))


def _name_of_type(value: object) -> str:
    return f"<{type(value).__name__}>"


def _mended(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()

    if isinstance(value, dict):
        members = cast("dict[object, object]", value)
        return {str(_mended(key)): _mended(item) for key, item in members.items()}

    if isinstance(value, list | tuple | set | frozenset):
        return [_mended(item) for item in cast("Iterable[object]", value)]

    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")

    return value
