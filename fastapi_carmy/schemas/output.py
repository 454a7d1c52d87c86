"""Results: checked against what the tool promises, and written as JSON."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_core import from_json

from fastapi_carmy.schemas.json_schema import schema_of
from fastapi_carmy.tool import InvalidOutputError

__all__ = ("JsonOutput", "build_output")

_FAILURES = (ValueError, TypeError, AttributeError, RecursionError)
"""What validators and serialisers raise; pydantic's own errors are `ValueError`s."""


class JsonOutput:
    """Validates and serialises what one tool returns."""

    __slots__ = ("_item", "_may_hold_numbers", "_serialize", "_serialize_python", "_validate")

    def __init__(
        self, adapter: TypeAdapter[Any], *, may_hold_numbers: bool, item: "JsonOutput | None" = None
    ) -> None:
        """Write what `adapter` stands for.

        Args:
            adapter: The type that the tool returns.
            may_hold_numbers: Whether a float can be anywhere in it.
            item: For a generator, the type of one item.
        """
        self._validate = adapter.validator.validate_python
        self._serialize = adapter.serializer.to_json
        self._serialize_python = adapter.serializer.to_python
        self._may_hold_numbers = may_hold_numbers
        self._item = item

    def dump(self, value: object) -> bytes:
        """Return `value` as JSON bytes. See `Output.dump`."""
        try:
            checked = self._validate(value, from_attributes=True)
            data: bytes = self._serialize(checked, by_alias=True, warnings="error")

            # pydantic writes NaN as `null`, or bare where a model's configuration says so.
            if self._may_hold_numbers and (b"null" in data or b"NaN" in data or b"Inf" in data):
                self._refuse_not_a_number(data, checked)
        except _FAILURES as error:
            raise InvalidOutputError(_reason(error)) from error

        return data

    def dump_item(self, value: object) -> bytes:
        """Return one item of a generator as JSON bytes.

        Raises:
            InvalidOutputError: As from `dump`.
        """
        return self.dump(value) if self._item is None else self._item.dump(value)

    def _refuse_not_a_number(self, data: bytes, checked: object) -> None:
        given = self._serialize_python(checked, by_alias=True)

        # Seldom true; then it still may be written as text, by a model's own rules.
        if _holds_not_a_number(given) and _hides_not_a_number(
            from_json(data, allow_inf_nan=False), given
        ):
            raise ValueError("A number is NaN or infinite.")


def build_output(returns: Any, *, item: Any = None) -> tuple[JsonOutput, dict[str, object]]:
    """Return how a result of type `returns` is written, and its schema.

    Args:
        returns: The tool's return type; for a generator, the list of its items.
        item: For a generator, the type of one item.

    Raises:
        pydantic.errors.PydanticUserError: If the type has no schema.
    """
    adapter = TypeAdapter[Any](returns)
    schema = schema_of(adapter, "serialization")
    item_output = None if item is None else build_output(item)[0]
    output = JsonOutput(adapter, may_hold_numbers=_may_hold_numbers(schema), item=item_output)
    return output, schema


def _reason(error: Exception) -> str:
    return f"The result can't be answered with: {error}"


def _holds_not_a_number(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)

    if isinstance(value, Mapping):
        return any(map(_holds_not_a_number, cast("Mapping[object, object]", value).values()))

    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_holds_not_a_number, cast("Iterable[object]", value)))

    return False


def _hides_not_a_number(written: object, given: object) -> bool:
    """Tell whether a `null` of the text stands for a number that JSON can't hold."""
    if written is None:
        return isinstance(given, float) and not math.isfinite(given)

    if isinstance(written, dict) and isinstance(given, Mapping):
        texts = cast("dict[str, object]", written)
        values = cast("Mapping[object, object]", given)
        return _any_hidden(texts.values(), values.values())

    if isinstance(written, list) and isinstance(given, Iterable):
        return _any_hidden(cast("list[object]", written), cast("Iterable[object]", given))

    return False


def _any_hidden(written: Iterable[object], given: Iterable[object]) -> bool:
    return any(
        _hides_not_a_number(text, value) for text, value in zip(written, given, strict=False)
    )


_CLOSED_TYPES = frozenset({"string", "integer", "boolean", "null"})
_REFERRING = frozenset({"$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
_MAPS = ("$defs", "properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties")


def _may_hold_numbers(schema: object) -> bool:
    """Tell whether a value of this schema may hold a float; when in doubt, yes."""
    if not isinstance(schema, dict):
        return schema is not False

    keywords = cast("dict[str, Any]", schema)
    inner: list[object] = [keywords[key] for key in _SINGLES if key in keywords]

    for key in _LISTS:
        inner.extend(keywords.get(key, ()))

    for key in _MAPS:
        inner.extend(keywords.get(key, {}).values())

    return _is_open(keywords) or any(map(_may_hold_numbers, inner))


def _is_open(schema: dict[str, Any]) -> bool:
    """Tell whether the schema itself, without those inside it, admits a float."""
    kind = schema.get("type")

    if kind == "object":
        return "properties" not in schema and "additionalProperties" not in schema

    if kind == "array":
        return "items" not in schema and "prefixItems" not in schema

    if kind is None:
        return _REFERRING.isdisjoint(schema)

    return kind not in _CLOSED_TYPES
