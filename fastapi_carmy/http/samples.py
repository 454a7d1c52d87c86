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
        case "integer" | "number":
            return _number(schema)
        case "string":
            return _text(schema)
        case kind:
            # Where anything goes: FastAPI leaves a `null` out of its document.
            return {"boolean": True, "null": None}.get(str(kind), "string")


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

    missing = range(_whole(schema.get("minItems")) - len(made))
    differ = schema.get("uniqueItems")
    return made + [_another(items, number) if differ else sample(items) for number in missing]


def _another(schema: _Schema, number: int) -> object:
    """Return one of several samples that differ, where that is easy."""
    choices = _sequence(schema.get("enum"))

    if number < len(choices):
        return choices[number]

    first = sample(schema)

    if isinstance(first, str):
        return f"{first}{number or ''}"

    if isinstance(first, bool) or not isinstance(first, int | float):
        return first

    return first + number


def _number(schema: _Schema) -> float:
    """Return 1, or a number next to the limits that forbid it."""
    step = _numeric(schema.get("multipleOf"), 1)
    limits = [
        _numeric(schema[key], 0)
        for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
        if key in schema
    ]
    candidates = [1, *limits]

    for limit in limits:
        nearest = math.ceil(limit / step) * step
        candidates += [nearest, nearest + step, nearest - step]

    candidates += [step, sum(limits) / max(1, len(limits))]
    return next((number for number in candidates if _fits(number, schema, step)), 1)


def _fits(number: float, schema: _Schema, step: float) -> bool:
    is_multiple = "multipleOf" not in schema or math.isclose(number / step, round(number / step))
    return (
        is_multiple
        and number >= _numeric(schema.get("minimum"), number)
        and number <= _numeric(schema.get("maximum"), number)
        and number > _numeric(schema.get("exclusiveMinimum"), -math.inf)
        and number < _numeric(schema.get("exclusiveMaximum"), math.inf)
    )


def _text(schema: _Schema) -> str:
    text = _TEXTS.get(str(schema.get("format")), "string")
    text = text.ljust(_whole(schema.get("minLength")), "x")
    longest = schema.get("maxLength")
    return text[:longest] if isinstance(longest, int) else text


def _mapping(value: object) -> _Schema:
    return cast("_Schema", value) if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else ()


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _numeric(value: object, default: float) -> float:
    return value if isinstance(value, int | float) else default
