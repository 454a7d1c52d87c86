"""Events per second of one AG-UI run of 2,000 events, beside the ways without this package.

    python -m benchmarks.agui [rounds]

Each contender is a uvicorn of its own on one core; the client reads on another. The
rounds take turns, so that a busy minute hits everyone; what counts are the medians and
their ratios.
"""

import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec

CONTENDERS: Mapping[str, str] = {
    "bare StreamingResponse": "agui_bare",
    "fastapi_carmy": "agui_carmy",
    "fastapi_carmy, yielded events": "agui_carmy_events",
    "pydantic-ai": "agui_pydantic_ai",
}
BASE = "bare StreamingResponse"
RUNS_A_ROUND = 5
BODY = (
    b'{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"hello"}],'
    b'"tools":[],"context":[],"forwardedProps":{},"state":{}}'
)
REQUEST = (
    b"POST /agent%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Accept: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
)
SCENES: Mapping[str, bytes] = {
    "as fast as it goes": b"",
    "one event a turn of the event loop": b"?pause=1",
}
EVENT = b'"type":"TEXT_MESSAGE_CONTENT"'

_PORT = re.compile(r"running on http://127\.0\.0\.1:(\d+)")


@contextmanager
def served(module: str) -> Iterator[int]:
    """Serve a contender on the first core; yields its port."""
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.contenders.{module}:app"]
    command += ["--port", "0", "--ws", "none", "--no-access-log"]
    # The benchmark's own commands.
    server = subprocess.Popen(  # noqa: S603
        command, stderr=subprocess.PIPE, text=True
    )
    _pin(server.pid, 0)

    try:
        assert server.stderr is not None
        port = next(int(found[1]) for line in server.stderr if (found := _PORT.search(line)))
        yield port
    finally:
        server.terminate()
        server.communicate()


def _pin(process: int, core: int) -> None:
    cores = sorted(os.sched_getaffinity(0) if process else range(os.cpu_count() or 1))
    os.sched_setaffinity(process, {cores[core % len(cores)]})


def events_a_second(port: int, query: bytes, runs: int) -> float:
    """Return how many events one connection gets a second, over some runs."""
    events = 0
    started = time.perf_counter()

    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(runs):
            connection.sendall(REQUEST % (query, len(BODY), BODY))
            answer = bytearray()
            while not answer.endswith(b"0\r\n\r\n"):
                answer += connection.recv(262144)
            assert b"RUN_FINISHED" in answer
            events += answer.count(EVENT)

    return events / (time.perf_counter() - started)


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the ratios."""
    rounds = int(arguments[0]) if arguments else 9
    names = {
        name: module
        for name, module in CONTENDERS.items()
        if module != "agui_pydantic_ai" or find_spec("pydantic_ai") is not None
    }

    with ExitStack() as servers:
        ports = {name: servers.enter_context(served(module)) for name, module in names.items()}
        _pin(0, 1)

        for scene, query in SCENES.items():
            print(f"{scene}:")
            _print(_measured(ports, query, rounds))


def _measured(ports: Mapping[str, int], query: bytes, rounds: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in ports}

    for port in ports.values():
        events_a_second(port, query, 2)

    for _ in range(rounds):
        for name, port in ports.items():
            rates[name].append(events_a_second(port, query, RUNS_A_ROUND))

    return rates


def _print(rates: Mapping[str, Sequence[float]]) -> None:
    base = statistics.median(rates[BASE])

    for name, measured in rates.items():
        median = statistics.median(measured)
        spread = (max(measured) - min(measured)) / median
        print(f"  {name:32} {median / base:6.2f} x   (spread {spread:4.0%})")


if __name__ == "__main__":
    main(sys.argv[1:])
