import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fastapi_carmy"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "buffer",
            "caller",
            "cancellation",
            "docstrings",
            "errors",
            "events",
            "jsontext",
            "result",
            "runtime_errors",
        }
    ),
    frozenset(
        {
            "audit",
            "confirmations",
            "context",
            "next_actions",
            "policies",
            "quotas",
            "shared_quotas",
            "stores",
            "telemetry",
            "tool",
            "turns",
        }
    ),
    frozenset(
        {
            "catalog",
            "conclusion",
            "envelope",
            "execution",
            "invocation",
            "live",
            "reservation",
            "runtime",
            "schemas",
            "seams",
            "threads",
            "service",
            "signature",
            "state",
            "tool_run",
        }
    ),
    frozenset({"agui", "hosting", "http", "injection"}),
    frozenset({"router"}),
    frozenset({"", "__main__", "export", "testing"}),
)
"""The import direction of the package: a module imports its own layer and those before it."""

KNOWS_FASTAPI = ("signature", "injection", "http", "agui.endpoint", "router")
KNOWS_ASYNCIO = ("cancellation",)
KNOWS_JSON = ("catalog", "envelope")


def module_name(path: Path) -> str:
    """Dotted name inside the package; empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
PUBLIC = [name for name in MODULES if not re.search(r"(^|\.)_", name)]


def layer_of(module: str) -> int:
    first = module.partition(".")[0]
    for depth, names in enumerate(LAYERS):
        if first in names:
            return depth
    raise AssertionError(f"{module!r} has no place in LAYERS.")


def imports(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "fastapi_carmy":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def defined_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec"))):
                continue
            case ast.Assign(targets=targets):
                names.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case _:
                pass
    return {name for name in names if not name.startswith("_")}


def declared_names(tree: ast.Module) -> set[str]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.Tuple(elts=elements)):
                return {str(e.value) for e in elements if isinstance(e, ast.Constant)}
            case _:
                pass
    return set()


@pytest.mark.parametrize("module", PUBLIC)
def test_all_names_whatever_a_public_module_defines(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())

    assert defined_names(tree) - declared_names(tree) == set()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_its_own_layer_and_those_before_it(module: str) -> None:
    imported = [
        name.removeprefix("fastapi_carmy").removeprefix(".")
        for name in imports(module)
        if name.partition(".")[0] == "fastapi_carmy"
    ]

    too_high = [name for name in imported if layer_of(name) > layer_of(module)]

    assert too_high == []


@pytest.mark.parametrize(
    ("frameworks", "allowed"),
    [
        pytest.param({"fastapi", "starlette"}, KNOWS_FASTAPI, id="fastapi"),
        pytest.param({"asyncio"}, KNOWS_ASYNCIO, id="asyncio"),
        pytest.param({"json"}, KNOWS_JSON, id="json"),
    ],
)
def test_only_the_modules_at_a_seam_know_what_is_behind_it(
    frameworks: set[str], allowed: tuple[str, ...]
) -> None:
    knowing = {
        module
        for module in MODULES
        if any(name.partition(".")[0] in frameworks for name in imports(module))
    }

    outside = {m for m in knowing if not any(m == a or m.startswith(f"{a}.") for a in allowed)}

    assert outside == set()


IMPORT_EFFECTS = """
import importlib, logging, sys, threading, warnings
import anyio, fastapi, fastapi.routing, opentelemetry.metrics, opentelemetry.trace, pydantic

for extra in {blocked!r}:
    sys.modules[extra] = None

def state():
    loggers = {{name: (logger.level, logger.handlers, logger.propagate)
               for name, logger in logging.root.manager.loggerDict.items()
               if isinstance(logger, logging.Logger)
               and (logger.level or logger.handlers or not logger.propagate)}}
    return (list(warnings.filters), logging.root.level, list(logging.root.handlers), loggers,
            threading.active_count(), sys.excepthook)

def watch(event, arguments):
    if event in ("socket.connect", "socket.bind", "subprocess.Popen", "os.putenv"):
        raise SystemExit(f"importing does {{event}}")

sys.addaudithook(watch)
before = state()
for name in {modules!r}:
    importlib.import_module(name)
assert state() == before, (before, state())
"""


def run_python(code: str) -> None:
    # The code is this module's own.
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_importing_only_defines() -> None:
    modules = [f"fastapi_carmy.{m}".rstrip(".") for m in PUBLIC if m != "__main__"]

    run_python(IMPORT_EFFECTS.format(modules=modules, blocked=()))


def test_the_package_imports_without_any_extra() -> None:
    extras = ("ag_ui", "aiosqlite", "httpx", "jsonpatch", "limits", "sqlalchemy", "uvicorn")

    run_python(IMPORT_EFFECTS.format(modules=["fastapi_carmy"], blocked=extras))


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_installed_version_is_the_one_declared() -> None:
    assert version("fastapi-carmy") == pyproject()["project"]["version"]


def test_the_changelog_has_the_version_on_top() -> None:
    headings = re.findall(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings[0] == pyproject()["project"]["version"]


def test_every_extra_is_part_of_all() -> None:
    extras = pyproject()["project"]["optional-dependencies"]

    assert extras["all"] == [f"fastapi-carmy[{','.join(sorted(extras.keys() - {'all'}))}]"]


def test_the_package_ships_its_types() -> None:
    assert (PACKAGE / "py.typed").is_file()
