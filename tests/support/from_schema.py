"""Values that a JSON Schema allows, of the keywords that our schemas have."""

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from tests.support.schema_table import accepts

__all__ = ("values_of",)

_Schema = Mapping[str, Any]
_Values = st.SearchStrategy[Any]

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_ANY: _Values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e300, 1e300) | _TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXT, inner, max_size=2),
    max_leaves=4,
)
_FORMATS: Mapping[str, st.SearchStrategy[str]] = {
    "date": st.dates().map(str),
    "date-time": st.datetimes().map(lambda value: value.isoformat() + "-09:30"),
    "duration": st.from_regex(r"P([0-9]{1,4}D)?T[0-9]{1,3}H[0-9]{1,2}M", fullmatch=True),
    "ipv4": st.ip_addresses(v=4).map(str),
    "ipv6": st.ip_addresses(v=6).map(str),
    "time": st.times().map(lambda value: value.isoformat("seconds") + "+01:30"),
    "uuid": st.uuids().map(str),
}


def values_of(schema: _Schema) -> _Values:
    """Return values that the whole of `schema` allows."""
    definitions = schema.get("$defs", {})
    known: dict[str, _Values] = {}

    def named(reference: str) -> _Values:
        name = reference.rpartition("/")[2]
        if name not in known:
            # It may stand inside of itself.
            known[name] = st.deferred(lambda: known[f"{name} itself"])
            known[f"{name} itself"] = _values(definitions[name], named)
        return known[name]

    return _values(schema, named).filter(lambda value: accepts(schema, value))


def _values(schema: _Schema, named: Callable[[str], _Values]) -> _Values:
    if "$ref" in schema:
        return named(schema["$ref"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return st.one_of([_values(choice, named) for choice in schema[key]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    return _TYPES[schema["type"]](schema, named) if "type" in schema else _ANY


def _integers(schema: _Schema, _: object) -> _Values:
    step = schema.get("multipleOf", 1)
    lowest, highest = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMaximum" in schema:
        highest = schema["exclusiveMaximum"] - 1
    return st.integers(lowest, highest).map(lambda value: value // step * step)


def _numbers(schema: _Schema, _: object) -> _Values:
    lowest = schema.get("minimum", schema.get("exclusiveMinimum", -1e300))
    is_open = "exclusiveMinimum" in schema
    fractions = st.floats(lowest, 1e300, exclude_min=is_open)
    # Pydantic 2.11 takes no longer integers for a float.
    return fractions | st.integers(max(int(lowest), -(2**53)) + is_open, 2**53)


def _texts(schema: _Schema, _: object) -> _Values:
    if "format" in schema and schema["format"] in _FORMATS:
        return _FORMATS[schema["format"]]
    if "pattern" in schema:
        # To Python, the end is also before a last line break; to ECMA-262 it is not.
        texts = st.from_regex(schema["pattern"].replace("$", r"\Z"))
        return texts.filter(lambda text: len(text) <= schema.get("maxLength", 100))
    return st.text(
        st.characters(exclude_categories=["Cs"]),
        min_size=schema.get("minLength", 0),
        max_size=schema.get("maxLength", 20),
    )


def _arrays(schema: _Schema, named: Callable[[str], _Values]) -> _Values:
    first = [_values(item, named) for item in schema.get("prefixItems", ())]
    least, most = schema.get("minItems", 0), schema.get("maxItems", 4)
    if first:
        shortest = st.tuples(*first[:least]).map(list)
        return shortest | st.tuples(*first).map(list)
    items = _values(schema.get("items", {}), named)
    unique_by = repr if schema.get("uniqueItems") else None
    return st.lists(items, min_size=least, max_size=min(most, 4), unique_by=unique_by)


def _objects(schema: _Schema, named: Callable[[str], _Values]) -> _Values:
    needed = schema.get("required", ())
    members = {key: _values(value, named) for key, value in schema.get("properties", {}).items()}
    fixed = st.fixed_dictionaries(
        {key: members[key] for key in needed},
        optional={key: value for key, value in members.items() if key not in needed},
    )
    more = schema.get("additionalProperties", True)
    patterns = schema.get("patternProperties", {})
    if more is False and not patterns:
        return fixed
    names = _values({"type": "string", **schema.get("propertyNames", {})}, named)
    if patterns:
        ((pattern, more),) = patterns.items()
        names = _texts({"pattern": pattern, **schema.get("propertyNames", {})}, named)
    others = st.dictionaries(
        names, _values(more, named) if isinstance(more, dict) else _ANY, max_size=3
    )
    return st.builds(lambda open_ended, own: {**open_ended, **own}, others, fixed)


_TYPES: Mapping[str, Callable[[_Schema, Callable[[str], _Values]], _Values]] = {
    "array": _arrays,
    "boolean": lambda *_: st.booleans(),
    "integer": _integers,
    "null": lambda *_: st.none(),
    "number": _numbers,
    "object": _objects,
    "string": _texts,
}
