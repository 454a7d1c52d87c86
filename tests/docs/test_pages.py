"""The pages hold together: snippets, the README's block and commands, the table of clauses."""

import re
from pathlib import Path

import pytest

from tests.support.clauses import PAGE, clauses, known_clauses, table, table_on

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = sorted(DOCS.rglob("*.md"))
SNIPPETS = sorted((DOCS / "snippets").rglob("*.py"))

INCLUDE = re.compile(r'--8<-- "([^":]+)')
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def included(page: Path) -> set[Path]:
    return {ROOT / name for name in INCLUDE.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_programs_on_a_page_are_files(page: Path) -> None:
    """Only files are linted, type-checked and run."""
    typed_in = [
        body
        for language, body in FENCE.findall(page.read_text())
        if language in ("python", "py") and not body.strip().startswith("--8<--")
    ]

    assert typed_in == []
    assert [path for path in included(page) if not path.is_file()] == []


def test_each_snippet_is_on_a_page() -> None:
    shown = {path for page in PAGES for path in included(page)}

    assert [path for path in SNIPPETS if path not in shown] == []


def test_the_program_in_the_readme_is_the_tutorials_first() -> None:
    programs = [body for language, body in FENCE.findall(README) if language == "python"]

    assert programs == [(DOCS / "snippets" / "tutorial" / "first_tool.py").read_text()]


def test_the_readme_has_one_command_for_the_shop_and_one_for_the_tests() -> None:
    """`.ci/run` finds them by how they end."""
    commands = re.findall(r"^python3 -m venv .* -m (\w+)$", README, re.MULTILINE)

    assert commands == ["example_shop", "pytest"]


def test_the_tour_starts_with_the_readmes_command() -> None:
    command = re.search(r"^python3 -m venv .*example_shop$", README, re.MULTILINE)

    assert command is not None
    assert command[0] in (ROOT / "example_shop" / "README.md").read_text()


def test_the_design_page_names_the_tests_of_each_clause() -> None:
    """`python -m tests.support.clauses` writes the table."""
    assert table_on(PAGE.read_text()) == table()


def test_each_clause_that_a_test_names_is_in_the_contract() -> None:
    assert clauses().keys() - known_clauses() == set()
