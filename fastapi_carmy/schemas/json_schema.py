"""JSON Schema 2020-12 of one tool's input or output, complete in itself."""

from typing import Any

from pydantic import PydanticInvalidForJsonSchema, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaWarningKind
from pydantic_core import from_json, to_json

__all__ = ("schema_of",)


class _Generator(GenerateJsonSchema):
    """Without the titles that only repeat a field's name, and strict about defaults."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        # The base class decides the signature.
        return False

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        # A set has no order, and the catalog is the same bytes in every process.
        return sorted(encoded, key=to_json) if isinstance(dft, set | frozenset) else encoded

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        if kind == "non-serializable-default":
            raise PydanticInvalidForJsonSchema(detail)


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
