"""Python values that JSON has no room for, wherever they are inside of others."""

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic_core import from_json, to_json

__all__ = ("check_keys", "holds_not_a_number", "looks_odd")

_ODD_KEY: Final = re.compile(rb'"(?:[-+.0-9]|[Nn]one|[Tt]rue|[Ff]alse|[Nn]a[Nn]|[Ii]nf)[^"]*":')


def looks_odd(data: bytes) -> bool:
    """Tell whether a key of JSON text reads like what a key becomes that is no text."""
    return _ODD_KEY.search(data) is not None


def check_keys(value: object) -> None:
    """Refuse mappings whose keys are not told apart once they are texts.

    Raises:
        ValueError: If two are written alike, or one is NaN or infinite.
    """
    for item in _all_in(value):
        if isinstance(item, Mapping):
            _check_mapping(cast("Mapping[object, object]", item))


def holds_not_a_number(value: object) -> bool:
    """Tell whether a NaN or an infinity is anywhere in `value`."""
    return any(isinstance(item, float) and not math.isfinite(item) for item in _all_in(value))


def _all_in(value: object) -> Iterator[object]:
    pending: list[object] = [value]
    seen: set[int] = set()

    while pending:
        item = pending.pop()
        yield item

        # What is left out of the text may lead back.
        if not isinstance(item, str | int | float) and id(item) not in seen:
            seen.add(id(item))
            pending.extend(_inside(item))


def _inside(item: object) -> Iterable[object]:
    if isinstance(item, Mapping):
        return cast("Mapping[object, object]", item).values()

    if isinstance(item, list | tuple | set | frozenset | deque):
        return cast("Iterable[object]", item)

    if isinstance(item, BaseModel):
        return [*(vars(item).get(name) for name in type(item).model_fields), item.model_extra]

    if is_dataclass(item):
        return [getattr(item, field.name, None) for field in fields(item)]

    return ()


def _check_mapping(mapping: Mapping[Any, object]) -> None:
    if all(type(key) is str for key in mapping):
        return

    if any(isinstance(key, float) and not math.isfinite(key) for key in mapping):
        raise ValueError("A key is NaN or infinite.")

    if len(from_json(to_json(dict.fromkeys(mapping)))) < len(mapping):
        raise ValueError("Two keys are written alike.")
