"""Schemas and validators say the same. Source: carmy/1, section 1.2."""

from collections.abc import Iterator

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import ValidationError
from pydantic_core import from_json

from fastapi_carmy.catalog import Catalog
from tests.support.schema_table import TABLE, Row, accepts
from tests.support.tools import validate

ROWS = pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])


def takes(row: Row, value: object) -> bool:
    try:
        validate(row.tool(), row.arguments(value))
    except ValidationError:
        return False
    return True


def references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from references(inner)


@pytest.mark.spec("carmy/1 1.2")
@ROWS
def test_a_schema_is_json_schema_2020_12_and_complete_in_itself(row: Row) -> None:
    (entry,) = from_json(Catalog([row.tool()]).document.body)["tools"]

    assert entry["input_schema"]["type"] == "object"
    assert entry["input_schema"]["additionalProperties"] is False
    for schema in (entry["input_schema"], entry["output_schema"]):
        Draft202012Validator.check_schema(schema)
        known = {f"#/$defs/{name}" for name in schema.get("$defs", {})}
        assert set(references(schema)) == known


@pytest.mark.spec("carmy/1 1.2")
@ROWS
def test_what_fits_a_type_fits_its_schema_and_comes_back_as_promised(row: Row) -> None:
    tool = row.tool()

    for value in row.fits:
        arguments = row.arguments(value)
        assert accepts(tool.spec.input_schema, arguments), value
        result = from_json(tool.output.dump(validate(tool, arguments)["value"]))
        assert accepts(tool.spec.output_schema, result), value


@pytest.mark.spec("carmy/1 1.2")
@ROWS
def test_what_does_not_fit_is_refused_by_schema_and_tool(row: Row) -> None:
    schema = row.tool().spec.input_schema

    for value in row.fails:
        if value is object and row.is_whole:
            continue
        is_needed = "required" in schema
        assert accepts(schema, row.arguments(value)) is (value is object and not is_needed), value
        assert takes(row, value) is (value is object and not is_needed), value
