"""Types whose annotations are strings, and name what is defined further down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field

__all__ = ("Branch", "Leaf", "postponed")


class Branch(BaseModel):
    leaves: list[Leaf] = []
    branches: dict[str, Branch] = {}


@dataclass
class Leaf:
    width: Annotated[int, Field(ge=1)]
    twin: Leaf | None = None


async def postponed(value: Branch) -> Any:
    """Take what is defined above."""
    return value
