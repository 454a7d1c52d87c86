"""A server that is told to stop (SIGTERM) in the middle of its work.

Source: carmy/1, sections 4.2 and 4.3.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_connection, socket

import httpx2
import pytest
from pydantic_core import from_json, to_json

from tests.support.servers import ServerProcess, serve_command

pytestmark = pytest.mark.spec("carmy/1 4.3")

LIMIT_SECONDS = 10.0
EACH = 10


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "store.jsonl"


@contextmanager
def serving(log: Path, *, grace: int | None, stop: float = 5) -> Iterator[ServerProcess]:
    command = [sys.executable, "-m", "uvicorn", "tests.support.stopping:app"]
    command += ["--port", "0", "--ws", "none"]
    if grace is not None:
        command += ["--timeout-graceful-shutdown", str(grace)]
    environment = {**os.environ, "STOP_LOG": str(log), "STOP_SECONDS": str(stop)}
    with serve_command(command, env=environment) as server:
        yield server


def send_call(url: str, tool: str, request_id: str, *, stream: bool) -> socket:
    """Send a call, and leave its answer for later."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = to_json({"tool": tool, "arguments": {}, "request_id": request_id})
    accept = "text/event-stream" if stream else "application/json"
    connection = create_connection((host, int(port)), timeout=LIMIT_SECONDS)
    connection.sendall(
        b"POST /agent/execute HTTP/1.1\r\nHost: testserver\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nAccept: %b\r\nContent-Length: %d\r\n\r\n%b"
        % (accept.encode(), len(body), body)
    )
    return connection


def read_all(connection: socket) -> bytes:
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


def stop_in_the_middle(
    server: ServerProcess, tools: Sequence[str], *, each: int = EACH
) -> tuple[int, list[bytes]]:
    """Stop the server while each tool runs so often as JSON, and as often as a stream."""
    with ExitStack() as open_connections:
        connections = [
            open_connections.enter_context(
                send_call(server.url, tool, f"{tool}-{stream}-{number}", stream=stream)
            )
            for tool in tools
            for stream in (False, True)
            for number in range(each)
        ]
        httpx2.get(f"{server.url}/inside/{len(connections)}", timeout=LIMIT_SECONDS)
        server.process.send_signal(signal.SIGTERM)
        answers = [read_all(connection) for connection in connections]
        code = server.wait()
    return code, answers


def written(log: Path) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Return the verbs in order, and for how many keys of each tool each was written."""
    lines = [from_json(line) for line in log.read_bytes().splitlines()]
    keyed = {(line["verb"], line["key"]) for line in lines if line["key"]}
    return [line["verb"] for line in lines], Counter(
        (verb, key.split("-")[0]) for verb, key in keyed
    )


def test_slow_calls_are_cut_after_the_grace_time_and_settled_before_the_process_is_gone(
    log: Path,
) -> None:
    """Twenty streams and twenty calls, half of each reading, half writing."""
    with serving(log, grace=1) as server:
        code, answers = stop_in_the_middle(server, ("look", "book"))

    verbs, settled = written(log)
    assert code in (0, -signal.SIGTERM)
    assert settled == {
        ("reserve", "look"): 2 * EACH,
        ("reserve", "book"): 2 * EACH,
        ("release", "look"): 2 * EACH,
        ("abandon", "book"): 2 * EACH,
    }
    assert verbs.count("rolled back") == 4 * EACH
    assert "committed" not in verbs
    assert verbs[-2:] == ["aclose", "resources closed"]
    assert sum(b"tool.started" in answer for answer in answers) == 2 * EACH


def test_fast_calls_end_by_themselves_without_a_grace_time(log: Path) -> None:
    with serving(log, grace=None) as server:
        code, answers = stop_in_the_middle(server, ("pack",), each=2 * EACH)

    verbs, settled = written(log)
    assert code in (0, -signal.SIGTERM)
    assert settled == {("reserve", "pack"): 4 * EACH, ("complete", "pack"): 4 * EACH}
    assert verbs.count("committed") == 4 * EACH
    assert verbs[-2:] == ["aclose", "resources closed"]
    assert all(b'"data":"packed"' in answer for answer in answers)
    assert "Traceback" not in server.output


@pytest.mark.parametrize("tool", ["ship", "print_label"])
def test_what_outlives_its_client_is_abandoned_when_the_server_stops(tool: str, log: Path) -> None:
    with serving(log, grace=1) as server:
        code, _ = stop_in_the_middle(server, (tool,), each=3)

    verbs, settled = written(log)
    assert code in (0, -signal.SIGTERM)
    assert settled == {("reserve", tool): 6, ("abandon", tool): 6}
    assert verbs.count("rolled back") == 6
    assert verbs[-2:] == ["aclose", "resources closed"]


def test_a_thread_that_listens_to_nobody_is_left_behind_and_abandoned(log: Path) -> None:
    with serving(log, grace=1, stop=0.5) as server:
        code, _ = stop_in_the_middle(server, ("engrave",), each=3)

    verbs, settled = written(log)
    assert code in (0, -signal.SIGTERM)
    assert settled == {("reserve", "engrave"): 6, ("abandon", "engrave"): 6}
    assert "did not stop" in server.output
    assert verbs[-2:] == ["aclose", "resources closed"]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_a_client_that_hung_up_from_a_thread_does_not_keep_the_server(
    stream: bool, log: Path
) -> None:
    with serving(log, grace=1, stop=0.5) as server:
        with send_call(server.url, "engrave", "engrave-1", stream=stream):
            httpx2.get(f"{server.url}/inside/1", timeout=LIMIT_SECONDS)
        code = server.stop()

    verbs, settled = written(log)
    assert code in (0, -signal.SIGTERM)
    assert ("abandon", "engrave") in settled
    assert verbs[-2:] == ["aclose", "resources closed"]
