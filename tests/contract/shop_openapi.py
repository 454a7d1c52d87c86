"""The example shop's OpenAPI document, pinned.

`python -m tests.contract.shop_openapi` writes it anew.
"""

import json
from pathlib import Path
from typing import Any

from example_shop.app import create_app

__all__ = ("PINNED", "document")

PINNED = Path(__file__).with_name("shop_openapi.json")


def document() -> dict[str, Any]:
    """Return the document, less the schemas of FastAPI's own 422, which vary by its version."""
    openapi = create_app().openapi()
    for name in ("HTTPValidationError", "ValidationError"):
        openapi["components"]["schemas"].pop(name)
    return openapi


if __name__ == "__main__":
    PINNED.write_text(json.dumps(document(), indent=2, ensure_ascii=False) + "\n")
