"""Results: checked against what the tool promises, and written as JSON."""

import math
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast, get_args, get_origin

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from fastapi_carmy.jsontext import FREELY_READABLE, check_readable
from fastapi_carmy.schemas.exactness import exactness_of
from fastapi_carmy.schemas.json_schema import schema_of
from fastapi_carmy.schemas.problems import path_of
from fastapi_carmy.schemas.values import check_keys, holds_not_a_number, looks_odd
from fastapi_carmy.tool import InvalidOutputError

__all__ = ("JsonOutput", "build_output")

_MAX_PROBLEMS = 5
_ITERABLES: Final = (Iterable, Iterator, Generator)


@dataclass(frozen=True, slots=True)
class _Room:
    """What may be in a result, as far as its schema tells; when in doubt, yes."""

    for_numbers: bool
    """A float, which may be none that JSON has."""
    for_anything: bool
    """A value of any type, such as an object whose keys are no texts."""
    for_depth: bool
    """A value inside a value of its own kind."""
    names: frozenset[str]
    """The keys that the schema itself names."""


class JsonOutput:
    """Validates and serialises what one tool returns."""

    __slots__ = ("_is_exact", "_item", "_room", "_serialize", "_serialize_python", "_validate")

    def __init__(
        self, adapter: TypeAdapter[Any], *, room: _Room, item: "JsonOutput | None" = None
    ) -> None:
        """Write what `adapter` stands for.

        Args:
            adapter: The type that the tool returns.
            room: What may be in it.
            item: For a generator, the type of one item.
        """
        self._validate = adapter.validator.validate_python
        self._serialize = adapter.serializer.to_json
        self._serialize_python = adapter.serializer.to_python
        self._room = room
        self._item = item
        self._is_exact = exactness_of(adapter)

    def dump(self, value: object) -> bytes:
        """Return `value` as JSON bytes. See `Output.dump`."""
        try:
            is_exact, serialize = self._is_exact, self._serialize

            if is_exact is not None and is_exact(value):
                # Validated when it was made; being strict would take longer than the rest.
                checked: object = value
                data: bytes = serialize(value, by_alias=True)
            else:
                if isinstance(value, Iterator):
                    # It can be looked at only once.
                    value = list(cast("Iterator[object]", value))

                checked = self._validate(value, from_attributes=True)
                data = serialize(checked, by_alias=True, warnings="error")
        except Exception as error:  # noqa: BLE001
            # Validators and serialisers of users raise what they like, and say what they
            # like: none of it is told, for it may hold what is in the result.
            raise self._unfit(error) from None

        room = self._room

        # pydantic writes NaN as `null`, or bare where a model's configuration says so. Quicker
        # than `in`, which asks first whether it is given a number.
        may_lack_number = room.for_numbers and (
            data.find(b"null") >= 0 or data.find(b"NaN") >= 0 or data.find(b"Inf") >= 0
        )

        if may_lack_number or room.for_anything or len(data) > FREELY_READABLE:
            self._check(data, checked, may_lack_number=may_lack_number)

        return data

    def dump_item(self, value: object) -> bytes:
        """Return one item of a generator as JSON bytes.

        Raises:
            InvalidOutputError: As from `dump`.
        """
        return self.dump(value) if self._item is None else self._item.dump(value)

    def _unfit(self, error: Exception) -> InvalidOutputError:
        reason = type(error).__name__

        if isinstance(error, ValidationError):
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            reason = "; ".join(map(self._problem, problems[:_MAX_PROBLEMS]))

        return InvalidOutputError(f"The result is not what the tool promises: {reason}.")

    def _problem(self, details: ErrorDetails) -> str:
        # Other keys than those of the schema are the result's.
        places = [
            place if isinstance(place, int) or place in self._room.names else "…"
            for place in details["loc"]
        ]
        return f"{details['type']} at {path_of(places)}" if places else details["type"]

    def _check(self, data: bytes, checked: object, *, may_lack_number: bool) -> None:
        try:
            if may_lack_number:
                self._refuse_not_a_number(data, checked)

            if self._room.for_anything and looks_odd(data):
                check_keys(checked)

            check_readable(data, may_nest=self._room.for_depth)
        except ValueError as error:
            raise InvalidOutputError(f"The result can't be answered with: {error}") from None

    def _refuse_not_a_number(self, data: bytes, checked: object) -> None:
        given = self._serialize_python(checked, by_alias=True)

        # Seldom true; then it still may be written as text, by a model's own rules.
        if holds_not_a_number(given) and _hides_not_a_number(
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
    adapter = TypeAdapter[Any](_materialised(returns))
    schema = schema_of(adapter, "serialization")
    item_output = None if item is None else build_output(item)[0]
    return JsonOutput(adapter, room=_room_in(schema), item=item_output), schema


def _materialised(returns: Any) -> Any:
    """Return the type of a list for an `Iterable`, which pydantic would check while it is sent."""
    if get_origin(returns) not in _ITERABLES and returns not in _ITERABLES:
        return returns

    (item, *_) = get_args(returns) or (Any,)
    # A variable is no type to a checker.
    items: Any = list
    return Annotated[items[item], BeforeValidator(_listed)]


def _listed(value: object) -> object:
    return list(cast("Iterable[object]", value)) if _is_iterable(value) else value


def _is_iterable(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


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


_REFERRING = frozenset({"$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
_MAPS = ("$defs", "properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties")


def _room_in(schema: dict[str, Any]) -> _Room:
    parts = list(_parts(schema))
    for_anything = any(map(_is_open, parts))
    definitions = [part for inner in schema.get("$defs", {}).values() for part in _parts(inner)]
    return _Room(
        for_numbers=for_anything or any(part.get("type") == "number" for part in parts),
        for_anything=for_anything,
        for_depth=for_anything or any("$ref" in part for part in definitions),
        names=frozenset(name for part in parts for name in part.get("properties", {})),
    )


def _parts(schema: object) -> Iterator[dict[str, Any]]:
    """Yield a schema and those inside it; `True` and `{}` are the same."""
    if not isinstance(schema, dict):
        if schema is not False:
            yield {}

        return

    keywords = cast("dict[str, Any]", schema)
    yield keywords
    inner: list[object] = [keywords[key] for key in _SINGLES if key in keywords]

    for key in _LISTS:
        inner.extend(keywords.get(key, ()))

    for key in _MAPS:
        inner.extend(keywords.get(key, {}).values())

    for part in inner:
        yield from _parts(part)


def _is_open(schema: dict[str, Any]) -> bool:
    """Tell whether the schema itself, without those inside it, admits any value somewhere."""
    kind = schema.get("type")

    if kind == "object":
        return "properties" not in schema and "additionalProperties" not in schema

    if kind == "array":
        return "items" not in schema and "prefixItems" not in schema

    if kind is None:
        return _REFERRING.isdisjoint(schema)

    return not isinstance(kind, str)
