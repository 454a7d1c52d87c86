"""What is just what its type says, told without pydantic.

A tool may change a model after it was validated, so results are serialised strictly. Being
told to be strict takes pydantic longer than a small model takes to write. A model of plain
fields, each of them with a value of exactly its type, has nothing to be strict about.
"""

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

from pydantic import TypeAdapter

__all__ = ("exactness_of", "has_plain_fields")

_MAX_SHAPES = 256
"""How many ways of filling the fields are kept: a field that may be `None` doubles them."""

_TYPES = {"str": str, "int": int, "float": float, "bool": bool}
_ACCEPTING = frozenset({type(None), str, int, bool})
"""The types that take nothing from JSON on which its readers differ."""


def exactness_of(adapter: TypeAdapter[Any]) -> Callable[[object], bool] | None:
    """Return what tells whether a value is exactly as its plain model says.

    Returns:
        `None` for every type but a model of few plain fields, written as pydantic writes them.
    """
    schema: Any = adapter.core_schema
    types = _fields_of(schema)

    if types is None or not 0 < prod(map(len, types.values())) <= _MAX_SHAPES:
        return None

    model = schema["cls"]
    # The fields' names, in their order, and then their types.
    allowed = frozenset((*types, *shape) for shape in product(*types.values()))

    def is_exact(value: object) -> bool:
        if type(value) is not model:
            return False

        held = value.__dict__
        return (*held, *map(type, held.values())) in allowed

    return is_exact


def has_plain_fields(adapter: TypeAdapter[Any]) -> bool:
    """Tell whether a closed `TypedDict` holds texts, integers and truth values as they come."""
    fields = adapter.core_schema
    return fields["type"] == "typed-dict" and all(
        frozenset[type]() < _types_of(field["schema"]) <= _ACCEPTING
        for field in fields["fields"].values()
    )


def _fields_of(schema: Any) -> dict[str, frozenset[type]] | None:
    """Return the fields of a plain model, and the types that each may have exactly."""
    if schema["type"] != "model" or not _is_plain(schema) or schema.get("root_model"):
        return None

    fields = schema["schema"]

    if fields["type"] != "model-fields" or not _is_plain(fields) or fields.get("computed_fields"):
        return None

    return {name: _types_of(field["schema"]) for name, field in fields["fields"].items()}


def _is_plain(schema: Any) -> bool:
    """Tell whether pydantic itself writes it, and nothing more than what is named."""
    config = schema.get("config", {})
    extra = config.get("extra_fields_behavior") or schema.get("extra_behavior")
    is_taken_as_it_is = config.get("revalidate_instances", "never") == "never"
    return (
        "serialization" not in schema
        and "coerce_numbers_to_str" not in schema
        and extra != "allow"
        and is_taken_as_it_is
    )


def _types_of(schema: Any) -> frozenset[type]:
    """Return the types that a field may have exactly; none where there is more to it."""
    kind = schema["type"]

    if not _is_plain(schema):
        return frozenset()

    if kind == "default":
        return _types_of(schema["schema"])

    if kind == "nullable":
        inner = _types_of(schema["schema"])
        return inner and inner | {type(None)}

    return frozenset({_TYPES[kind]}) if kind in _TYPES else frozenset()
