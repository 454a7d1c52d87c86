"""Real servers: uvicorn in a thread of the test, or in a process of its own."""

import asyncio
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

__all__ = ("ServerProcess", "serve_app", "serve_command", "serve_import")

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 20.0

_ADDRESS = re.compile(r"running on (http://[^\s]+)")


class _Server(uvicorn.Server):
    """Says when it accepts connections, or has failed to start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.settled.set()


def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve(sockets=[listener]))


@contextmanager
def serve_app(app: ASGIApp, *, graceful_seconds: int = 5) -> Iterator[str]:
    """Serve `app` in a thread with an event loop of its own; yields its base URL.

    Args:
        app: The application; its lifespan runs.
        graceful_seconds: How long open connections may keep the server from stopping.
    """
    config = uvicorn.Config(
        app,
        lifespan="on",
        # The websockets packages warn when they are imported, and warnings are errors here.
        ws="none",
        # Older versions would make the loop that they choose the one of the whole process.
        loop="none",
        log_config=None,
        timeout_graceful_shutdown=graceful_seconds,
    )
    server = _Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=_run, args=(server, listener))
        thread.start()
        try:
            assert server.settled.wait(LIMIT_SECONDS), "The server does not start."
            assert server.started, "The application failed to start; its log says why."
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(LIMIT_SECONDS)
            server.force_exit = True
            assert not thread.is_alive(), "The server does not stop."


class ServerProcess:
    """A server in a process of its own, to be stopped by signals."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None, cwd: Path) -> None:
        self.url = ""
        self._lines: list[str] = []
        self._listening = threading.Event()
        self.process = subprocess.Popen(  # noqa: S603 - The tests' own commands.
            command,
            env=env,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._drain = threading.Thread(target=self._read)
        self._drain.start()

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return "".join(self._lines)

    def wait_until_listening(self) -> None:
        """Return as soon as it has named its address."""
        assert self._listening.wait(LIMIT_SECONDS), self.output
        assert self.url, self.output

    def stop(self) -> int:
        """Ask it to stop (SIGTERM) and wait; returns its exit code."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait, bounded, until it has ended; returns its exit code."""
        code = self.process.wait(LIMIT_SECONDS)
        self._drain.join(LIMIT_SECONDS)
        return code

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            if not self.url and (match := _ADDRESS.search(line)):
                self.url = match[1]
                self._listening.set()
        self._listening.set()


@contextmanager
def serve_command(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> Iterator[ServerProcess]:
    """Run a command that starts uvicorn; yields it once it accepts connections."""
    server = ServerProcess(command, env, cwd)
    try:
        server.wait_until_listening()
        yield server
    finally:
        server.close()


@contextmanager
def serve_import(
    app: str, *, graceful_seconds: int = 5, env: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """Serve the application that an import string names, such as `tests.support.apps:app`."""
    command = [sys.executable, "-m", "uvicorn", app, "--port", "0", "--ws", "none"]
    command += ["--timeout-graceful-shutdown", str(graceful_seconds)]
    with serve_command(command, env=env) as server:
        yield server
