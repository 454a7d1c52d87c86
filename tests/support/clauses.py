"""Which tests hold which clause of the contracts, as their `spec` marks say.

`python -m tests.support.clauses` writes the table in `docs/design.md`.
"""

import ast
import re
from collections.abc import Mapping

from tests.support.servers import ROOT

__all__ = ("PAGE", "clauses", "table", "table_on")

PAGE = ROOT / "docs" / "design.md"

_TABLE = re.compile(r"^\| clause \| tests \|\n\|---\|---\|\n((?:\|.*\|\n)*)", re.MULTILINE)


def clauses() -> Mapping[str, list[str]]:
    """Return clause → the test modules that carry its mark, both in order."""
    marked: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="spec"), args=[ast.Constant(value=clause)]):
                    marked.setdefault(str(clause), set()).add(path.relative_to(ROOT).as_posix())
                case _:
                    pass
    return {clause: sorted(marked[clause]) for clause in sorted(marked, key=_order)}


def table() -> str:
    """Return the rows of the table."""
    return "".join(
        f"| {clause} | {', '.join(f'`{module}`' for module in modules)} |\n"
        for clause, modules in clauses().items()
    )


def table_on(page: str) -> str:
    """Return the rows that a page has."""
    return _split(page)[1]


def _split(page: str) -> tuple[str, str, str]:
    found = _TABLE.search(page)
    assert found is not None, "The page has no table of clauses."
    return page[: found.start(1)], found[1], page[found.end(1) :]


def _order(clause: str) -> list[tuple[int, str]]:
    """Sort numbers as numbers: 7.2 before 7.10."""
    parts = re.findall(r"\d+|[^\d.]+", clause)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


if __name__ == "__main__":
    head, _, tail = _split(PAGE.read_text())
    PAGE.write_text(head + table() + tail)
