"""What a router serves, once it is built: its catalog and the runtime behind it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi_carmy.catalog import Catalog
from fastapi_carmy.runtime import Runtime
from fastapi_carmy.tool import Tool

__all__ = ("Service",)

_Overrides = Mapping[Callable[..., object], Callable[..., object]]


@dataclass(frozen=True, slots=True)
class Service:
    """A built router."""

    catalog: Catalog
    runtime: Runtime
    override: Callable[[Tool, _Overrides], Tool]
    """A tool with some of its dependencies replaced."""

    def finder(self, overrides: _Overrides) -> Callable[[str], Tool | None]:
        """Return what finds a tool by its name, with the host's overrides in place."""
        tools = self.catalog.tools

        if not overrides:
            return tools.get

        def find(name: str) -> Tool | None:
            tool = tools.get(name)
            return None if tool is None else self.override(tool, overrides)

        return find
