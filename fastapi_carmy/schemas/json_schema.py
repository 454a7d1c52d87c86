"""JSON Schema 2020-12 of one tool's input or output, complete in itself.

What the schema of arguments allows, the tool takes. Where pydantic's own schema is wider
than its validator, it is narrowed here; what no schema can say stays wider.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

from pydantic import (
    BaseModel,
    PydanticInvalidForJsonSchema,
    SecretBytes,
    SecretStr,
    TypeAdapter,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaWarningKind
from pydantic_core import from_json, to_json

__all__ = ("schema_of",)

_Schema = dict[str, Any]

_KEYS: Final[Mapping[str, _Schema]] = {
    "integer": {"pattern": "^[+-]?[0-9]{1,4300}$"},
    "number": {
        "pattern": r"^[+-]?([0-9]{1,299}(\.[0-9]*)?|\.[0-9]+"
        r"|[0-9](\.[0-9]+)?[eE](-[0-9]{1,3}|\+?(30[0-7]|[12]?[0-9]{1,2})))$"
    },
    "boolean": {"enum": ["true", "false", "True", "False", "1", "0"]},
}
"""JSON's keys are texts: how those of another type are written."""
_NEVER_NAMES: Final = frozenset({"array", "null", "object"})


class _Generator(GenerateJsonSchema):
    """Without the titles that only repeat a field's name, and strict about defaults."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        # The base class decides the signature.
        return False

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        if kind == "non-serializable-default":
            raise PydanticInvalidForJsonSchema(detail)

    def default_schema(self, schema: Any) -> _Schema:
        # Stars are nobody's default; the real one is no business of the catalog.
        if isinstance(schema.get("default"), SecretStr | SecretBytes):
            return self.generate_inner(schema["schema"])

        return super().default_schema(schema)

    def encode_default(self, dft: Any) -> Any:
        # A set has no order, and the catalog is the same bytes in every process.
        return _ordered(super().encode_default(dft), dft)

    def decimal_schema(self, schema: Any) -> _Schema:
        described = super().decimal_schema(schema)

        for choice in described.get("anyOf", ()):
            if choice.get("type") == "string":
                choice["pattern"] = _decimal_pattern(schema)

        return described

    def dict_schema(self, schema: Any) -> _Schema:
        return self._with_keys(super().dict_schema(schema), schema)

    def ordered_dict_schema(self, schema: Any) -> _Schema:
        return self._with_keys(super().ordered_dict_schema(schema), schema)

    def counter_schema(self, schema: Any) -> _Schema:
        return self._with_keys(super().counter_schema(schema), schema)

    def typed_dict_schema(self, schema: Any) -> _Schema:
        return _closed(super().typed_dict_schema(schema), schema)

    def dataclass_schema(self, schema: Any) -> _Schema:
        return _closed(super().dataclass_schema(schema), schema)

    def is_subclass_schema(self, schema: Any) -> _Schema:
        raise PydanticInvalidForJsonSchema(f"JSON has no classes, such as {schema['cls']!r}")

    def tagged_union_schema(self, schema: Any) -> _Schema:
        described = super().tagged_union_schema(schema)
        tag = described.get("discriminator")

        if tag is None:
            # The tag is found by a function: more than one choice may look right.
            described["anyOf"] = described.pop("oneOf")
        elif self.mode == "validation":
            # Even one with a default must be there, or no choice is made.
            described["required"] = [tag["propertyName"]]

        return described

    def ser_schema(self, schema: Any) -> _Schema | None:
        described = super().ser_schema(schema)
        # A function that does not say what it returns may return anything.
        return {} if described is None and _is_opaque(schema) else described

    def _get_alias_name(self, field: Any, name: str) -> str:
        if self.mode == "validation" and not self._has_plain_name(field):
            raise PydanticInvalidForJsonSchema(
                f"{name!r} has only an `AliasPath`, which no schema can show; use `AliasChoices`"
                " with a plain name first"
            )

        return super()._get_alias_name(field, name)

    def _has_plain_name(self, field: Any) -> bool:
        alias: object = field.get("validation_alias")
        config = self._config.config_dict
        return (
            # One path, or a list of them.
            not isinstance(alias, list)
            or any(
                isinstance(path, list) and len(cast("list[object]", path)) == 1
                for path in cast("list[object]", alias)
            )
            or bool(config.get("validate_by_name") or config.get("populate_by_name"))
        )

    def _named_required_fields_schema(self, named_required_fields: Any) -> _Schema:
        if self.mode == "serialization":
            names = [self._get_alias_name(field, name) for name, _, field in named_required_fields]

            if len(set(names)) < len(names):
                raise PydanticInvalidForJsonSchema("two fields are written under one name")

        return super()._named_required_fields_schema(named_required_fields)

    def _with_keys(self, described: _Schema, schema: Any) -> _Schema:
        if "patternProperties" in described:
            described["additionalProperties"] = False

        keys = schema.get("keys_schema")

        if self.mode == "validation" and keys is not None:
            described.update(_names(self.generate_inner(keys)))

        return described


def schema_of(adapter: TypeAdapter[Any], mode: JsonSchemaMode) -> dict[str, object]:
    """Return the schema of what `adapter` takes (`validation`) or gives (`serialization`).

    The root is never a `$ref`.

    Raises:
        PydanticInvalidForJsonSchema: If the type, or a default in it, has no JSON form.
        ValueError: If the schema itself isn't JSON: not a number, lone surrogates.
    """
    schema = adapter.json_schema(mode=mode, schema_generator=_Generator)
    # What can't be read back isn't JSON.
    return _with_own_root(from_json(to_json(schema, inf_nan_mode="constants"), allow_inf_nan=False))


def _with_own_root(schema: dict[str, Any]) -> dict[str, object]:
    if "$ref" not in schema:
        return schema

    root = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    siblings = {key: value for key, value in schema.items() if key != "$ref"}
    return {**root, **siblings}


def _closed(described: _Schema, schema: Mapping[str, Any]) -> _Schema:
    """Say that a class is closed which has no configuration and takes its surroundings'.

    Later pydantics than 2.11 do so themselves.
    """
    behaviours = (
        schema.get("extra_behavior"),
        schema.get("config", {}).get("extra_fields_behavior"),
    )

    if "forbid" in behaviours:
        described.setdefault("additionalProperties", False)

    return described


def _names(keys: _Schema) -> _Schema:
    """Return how an object's names look whose keys are of another type than text."""
    choices = cast("list[_Schema]", keys.get("anyOf", [keys]))
    kinds = {str(choice.get("type")) for choice in choices}

    if kinds <= _NEVER_NAMES:
        raise PydanticInvalidForJsonSchema("the keys of a JSON object are texts")

    if not kinds <= _NEVER_NAMES | _KEYS.keys():
        return {}

    names = [_KEYS[kind] for kind in sorted(kinds & _KEYS.keys())]
    return {"propertyNames": names[0] if len(names) == 1 else {"anyOf": names}}


def _decimal_pattern(schema: Mapping[str, Any]) -> str:
    """Return how a decimal is written; bounds other than 0 no pattern can hold."""
    lowest = max((schema[key] for key in ("ge", "gt") if schema.get(key) is not None), default=-1)
    sign = "^[+-]?" if lowest < 0 else r"^\+?"
    digits, places = schema.get("max_digits"), schema.get("decimal_places")

    if digits is None and places is None:
        return rf"{sign}([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{{1,4}})?$"

    places = digits if places is None else places
    room = None if digits is None else digits - (schema.get("decimal_places") or 0)
    whole = "[0-9]+" if room is None else f"0*[0-9]{{1,{room}}}" if room else "0+"
    fraction = rf"\.[0-9]{{1,{places}}}" if places else r"\.0+"
    return rf"{sign}({whole}({fraction})?|{fraction})$"


def _is_opaque(schema: Mapping[str, Any]) -> bool:
    """Tell whether a serializer is a user's function that names no return type."""
    if schema["type"] not in ("function-plain", "function-wrap"):
        return False

    module = getattr(schema["function"], "__module__", None) or ""
    is_pydantics = module == "pydantic" or module.startswith("pydantic.")
    return not is_pydantics and schema.get("when_used") != "python"


def _ordered(encoded: Any, given: object) -> Any:
    """Sort what was a set, wherever it stands in a default."""
    if isinstance(given, BaseModel):
        given = given.model_dump(by_alias=True)

    if isinstance(encoded, list):
        items = cast("list[object]", encoded)

        if isinstance(given, AbstractSet):
            return sorted(items, key=to_json)

        if isinstance(given, list | tuple):
            pairs = zip(items, cast("Sequence[object]", given), strict=False)
            return [_ordered(*pair) for pair in pairs]

    if isinstance(encoded, dict) and isinstance(given, Mapping):
        members = cast("dict[str, object]", encoded)
        values = cast("Mapping[object, object]", given).values()
        pairs = zip(members.values(), values, strict=False)
        return dict(zip(members, (_ordered(*pair) for pair in pairs), strict=False))

    return cast("object", encoded)
