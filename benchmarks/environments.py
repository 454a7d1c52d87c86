"""Each family of contenders in an environment of its own, under `.venv/`."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Of a server, the same for all.
_SERVER = ("uvicorn>=0.35", "uvloop", "httptools")
_REQUIREMENTS: Mapping[str, Sequence[str]] = {
    "carmy": (
        *_SERVER,
        *("--editable", ".[all]", "orjson", "sse-starlette", "pydantic-ai-slim[ag-ui]>=2.0"),
    ),
    "mcp": (*_SERVER, "fastmcp>=4,<5", "mcp>=2"),
    # Its newest release works with no newer SDK.
    "fastapi_mcp": (*_SERVER, "fastapi-mcp>=0.4", "mcp<2"),
}
# What the page names the versions of.
PACKAGES: Mapping[str, Sequence[str]] = {
    "carmy": (
        *("fastapi", "starlette", "pydantic", "uvicorn", "uvloop", "httptools"),
        *("orjson", "sse-starlette"),
    ),
    "mcp": ("fastmcp", "mcp"),
    "fastapi_mcp": ("fastapi-mcp", "fastapi", "mcp"),
}


def python_of(name: str) -> Path:
    """Return the interpreter of an environment; makes it when it is missing or outdated."""
    home = ROOT / ".venv" / f"bench-{name}"
    done = home / "requirements.txt"
    requirements = _REQUIREMENTS[name]
    python = home / "bin" / "python"

    if done.exists() and done.read_text() == "\n".join(requirements):
        return python

    print(f"Installing {home.name} …", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(home))
    _run(str(python), "-m", "pip", "install", "--quiet", *requirements)
    done.write_text("\n".join(requirements))
    return python


def versions_of(name: str) -> dict[str, str]:
    """Return the versions that an environment holds: package → version."""
    code = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    packages = PACKAGES[name]
    answer = _run(str(python_of(name)), "-c", code, *packages)
    return dict(zip(packages, answer.split(), strict=True))


def run_module(name: str, module: str, *arguments: str, is_pinned: bool = True) -> str:
    """Run one of our modules in an environment, on the first core; return what it prints."""
    command = [str(python_of(name)), "-m", module, *arguments]
    taskset = shutil.which("taskset") if is_pinned else None
    return _run(*([] if taskset is None else [taskset, "-c", "0"]), *command)


def _run(*command: str) -> str:
    # The benchmark's own commands.
    answer = subprocess.run(  # noqa: S603
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return answer.stdout
