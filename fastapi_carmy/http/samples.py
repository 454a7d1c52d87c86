"""Values that show what a JSON Schema asks for, for examples in the documentation."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, cast

__all__ = ("sample",)

_Schema = Mapping[str, object]

_TEXTS: Final[Mapping[str, str]] = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "duration": "PT1H",
    "email": "anna@example.com",
    "ipv4": "192.0.2.1",
    "ipv4interface": "192.0.2.1/24",
    "ipv4network": "192.0.2.0/24",
    "ipv6": "2001:db8::1",
    "ipv6interface": "2001:db8::1/64",
    "ipv6network": "2001:db8::/64",
    "json-string": "{}",
    "time": "12:00:00Z",
    "uri": "https://example.com/",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
}
"""Format → a text of that format; what has another one, or a pattern, needs `examples`."""


def sample(schema: _Schema) -> object:
    """Return a value that `schema` allows, as far as that can be told; as small as it gets.

    What an author says himself (`examples`, `default`) comes first. `schema` has no references.
    """
    for key in ("examples", "enum"):
        for value in _sequence(schema.get(key)):
            return value

    for key in ("example", "const", "default"):
        if key in schema:
            return schema[key]

    for key in ("anyOf", "oneOf", "allOf"):
        for choice in _sequence(schema.get(key)):
            return sample(_mapping(choice))

    return _of_type(schema)


def _of_type(schema: _Schema) -> object:
    match schema.get("type"):
        case "object":
            return _object(schema)
        case "array":
            return _array(schema)
        case "integer" | "number" as kind:
            return _number(schema, whole=kind == "integer")
        case "string":
            return _text(schema)
        case "boolean":
            return True
        case _:
            return None


def _object(schema: _Schema) -> dict[str, object]:
    properties = _mapping(schema.get("properties"))
    names = [name for name in _sequence(schema.get("required")) if isinstance(name, str)]
    made = {name: sample(_mapping(properties.get(name))) for name in names}

    for number in range(_whole(schema.get("minProperties")) - len(made)):
        made[f"name{number + 1}"] = sample(_mapping(schema.get("additionalProperties")))

    return made


def _array(schema: _Schema) -> list[object]:
    made = [sample(_mapping(item)) for item in _sequence(schema.get("prefixItems"))]
    items = _mapping(schema.get("items"))

    for number in range(_whole(schema.get("minItems")) - len(made)):
        made.append(_another(items, number) if schema.get("uniqueItems") else sample(items))

    return made


def _another(schema: _Schema, number: int) -> object:
    """Return one of several samples that differ, where that is easy."""
    choices = _sequence(schema.get("enum"))

    if number < len(choices):
        return choices[number]

    first = sample(schema)

    if isinstance(first, str):
        return f"{first}{number or ''}"

    is_number = isinstance(first, int | float) and not isinstance(first, bool)
    return first + number if is_number else first


def _number(schema: _Schema, *, whole: bool) -> float:
    """Return 1, or what is next to it within the limits."""
    low = _limit(schema, "minimum", "exclusiveMinimum", -math.inf)
    high = _limit(schema, "maximum", "exclusiveMaximum", math.inf)
    step = schema.get("multipleOf")
    unit = float(step) if isinstance(step, int | float) else 1.0
    value = min(max(1.0, math.ceil(low / unit) * unit), high) if low > -math.inf else min(1.0, high)

    if isinstance(step, int | float):
        value = math.ceil(max(value, unit) / unit) * unit if high >= unit else 0.0

    if value in (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")):
        value = _beside(schema, value, low, high)

    return int(value) if whole or value.is_integer() else value


def _text(schema: _Schema) -> str:
    text = _TEXTS.get(str(schema.get("format")), "string")
    text = text.ljust(_whole(schema.get("minLength")), "x")
    longest = schema.get("maxLength")
    return text[:longest] if isinstance(longest, int) else text
