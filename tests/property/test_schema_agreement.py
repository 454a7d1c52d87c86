"""What a schema allows the tool takes, and what the tool gives its schema allows.

Types whose schema is known to be wider say so in the table.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import from_json

from fastapi_carmy.tool import Tool
from tests.support.from_schema import values_of
from tests.support.schema_table import TABLE, Row, accepts
from tests.support.tools import validate

EXACT = [row for row in TABLE if row.wider is None]
FEW = settings(max_examples=20, suppress_health_check=list(HealthCheck))


def answer(tool: Tool, arguments: object) -> Any:
    """Call a tool that gives back what it takes."""
    return from_json(tool.output.dump(validate(tool, arguments)["value"]))


@pytest.mark.parametrize("row", EXACT, ids=[row.name for row in EXACT])
def test_what_a_schema_allows_the_tool_takes_and_gives_back_as_promised(row: Row) -> None:
    tool = row.tool()
    spec = tool.spec

    @FEW
    @given(values_of(spec.input_schema))
    def agree(arguments: Any) -> None:
        value = answer(tool, arguments)

        assert accepts(spec.output_schema, value)
        if row.returns is None:
            # What pydantic itself writes of a type is allowed and taken as well.
            again = row.arguments(value)
            assert accepts(spec.input_schema, again)
            assert accepts(spec.output_schema, answer(tool, again))

    agree()


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_more_or_less_than_the_schema_allows_is_refused_by_the_tool(row: Row) -> None:
    tool = row.tool()
    spec = tool.spec
    needed: Any = spec.input_schema.get("required", [])

    @settings(FEW, max_examples=5)
    @given(values_of(spec.input_schema), st.text("abc_", min_size=1).map("no_{}".format))
    def refuse(arguments: dict[str, Any], unknown: str) -> None:
        less = ({k: v for k, v in arguments.items() if k != name} for name in needed)

        for wrong in ({**arguments, unknown: 1}, *less):
            assert not accepts(spec.input_schema, wrong)
            with pytest.raises(ValidationError):
                validate(tool, wrong)

    refuse()
