"""Turns figures into the page `docs/performance.md`."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import PACKAGES, ROOT, versions_of
from benchmarks.load import has_wrk

PAGE = ROOT / "docs" / "performance.md"

Figures = Mapping[str, Mapping[str, Sequence[float]]]
"""Group → scenario → one number a round."""


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median over the rounds; what slows a whole round down drops out of it."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


@dataclass(frozen=True, slots=True)
class Row:
    """One ratio that the package is measured by."""

    text: str
    group: str
    above: str
    below: str
    bound: float
    """What it must reach."""
    at_most: bool = False
    """Whether less is better."""

    def ratio(self, figures: Figures) -> float:
        """Return the median of the rounds' ratios."""
        group = figures[self.group]
        return paired_ratio(group[self.above], group[self.below])

    def line(self, figures: Figures) -> str:
        """Return a line of the table."""
        sign, ratio = ("≤" if self.at_most else "≥"), self.ratio(figures)
        holds = ratio <= self.bound if self.at_most else ratio >= self.bound
        return f"| {self.text} | {ratio:.2f} | {sign} {self.bound:g}{'' if holds else ', missed'} |"


KEPT = (
    Row("execute ÷ a plain FastAPI endpoint", "rates", "execute", "FastAPI", 1.3),
    Row(
        "execute with one dependency ÷ a FastAPI endpoint with it",
        "rates",
        "execute, dependency",
        "FastAPI, dependency",
        1.5,
    ),
    Row("execute ÷ a bare ASGI function", "rates", "execute", "bare", 0.22),
    Row(
        "execute with a `request_id` on `memory://` ÷ a plain FastAPI endpoint",
        "rates",
        "execute, request_id",
        "FastAPI",
        1.05,
    ),
    Row(
        "execute ÷ a plain FastAPI endpoint, without sockets",
        "inprocess",
        "FastAPI",
        "execute",
        1.8,
    ),
    Row("execute ÷ FastMCP", "rates", "execute", "FastMCP", 11),
    Row(
        "the catalog ÷ an endpoint that returns a ready `Response`",
        "rates",
        "catalog",
        "FastAPI, document",
        1.0,
    ),
    Row("its 304 ÷ the same endpoint", "rates", "catalog, 304", "FastAPI, document", 1.0),
    Row(
        "a call among 10,000 tools ÷ among 10, in time",
        "inprocess",
        "10000 tools",
        "10 tools",
        1.05,
        at_most=True,
    ),
    Row(
        "events a second of a call with 100 reports of progress ÷ `sse-starlette` by hand",
        "rates",
        "progress",
        "progress by hand",
        0.9,
    ),
    Row(
        "the slowest of a hundred answers at 1,000 connections ÷ plain FastAPI's, in time",
        "latency",
        "execute",
        "FastAPI",
        0.9,
        at_most=True,
    ),
)

LAYERS = {
    "layer: Starlette": "Starlette's application and one route",
    "layer: FastAPI": "FastAPI's application instead",
    "layer: included router": "in an included router, as every `AgentRouter` is",
    "execute": "the tool and all that is promised around it",
}

_HEAD = """\
# Performance

Written by `python -m benchmarks`; each number is a ratio, measured side by side in one run: the median over its rounds.
A ratio tells more than a rate: it hardly depends on the machine.
Differences of a tenth mean nothing.
"""

_HOW = """\
## How it is measured

Every contender does the same: it takes `sku` and `quantity`, and answers with an order of three fields, a pydantic model where the contender knows any.
Each is a small file in `benchmarks/contenders/`, served by uvicorn with httptools and uvloop, one worker on one core; the load comes from the other core, over {connections} connections.
The slowest answers are looked for on 1,000 connections that have all had an answer before: uvloop accepts one connection a turn, so of many that come at once some wait for seconds, which says nothing of an answer.
That load comes from one Python process, whose own queue is in both figures.
Contenders take turns, {rounds} rounds of each, every one in a new process and after a warm-up; answers are checked.
Whatever guards a call stays on: strict JSON, validation of arguments and result, the deadline, the watch for a hang-up, the turn of a tool that is not parallel-safe, clean cancellation.
"""

_REST = """\
## Where the rest of the time goes

The same call without sockets, layer by layer, as parts of what a plain FastAPI endpoint takes:

{layers}

An `AgentRouter` remembers where FastAPI found its routes, so it pays the third line once; the others it pays on every call, as every endpoint does, and nothing served by a FastAPI application can be quicker than that.
Of the last layer, somewhat more than a quarter goes into reading the request (head, body, envelope, arguments), more than a third into the tool itself, its result and the answer, and the rest, as much again, into what is promised around them: identity, policies, the tool's turn, its deadline, the watch for a hang-up, and a state for each way in which a call can end.
A plain endpoint promises none of that; its time goes into FastAPI's solver and response pipeline, which a tool without injected parameters needs not.
Over sockets, the server's own work comes on top, the same for all: the nearer a contender is to the bare function, the less of its time is its own.
Dependencies that are async functions of headers and of each other are called in the solver's order without it; all others go through FastAPI's own solver, so that they mean exactly what they mean in an endpoint.
"""


_MAX_SPREAD = 0.3

_BUSY = """\
!!! warning

    The machine was busy with other work during this run: the rounds of one contender lie far apart, and the ratios say little.
    Run the command again on a machine that does nothing else.
"""

_GOALS = """\
What the package wants to be measured by; what a run missed is marked.
"""

_CONTENDERS = """\
Requests a second, as a multiple of the plain FastAPI endpoint's; and how far the rounds of a contender lie apart.
"""

_MANY = """\
A catalog of 1,000 tools is built in {seconds:.1f} s of processor time, once, while the application starts; a tool keeps {kilobytes:.0f} kB.
"""

_RUNS = """\
Events a second of a run of 2,000 events, as a multiple of a bare `StreamingResponse` over the SDK's encoder.
"""


def write_page(figures: Figures, *, into_docs: bool) -> str:
    """Return the page; with `into_docs` it is written as well."""
    parts = [
        _HEAD,
        *_warning(figures),
        *_kept(figures),
        *_all(figures),
        *_building(figures),
        *_agui(figures),
    ]

    if "inprocess" in figures:
        parts.append(_REST.format(layers=_layers(figures)))

    rounds = max((len(group) for of in figures.values() for group in of.values()), default=0)
    rounds = len(figures["rates"]["execute"]) if "rates" in figures else rounds
    parts += [_HOW.format(connections=16, rounds=rounds), _machine()]
    page = "\n".join(parts)

    if into_docs:
        PAGE.write_text(page)

    return page


def _warning(figures: Figures) -> list[str]:
    spreads = [_spread(measured) for measured in figures.get("rates", {}).values()]
    return [_BUSY] if spreads and statistics.median(spreads) > _MAX_SPREAD else []


def _spread(measured: Sequence[float]) -> float:
    return (max(measured) - min(measured)) / statistics.median(measured)


def _kept(figures: Figures) -> list[str]:
    lines = [row.line(figures) for row in KEPT if row.group in figures]
    return (
        ["## Goals\n", _GOALS, "| | measured | goal |\n|---|---|---|", *lines, ""] if lines else []
    )


def _all(figures: Figures) -> list[str]:
    if "rates" not in figures:
        return []

    rates = figures["rates"]
    lines = [
        f"| {name} | {paired_ratio(measured, rates['FastAPI']):.2f} | {_spread(measured):.0%} |"
        for name, measured in rates.items()
        if not name.startswith("progress")
    ]
    return [
        "## All contenders\n",
        _CONTENDERS,
        "| | × FastAPI | spread |\n|---|---|---|",
        *lines,
        "",
    ]


def _building(figures: Figures) -> list[str]:
    if "building" not in figures:
        return []

    built = figures["building"]
    seconds, kilobytes = built["seconds"][0], built["bytes_per_tool"][0] / 1000
    return ["## Many tools\n", _MANY.format(seconds=seconds, kilobytes=kilobytes)]


def _agui(figures: Figures) -> list[str]:
    if "agui" not in figures:
        return []

    return [
        "## AG-UI\n",
        _RUNS,
        "| | × bare |\n|---|---|",
        *(f"| {name} | {ratio[0]:.2f} |" for name, ratio in figures["agui"].items()),
        "",
    ]


def _layers(figures: Figures) -> str:
    times = figures["inprocess"]
    lines = ["| | part | with all before |", "|---|---|---|"]
    before = 0.0

    for name, text in LAYERS.items():
        so_far = paired_ratio(times[name], times["FastAPI"])
        lines.append(f"| {text} | {so_far - before:.2f} | {so_far:.2f} |")
        before = so_far

    return "\n".join(lines)


def _machine() -> str:
    generator = "`wrk`" if has_wrk() else "the load generator in Python"
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    cores = f"{os.cpu_count()} cores ({_processor()})"
    lines = ["## The machine\n", f"{cores}, {system}, {generator}.\n"]

    for name in PACKAGES:
        versions = ", ".join(f"{key} {value}" for key, value in versions_of(name).items())
        lines.append(f"- {versions}")

    return "\n".join([*lines, ""])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()

    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
