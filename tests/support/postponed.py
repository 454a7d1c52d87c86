"""A tool whose annotations are strings, and name a class that is local to a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fastapi_carmy.injection import make_tool

if TYPE_CHECKING:
    from fastapi_carmy.tool import Tool


def make_postponed_tool() -> Tool:
    """Return the tool, as a router in this function would register it."""

    class Item(BaseModel):
        name: str

    async def postponed(item: Item, others: list[Item] | None = None) -> Any:
        return item.name

    return make_tool(postponed, effect="none", caller_locals=locals())


def make_unresolvable_tool() -> Tool:
    """Register a tool that names a class which does not exist."""

    async def unresolvable(item: Missing) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return item

    return make_tool(unresolvable, effect="none", caller_locals=locals())
