import json

from tests.contract.shop_openapi import PINNED, document


def test_the_openapi_document_of_the_shop_changes_only_on_purpose() -> None:
    """`python -m tests.contract.shop_openapi` writes it anew."""
    assert document() == json.loads(PINNED.read_text())
