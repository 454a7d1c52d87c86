"""Which tests hold which clause of the wire contract, as their `spec` marks say.

`python -m tests.support.clauses` writes the table in `docs/design.md`.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.servers import ROOT

__all__ = ("PAGE", "clauses", "known_clauses", "table", "table_on")

PAGE = ROOT / "docs" / "design.md"
CONTRACT = ROOT / "docs" / "wire.md"

_TABLE = re.compile(r"^\| clause \| tests \|\n\|---\|---\|\n((?:\|.*\|\n)*)", re.MULTILINE)
_HEADING = re.compile(r"^#+ ([\d.]+?)\.? ", re.MULTILINE)
_CASE = re.compile(r"^(\d+)\. ", re.MULTILINE)


def clauses() -> Mapping[str, list[str]]:
    """Return clause → the test modules that carry its mark, both in order."""
    marked: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for mark in _marks(path):
            if mark.startswith("carmy/1 "):
                clause = mark.removeprefix("carmy/1 ")
                marked.setdefault(clause, set()).add(path.relative_to(ROOT).as_posix())
    return {clause: sorted(marked[clause]) for clause in sorted(marked, key=_order)}


def known_clauses() -> set[str]:
    """Return the sections of the contract, and the cases of its last one as `7.1`."""
    contract = CONTRACT.read_text()
    cases = contract[contract.index("\n## 7. Cases") :]
    return {*_HEADING.findall(contract), *(f"7.{number}" for number in _CASE.findall(cases))}


def table() -> str:
    """Return the rows of the table."""
    return "".join(
        f"| {clause} | {', '.join(f'`{module}`' for module in modules)} |\n"
        for clause, modules in clauses().items()
    )


def table_on(page: str) -> str:
    """Return the rows that a page has."""
    return _split(page)[1]


def _marks(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr="spec"), args=arguments):
                yield from (str(a.value) for a in arguments if isinstance(a, ast.Constant))
            case _:
                pass


def _split(page: str) -> tuple[str, str, str]:
    found = _TABLE.search(page)
    assert found is not None, "The page has no table of clauses."
    return page[: found.start(1)], found[1], page[found.end(1) :]


def _order(clause: str) -> list[int]:
    """Sort numbers as numbers: 7.2 before 7.10."""
    return [int(number) for number in re.findall(r"\d+", clause)]


if __name__ == "__main__":
    head, _, tail = _split(PAGE.read_text())
    PAGE.write_text(head + table() + tail)
