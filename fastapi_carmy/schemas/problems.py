"""What does not fit, as an agent is told: the place and a sentence, never the input.

Source: carmy/1, section 4.1, step 5.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, cast, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails, core_schema

__all__ = ("argument_errors", "describe_error", "path_of")

_MAX_ERRORS = 50
_MAX_KEY = 64
_SHORT_INPUT = 4
"""Texts of fewer characters stand in most sentences by chance."""
_SHARED = 8
"""As many characters in a row of a longer text do not."""
_MAX_TEXT = 4096
"""How much of a text is looked for in a message."""
_MAX_LEAVES = 1000

_ABSENT = object()

_SIMPLE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

_FIXED_MESSAGES: Final[Mapping[str, str]] = {
    "bytes_invalid_encoding": "Data has an invalid encoding",
    "datetime_object_invalid": "Input should be a valid datetime",
    "get_attribute_error": "Input could not be read",
    "import_error": "Input could not be imported",
    "iteration_error": "Input could not be iterated",
    "json_invalid": "Invalid JSON",
    "mapping_type": "Input should be a valid mapping",
    "no_such_attribute": "Object has no such attribute",
    "timezone_offset": "Input has the wrong timezone offset",
    "url_parsing": "Input should be a valid URL",
    "url_syntax_violation": "Input should be a valid URL",
    "uuid_parsing": "Input should be a valid UUID",
}
"""For the types whose own message holds a part of the input."""

_PYDANTICS_OWN: Final = frozenset(get_args(core_schema.ErrorType)) - {
    "assertion_error",
    "value_error",
}
"""Types whose other messages hold nothing but what the schema asks for."""


def argument_errors(error: ValidationError, sent: object = None) -> list[dict[str, str]]:
    """Say what is wrong with a call's arguments.

    Args:
        error: From a tool's validator.
        sent: The arguments as sent. With them, a path names only what is there; without
            them it may name a member of a union as well.

    Returns:
        `{"path", "message", "type"}` for each of at most 50 errors; paths look like
        `items[0].sku` and start below `arguments`.
    """
    return [
        describe_error(details, location=_places(details, sent))
        for details in error.errors(include_url=False)[:_MAX_ERRORS]
        if details["loc"][:1] == ("arguments",)
    ]


def _places(details: ErrorDetails, sent: object) -> list[int | str]:
    """Leave out what pydantic says about its own types: `owner.function-after[…].name`."""
    location = details["loc"][1:]

    if sent is None:
        return list(location)

    places: list[int | str] = []
    value = sent

    for position, key in enumerate(location, start=1):
        found = _at(value, key)

        if found is not _ABSENT:
            value = found
            places.append(key)
        elif position == len(location) and details["type"].startswith("missing"):
            places.append(key)

    return places


def _at(value: object, key: int | str) -> object:
    if isinstance(value, dict) and isinstance(key, str):
        return cast("dict[str, object]", value).get(key, _ABSENT)

    if isinstance(value, list) and isinstance(key, int):
        items = cast("list[object]", value)
        return items[key] if key < len(items) else _ABSENT

    return _ABSENT


def describe_error(
    details: ErrorDetails | Mapping[str, object], *, location: Iterable[object]
) -> dict[str, str]:
    """Return one of pydantic's errors as `{"path", "message", "type"}`."""
    return {
        "path": path_of(location),
        "message": _message(details),
        "type": str(details["type"]),
    }


def path_of(location: Iterable[object]) -> str:
    """Join keys and indices: `items[0].sku`; empty for the outermost value."""
    path = ""

    for key in location:
        if isinstance(key, int):
            path += f"[{key}]"
        elif _SIMPLE_KEY.fullmatch(str(key)) and len(str(key)) <= _MAX_KEY:
            path += f".{key}" if path else str(key)
        else:
            path += f"[{_quoted(str(key))}]"

    return path


def _quoted(key: str) -> str:
    shown = key if len(key) <= _MAX_KEY else f"{key[:_MAX_KEY]}…"
    # Escapes what is not printable, and the quotes.
    return repr(shown)


def _message(details: ErrorDetails | Mapping[str, object]) -> str:
    kind = str(details["type"])
    fixed = _FIXED_MESSAGES.get(kind)

    if fixed is not None:
        return fixed

    if kind == "union_tag_invalid":
        return _tag_message(details.get("ctx"))

    message = str(details["msg"])

    if kind in _PYDANTICS_OWN or not _echoes(message, details.get("input")):
        return message

    return "Input does not fit"


def _tag_message(context: object) -> str:
    if not isinstance(context, Mapping):
        return "Input has an unknown tag"

    known = cast("Mapping[str, object]", context)
    return (
        f"The tag found using {known.get('discriminator')} is none of"
        f" the expected tags: {known.get('expected_tags')}"
    )


def _echoes(message: str, value: object) -> bool:
    """Tell whether `message` holds some of `value`, as validators of users may have it."""
    message = message.casefold()
    runs = {message[start : start + _SHARED] for start in range(len(message) - _SHARED + 1)}
    return any(_shares(message, runs, text) for text in _leaves(value))


def _shares(message: str, runs: Collection[str], text: str) -> bool:
    if len(text) < _SHORT_INPUT:
        return f"'{text}'" in message or f'"{text}"' in message

    if len(text) < _SHARED:
        return text in message

    return any(run in text for run in runs)


def _leaves(value: object) -> Iterator[str]:
    """Yield the texts and numbers of an input as they would stand in a sentence."""
    pending = [value]

    for _ in range(_MAX_LEAVES):
        if not pending:
            return

        item = pending.pop()

        if isinstance(item, dict):
            members = cast("dict[object, object]", item)
            pending.extend(members.values())
        elif isinstance(item, list):
            pending.extend(cast("list[object]", item))
        elif isinstance(item, str | int | float) and not isinstance(item, bool):
            yield str(item)[:_MAX_TEXT].casefold()
