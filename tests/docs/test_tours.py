"""Each command on a page prints what the page says."""

import shutil
from pathlib import Path

import pytest

from tests.support.tour import PAGES, normalise, run, steps


@pytest.mark.skipif(shutil.which("curl") is None, reason="the commands are curl's")
@pytest.mark.parametrize("page", PAGES)
def test_each_command_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    """`python -m tests.support.tour PAGE` writes what they print into the page."""
    printed = run(page, tmp_path)

    assert all(output.strip() for output in printed)

    assert [(step.command, normalise(step.output)) for step in steps(page)] == [
        (step.command, normalise(output)) for step, output in zip(steps(page), printed, strict=True)
    ]
