"""Requests that the shop's OpenAPI document allows, and some that it doesn't.

That every request outside the document is refused is not checked: pydantic takes 0 for
`false` and "1" for 1, as FastAPI's own endpoints do.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks

from example_shop.app import create_app
from tests.support.servers import serve_app
from tests.support.shop import ANNA

schema = schemathesis.openapi.from_dict(create_app().openapi())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    database = tmp_path_factory.mktemp("shop") / "shop.db"
    with serve_app(create_app(database, seconds_per_unit=0)) as url:
        yield url


@schema.parametrize()
# The server is one for all examples.
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_what_the_shop_answers_is_what_its_document_says(
    case: "schemathesis.Case[Any]", url: str
) -> None:
    case.call_and_validate(
        base_url=url,
        headers=ANNA,
        checks=[
            checks.not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_schema_conformance,
            checks.positive_data_acceptance,
        ],
    )
