"""Pages whose commands are run against the program that they are about.

A step is a `bash` block followed by a `json` or `text` block that holds what it prints.
The steps of a page run one after another in one shell. `python -m tests.support.tour`
runs them all and writes what they print into the pages.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import ROOT, serve_command

__all__ = ("PAGES", "Step", "normalise", "run", "steps")

ADDRESS = "http://127.0.0.1:8000"

_BLOCK = r"((?:(?!```).*\n)*)```\n"
_STEP = re.compile(rf"^```bash\n{_BLOCK}\n```(?:json|text)\n{_BLOCK}", re.MULTILINE)
_END = "--- end of step ---"


def _snippet(name: str) -> tuple[str, ...]:
    return ("-m", "uvicorn", f"docs.snippets.{name}:app", "--ws", "none")


PAGES: Mapping[str, tuple[str, ...]] = {
    "README.md": _snippet("tutorial.first_tool"),
    "example_shop/README.md": ("-m", "example_shop"),
    "docs/tutorial/first-tool.md": _snippet("tutorial.first_tool"),
    "docs/tutorial/errors.md": _snippet("tutorial.errors"),
    "docs/tutorial/streaming.md": _snippet("tutorial.streaming"),
    "docs/tutorial/retries.md": _snippet("tutorial.retries"),
    "docs/tutorial/agents.md": _snippet("tutorial.agents"),
    "docs/how-to/authentication.md": _snippet("how_to.authentication"),
    "docs/how-to/dependencies.md": _snippet("how_to.dependencies"),
    "docs/how-to/several-routers.md": _snippet("how_to.several_routers"),
    "docs/how-to/cors.md": _snippet("how_to.cors"),
}
"""Page → the command that serves its program, after `python`."""


@dataclass(frozen=True)
class Step:
    """One command of a page, and what the page says it prints."""

    command: str
    output: str


def steps(page: str) -> list[Step]:
    """Return the steps of the page at the path `page`, in order."""
    return [Step(*groups) for groups in _STEP.findall((ROOT / page).read_text())]


def run(page: str, folder: Path) -> list[str]:
    """Run the steps of a page against its program; returns what each one printed.

    Args:
        page: One of `PAGES`.
        folder: Where the program may keep its data.
    """
    command = [sys.executable, *PAGES[page], "--port", "0"]
    environment = {**os.environ, "SHOP_DATABASE": str(folder / "shop.db"), "LC_ALL": "C.UTF-8"}
    with serve_command(command, env=environment) as server:
        script = f"echo '{_END}'\n".join(step.command for step in steps(page))
        printed = _bash(script.replace(ADDRESS, server.url), environment)
    outputs = printed.replace(server.url, ADDRESS).split(f"{_END}\n")
    return [output.rstrip("\n") + "\n" for output in outputs]


def normalise(output: str) -> str:
    """Replace what differs from run to run: ids, hashes, times."""
    for pattern, stand_in in (
        (r"exec_[0-9a-f-]{36}", "exec_ID"),
        (r"\b[0-9a-f]{64}\b", "SHA256"),
        (r"\b[0-9a-f]{32}\b", "ID"),
        (r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)", "TIME"),
        (r"\"duration_ms\":\s*\d+", '"duration_ms": N'),
    ):
        output = re.sub(pattern, stand_in, output)
    return output


def _bash(script: str, environment: Mapping[str, str]) -> str:
    # The commands are the pages' own.
    done = subprocess.run(  # noqa: S603
        ["bash", "-c", script],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=environment,
    )
    return done.stdout


def _write(page: str, outputs: Sequence[str]) -> None:
    path = ROOT / page
    remaining = iter(outputs)

    def renewed(step: re.Match[str]) -> str:
        whole, old = step[0], step[2]
        return whole[: len(whole) - len(old) - len("```\n")] + next(remaining) + "```\n"

    path.write_text(_STEP.sub(renewed, path.read_text()))


if __name__ == "__main__":
    for page in sys.argv[1:] or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            _write(page, run(page, Path(folder)))
