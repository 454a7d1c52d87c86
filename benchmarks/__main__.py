"""Measures this package beside its peers, and writes `docs/performance.md`.

    python -m benchmarks [--seconds 3] [--rounds 5] [--only rates,latency,…] [--no-page]

It needs two cores: a server has the first one, the load comes from the second. Peers are
installed in environments of their own under `.venv/`. Take `wrk` along if you can
(`apt-get install wrk`); a load generator in Python stands in, and is the slower part then.
The page is written when everything was measured.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks import calls
from benchmarks.calls import Call, check
from benchmarks.environments import python_of, run_module
from benchmarks.load import put_load, put_steady_load
from benchmarks.page import write_page
from benchmarks.servers import served

CONNECTIONS = 16
MANY_CONNECTIONS = 1_000
WARM_UP_SECONDS = 1.0

Figures = dict[str, list[float]]
"""Scenario → one number a round."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One contender, asked one thing."""

    module: str
    call: Call | Callable[[int], Call]
    """A request, or what makes one once the server listens on a port."""
    environment: str = "carmy"

    def call_on(self, port: int) -> Call:
        """Return the request to make."""
        return self.call if isinstance(self.call, Call) else self.call(port)


# What is compared stands together, so that it meets the machine in the same mood.
RATES: Mapping[str, Scenario] = {
    "bare": Scenario("bare", calls.ENDPOINT),
    "execute": Scenario("carmy_plain", calls.EXECUTE),
    "FastAPI": Scenario("fastapi_plain", calls.ENDPOINT),
    "execute, request_id": Scenario("carmy_plain", calls.EXECUTE_ONCE),
    "FastAPI, dependency": Scenario("fastapi_depends", calls.ENDPOINT),
    "execute, dependency": Scenario("carmy_depends", calls.EXECUTE),
    "execute, as events": Scenario("carmy_plain", calls.EXECUTE_AS_EVENTS),
    "FastAPI, included router": Scenario("fastapi_included", calls.ENDPOINT),
    "Starlette": Scenario("starlette_orjson", calls.ENDPOINT),
    "MCP SDK": Scenario("mcp_sdk", calls.MCP, "mcp"),
    "fastapi-mcp": Scenario("fastapi_mcp_tool", calls.mcp_session, "fastapi_mcp"),
    "FastMCP": Scenario("fastmcp_tool", calls.MCP, "mcp"),
    "FastAPI, document": Scenario("fastapi_document", calls.DOCUMENT),
    "catalog": Scenario("carmy_plain", calls.CATALOG),
    "catalog, 304": Scenario("carmy_plain", calls.catalog_again),
    "progress": Scenario("carmy_progress", calls.PROGRESS),
    "progress by hand": Scenario("sse_starlette_progress", calls.PROGRESS_BY_HAND),
}
LATENCY: Mapping[str, Scenario] = {name: RATES[name] for name in ("FastAPI", "execute")}


def main() -> None:
    """Measure what was asked for, and print and write it down."""
    options = _options()
    wanted: list[str] = options.only
    figures: dict[str, Figures] = {}

    if "rates" in wanted:
        figures["rates"] = _under_load(RATES, options, connections=CONNECTIONS)

    if "latency" in wanted:
        many = _under_load(LATENCY, options, connections=MANY_CONNECTIONS, p99=True)
        figures["latency"] = many

    if "inprocess" in wanted:
        print("Without sockets …", flush=True)
        rounds = str(3 * options.rounds)
        figures["inprocess"] = json.loads(run_module("carmy", "benchmarks.inprocess", rounds))

    if "building" in wanted:
        print("Building catalogs …", flush=True)
        built = json.loads(run_module("carmy", "benchmarks.building"))
        figures["building"] = {name: [number] for name, number in built.items()}

    if "agui" in wanted:
        print("Streams of AG-UI …", flush=True)
        figures["agui"] = _agui(options.rounds)

    print(write_page(figures, into_docs=set(wanted) >= set(_GROUPS) and options.page))


_GROUPS = ("rates", "latency", "inprocess", "building", "agui")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the median counts")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(_GROUPS),
        help=f"some of {', '.join(_GROUPS)}",
    )
    parser.add_argument("--no-page", dest="page", action="store_false", help="only print")
    return parser.parse_args()


def _under_load(
    scenarios: Mapping[str, Scenario],
    options: argparse.Namespace,
    *,
    connections: int,
    p99: bool = False,
) -> Figures:
    """Return requests a second, or the latency that one in a hundred exceeds."""
    figures: Figures = {name: [] for name in scenarios}

    for environment in {scenario.environment for scenario in scenarios.values()}:
        python_of(environment)

    for number in range(options.rounds):
        print(f"{connections} connections, round {number + 1} …", flush=True)

        # In new processes: where things come to lie in memory makes one of them quicker than
        # the next, for as long as it lives.
        with ExitStack() as servers:
            asked: dict[str, tuple[int, Call]] = {}

            for name, scenario in scenarios.items():
                port = servers.enter_context(served(scenario.environment, scenario.module))
                call = scenario.call_on(port)
                check(port, call)
                put_load(port, call, connections=connections, seconds=WARM_UP_SECONDS)
                asked[name] = port, call

            for name, (port, call) in asked.items():
                put = put_steady_load if p99 else put_load
                outcome = put(port, call, connections=connections, seconds=options.seconds)
                figures[name].append(outcome.p99_seconds if p99 else outcome.rate)
                check(port, call)

    return figures


def _agui(rounds: int) -> Figures:
    # It pins its own processes.
    text = run_module("carmy", "benchmarks.agui", str(rounds), is_pinned=False)
    scene = ""
    figures: Figures = {}

    for line in text.splitlines():
        if line.startswith(" "):
            name, _, rest = line.strip().rpartition(" x ")
            contender, _, ratio = name.rpartition(" ")
            figures[f"{scene}: {contender.strip()}"] = [float(ratio)]
            assert rest
        else:
            scene = line.strip().removesuffix(":")

    return figures


if __name__ == "__main__":
    main()
