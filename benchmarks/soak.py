"""Full load with random hang-ups, and a reckoning at the end.

`python -m benchmarks.soak --seconds 60` serves a router on a real uvicorn, in a process of
its own, and keeps it busy with many clients at once. Three clients in ten hang up at a
random moment, and make the same call again with the same `request_id`. In the end each
order stands in the SQLite table exactly once, no task is left, and the memory is where it
was. It prints a table, and exits with 1 if something of that is not so.
"""

import argparse
import os
import platform
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from asyncio import all_tasks
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import fastapi
import httpx2
import uvicorn
from anyio.abc import SocketStream
from fastapi import Depends, FastAPI
from pydantic_core import from_json, to_json
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from fastapi_carmy import AgentContext, AgentRouter
from fastapi_carmy.stores import Key, MemoryStore, Record

__all__ = ("create_app", "main")

_CLIENTS: Final = 32
_HANG_UPS: Final = 0.3
_LONGEST_PATIENCE_SECONDS: Final = 0.05
_TOOLS: Final = ("book", "ship", "label", "look")
_GRACE_SECONDS: Final = 30.0
# Of the memory that the process has after a third of the time.
_MOST_GROWTH: Final = 0.05


def create_app(database: Path) -> FastAPI:
    """Return the application that is put under load."""
    # One connection writes at a time, as in SQLite itself; waiting for it is part of the load.
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}", pool_size=1, max_overflow=0)
    store = MemoryStore(max_entries=1_000)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001 - FastAPI's shape
        async with engine.begin() as connection:
            await connection.execute(text("PRAGMA journal_mode = WAL"))
            await connection.execute(text("CREATE TABLE effects (tool TEXT, number TEXT)"))
            await connection.execute(text("CREATE INDEX by_number ON effects (number)"))
        with closing(sqlite3.connect(_labels(database))) as labels:
            labels.execute("CREATE TABLE effects (tool TEXT, number TEXT UNIQUE)")
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    agent = AgentRouter(store=store)
    open_sessions: set[object] = set()
    _add_tools(agent, engine, open_sessions, database)
    app.include_router(agent)
    _add_host_routes(app, store, open_sessions, database)
    return app


def _labels(database: Path) -> Path:
    """Return the threads' own file: two writers of one would only wait for each other."""
    return database.with_suffix(".labels")


def _session_in(open_sessions: set[object]) -> Callable[[], AsyncIterator[None]]:
    """Return a dependency that stands in the set while it is open."""

    async def open_session() -> AsyncIterator[None]:
        session = object()
        open_sessions.add(session)
        try:
            yield
        finally:
            await anyio.lowlevel.checkpoint()
            open_sessions.remove(session)

    return open_session


def _add_tools(
    agent: AgentRouter, engine: AsyncEngine, open_sessions: set[object], database: Path
) -> None:
    session = Depends(_session_in(open_sessions))

    async def insert(tool: str, number: str) -> None:
        async with engine.begin() as connection:
            await connection.execute(
                text("INSERT INTO effects VALUES (:tool, :number)"),
                {"tool": tool, "number": number},
            )

    @agent.tool(effect="write", parallel_safe=True, dependencies=[session])
    async def book(number: str) -> str:
        """Book; who hangs up in the middle does not know what became of it."""
        await anyio.sleep(random.uniform(0, 0.02))  # noqa: S311 - No secret.
        await insert("book", number)
        await anyio.sleep(random.uniform(0, 0.01))  # noqa: S311
        return number

    @agent.tool(effect="write", parallel_safe=True, on_disconnect="finish", dependencies=[session])
    async def ship(number: str, context: AgentContext) -> str:
        """Ship; a hang-up changes nothing."""
        context.progress(1, 2)
        await insert("ship", number)
        await anyio.sleep(random.uniform(0, 0.02))  # noqa: S311
        return number

    one_writer = threading.Lock()

    @agent.tool(effect="write", idempotent=True, parallel_safe=True, dependencies=[session])
    def label(number: str) -> str:
        """Print a label in a thread; printing it twice does no more than once."""
        time.sleep(random.uniform(0, 0.01))  # noqa: S311
        with one_writer, closing(sqlite3.connect(_labels(database))) as connection, connection:
            connection.execute("INSERT OR IGNORE INTO effects VALUES ('label', ?)", (number,))
        return number

    @agent.tool(effect="read", parallel_safe=True, dependencies=[session])
    async def look(number: str, context: AgentContext) -> str:
        """Look, and tell how far it is."""
        for step in range(5):
            context.progress(step, 5)
            await anyio.sleep(random.uniform(0, 0.005))  # noqa: S311
        return number


def _add_host_routes(
    app: FastAPI, store: MemoryStore, open_sessions: set[object], database: Path
) -> None:
    @app.post("/reconcile/{number}")
    async def reconcile(number: str) -> bool:
        """Look what became of an abandoned order, and tell the store."""
        key = Key(None, None, number)
        entry = await store.lookup(key)
        if entry is None:
            return True
        with closing(sqlite3.connect(database, timeout=30)) as connection:
            query = "SELECT count(*) FROM effects WHERE number = ?"
            (found,) = connection.execute(query, (number,)).fetchone()
        if not found:
            return await store.release(key, execution_id=entry.execution_id)
        answer = {
            "execution_id": entry.execution_id,
            "status": "completed",
            "data": number,
            "_agent": {"cacheable": False, "next_actions": []},
        }
        record = Record(entry.execution_id, "completed", to_json(answer))
        return await store.complete(key, execution_id=entry.execution_id, record=record)

    @app.get("/figures")
    async def figures() -> dict[str, int]:
        """Tell what the process holds."""
        status = Path("/proc/self/status").read_text()  # noqa: ASYNC240 - No disk behind it.
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return {
            "tasks": len(all_tasks()),
            "sessions": len(open_sessions),
            "kib": int(resident.split()[1]),
        }


@dataclass
class Tally:
    """What the clients saw."""

    counts: Counter[str] = field(default_factory=Counter[str])
    finished: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Tool and number of each call that was answered with success."""
    surprises: list[str] = field(default_factory=list[str])


class _Client:
    """Makes calls, and hangs up on some."""

    def __init__(self, port: int, tally: Tally, name: int) -> None:
        self._port = port
        self._tally = tally
        self._random = random.Random(name)  # noqa: S311
        self._name = name

    async def run(self, until: float) -> None:
        number = 0
        while anyio.current_time() < until:
            number += 1
            await self._order(self._random.choice(_TOOLS), f"{self._name}-{number}")

    async def _order(self, tool: str, number: str) -> None:
        hangs_up = self._random.random() < _HANG_UPS
        answer = await self._call(tool, number, hangs_up=hangs_up)
        while answer is None or answer["status"] != "completed":
            if answer is not None and not await self._may_repeat(answer, number):
                self._tally.surprises.append(f"{tool} {number}: {answer}")
                return
            self._tally.counts["retries"] += 1
            answer = await self._call(tool, number, hangs_up=False)
        self._tally.counts["orders answered"] += 1
        if tool != "look":
            self._tally.finished.append((tool, number))

    async def _may_repeat(self, answer: dict[str, Any], number: str) -> bool:
        error = answer["error"]
        if error["code"] != "EXECUTION_UNCERTAIN":
            return bool(error["retryable"])
        self._tally.counts[f"uncertain, {error['details']['state']}"] += 1
        if error["details"]["state"] == "running":
            await anyio.sleep(0.02)
            return True
        async with await anyio.connect_tcp("127.0.0.1", self._port) as stream:
            await stream.send(_request(f"/reconcile/{number}", b"", "application/json"))
            return (await _read_all(stream)).endswith(b"true")

    async def _call(self, tool: str, number: str, *, hangs_up: bool) -> dict[str, Any] | None:
        body = to_json({"tool": tool, "arguments": {"number": number}, "request_id": number})
        is_stream = self._random.random() < 0.5  # noqa: PLR2004 - One in two.
        accept = "text/event-stream" if is_stream else "application/json"
        self._tally.counts["calls made"] += 1
        patience = self._random.uniform(0, _LONGEST_PATIENCE_SECONDS) if hangs_up else None
        async with await anyio.connect_tcp("127.0.0.1", self._port) as stream:
            await stream.send(_request("/agent/execute", body, accept))
            with anyio.move_on_after(patience):
                return _answer(await _read_all(stream), is_stream=is_stream)
        self._tally.counts["hang-ups"] += 1
        return None


def _request(path: str, body: bytes, accept: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: {accept}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _read_all(stream: SocketStream) -> bytes:
    received = b""
    while True:
        try:
            received += await stream.receive()
        except anyio.EndOfStream:
            return received


def _answer(response: bytes, *, is_stream: bool) -> dict[str, Any]:
    body = response.partition(b"\r\n\r\n")[2]
    if is_stream:
        body = body.rpartition(b"data: ")[2].partition(b"\n\n")[0]
    answer: dict[str, Any] = from_json(body)
    return answer


async def _load(port: int, seconds: float, tally: Tally) -> list[int]:
    """Keep the server busy; returns its memory in KiB, from second to second."""
    memory: list[int] = []
    until = anyio.current_time() + seconds
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        async with anyio.create_task_group() as tasks:
            for name in range(_CLIENTS):
                tasks.start_soon(_Client(port, tally, name).run, until)
            while anyio.current_time() < until:
                await anyio.sleep(1)
                memory.append((await client.get("/figures", timeout=30)).json()["kib"])
        return memory


async def _idle(port: int, at_most: int | None) -> dict[str, int]:
    """Return what lives when nobody calls; waits for what is about to end."""
    found: dict[str, int] = {}
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        with anyio.move_on_after(_GRACE_SECONDS):
            while True:
                found = (await client.get("/figures", timeout=30)).json()
                if at_most is None or found["tasks"] <= at_most:
                    break
                await anyio.sleep(0.2)
    return found


def _reconcile(database: Path, tally: Tally) -> tuple[int, int]:
    """Compare the table with what the clients were told; returns lost and doubled orders."""
    effects: Counter[tuple[str, str]] = Counter()
    for file in (database, _labels(database)):
        with closing(sqlite3.connect(file)) as connection:
            effects.update(connection.execute("SELECT tool, number FROM effects").fetchall())
    lost = sum(1 for order in tally.finished if order not in effects)
    doubled = sum(1 for count in effects.values() if count > 1)
    return lost, doubled


def _serve(database: Path) -> tuple[subprocess.Popen[bytes], int]:
    import socket  # noqa: PLC0415 - Only to find a port.

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.soak", "--serve", str(port), str(database)]
    server = subprocess.Popen(command)  # noqa: S603 - This program itself.
    for _ in range(200):
        try:
            httpx2.get(f"http://127.0.0.1:{port}/figures")
        except httpx2.TransportError:
            time.sleep(0.1)
        else:
            return server, port
    raise TimeoutError("The server does not start.")


def _print(rows: dict[str, object]) -> None:
    print("| figure | value |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")


def _soak(seconds: float) -> bool:
    tally = Tally()
    # In memory where that is possible: the disk is not what is put under load.
    memory_disk = Path("/dev/shm")  # noqa: S108 - Linux's own.
    place = memory_disk if memory_disk.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        database = Path(folder) / "soak.db"
        server, port = _serve(database)
        try:
            before = anyio.run(_idle, port, None)
            memory = anyio.run(_load, port, seconds, tally)
            after = anyio.run(_idle, port, before["tasks"])
        finally:
            server.terminate()
            code = server.wait(_GRACE_SECONDS)
        lost, doubled = _reconcile(database, tally)
    leaked = max(0, after["tasks"] - before["tasks"])
    after_a_third = max(memory[: max(1, len(memory) // 3)])
    growth = memory[-1] / after_a_third - 1
    counts = tally.counts
    _print(
        {
            "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
            "versions": f"FastAPI {fastapi.__version__}, uvicorn {uvicorn.__version__}",
            "seconds": f"{seconds:g}",
            "clients at once": _CLIENTS,
            **{name: counts[name] for name in sorted(counts)},
            "side effects expected": len(tally.finished),
            "side effects lost": lost,
            "side effects doubled": doubled,
            "answers that nobody can explain": len(tally.surprises),
            "tasks leaked": leaked,
            "dependencies left open": after["sessions"],
            "memory after a third": f"{after_a_third // 1024} MiB",
            "memory at the end": f"{memory[-1] // 1024} MiB ({growth:+.1%})",
        }
    )
    for surprise in tally.surprises[:10]:
        print(surprise)
    wrong = lost or doubled or leaked or after["sessions"] or tally.surprises
    is_fine = not wrong and growth <= _MOST_GROWTH
    return is_fine and code in (0, -15)


def main() -> None:
    """Run the soak, or the server that it puts under load."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "DATABASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        port, database = options.serve
        app = create_app(Path(database))
        uvicorn.run(app, port=int(port), ws="none", log_level="error", timeout_graceful_shutdown=5)
    elif not _soak(options.seconds):
        sys.exit(1)


if __name__ == "__main__":
    main()
