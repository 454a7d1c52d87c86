"""A contender behind uvicorn, with httptools and uvloop, on a core of its own."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.environments import ROOT, python_of

_LIMIT_SECONDS = 60.0


@contextmanager
def served(environment: str, module: str) -> Iterator[int]:
    """Serve a contender on the first core; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]

    command = [str(python_of(environment)), "-m", "uvicorn", f"benchmarks.contenders.{module}:app"]
    command += ["--port", str(port), "--http", "httptools", "--loop", "uvloop", "--ws", "none"]
    command += ["--no-access-log", "--log-level", "warning", "--backlog", "4096"]
    # The benchmark's own command.
    server = subprocess.Popen(  # noqa: S603
        command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    pin(server.pid, 0)

    try:
        _wait_for(port, server)
        yield port
    finally:
        server.terminate()
        server.wait()


def pin(process: int, core: int) -> None:
    """Keep a process, 0 for this one, on one core."""
    os.sched_setaffinity(process, {core % (os.cpu_count() or 1)})


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + _LIMIT_SECONDS

    while time.monotonic() < until:
        if server.poll() is not None:
            break

        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return

    raise RuntimeError(f"The server on port {port} does not start: {server.args!r}")
