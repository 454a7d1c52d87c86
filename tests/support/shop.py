"""Talking to the example shop: its seeded tokens, calls, and a look into its database."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2

__all__ = ("AGENT", "ANNA", "GUEST", "call", "rows")

AGENT = {"Authorization": "Bearer agent-token"}
"""Orders and restocks; may not confirm."""
ANNA = {"Authorization": "Bearer anna-token"}
"""May confirm `cancel_order` too."""
GUEST = {"Authorization": "Bearer guest-token"}
"""Looks around."""


def call(
    client: httpx2.Client,
    tool: str,
    arguments: object = None,
    *,
    request_id: str | None = None,
    headers: Mapping[str, str] = AGENT,
) -> httpx2.Response:
    """Execute one tool over HTTP."""
    body: dict[str, object] = {"tool": tool, "arguments": {} if arguments is None else arguments}
    if request_id is not None:
        body["request_id"] = request_id

    return client.post("/agent/execute", json=body, headers=headers)


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    """Ask the database itself."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()
