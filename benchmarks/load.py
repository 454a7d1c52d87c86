"""Load: from `wrk` where there is one, and from a small generator in Python."""

import asyncio
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from itertools import count

from benchmarks.calls import NUMBER, Call
from benchmarks.servers import pin

_SCRIPT = """
wrk.method = [==[{method}]==]
{headers}
local body, numbered, n = [==[{body}]==], {numbered}, 0
local head, tail = body, ""
if numbered then
  local from, to = body:find("#N#", 1, true)
  head, tail = body:sub(1, from - 1), body:sub(to + 1)
end
if body ~= "" then wrk.body = body end
if numbered then
  request = function()
    n = n + 1
    return wrk.format(nil, nil, nil, head .. "{seed}" .. n .. tail)
  end
end
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format("\\nRESULT %d %d %d %d\\n", summary.requests, summary.duration,
    latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))
end
"""
_seeds = count(1)
_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round of load gave."""

    rate: float
    """Requests a second."""
    p99_seconds: float


def has_wrk() -> bool:
    """Tell whether `wrk` is installed."""
    return shutil.which("wrk") is not None


def put_load(port: int, call: Call, *, connections: int, seconds: float) -> Outcome:
    """Make `call` over and over from the second core, with `wrk` if it is there.

    Raises:
        RuntimeError: If an answer was an error, or did not come.
    """
    if has_wrk():
        return _by_wrk(port, call, connections, seconds)

    return put_steady_load(port, call, connections=connections, seconds=seconds)


def put_steady_load(port: int, call: Call, *, connections: int, seconds: float) -> Outcome:
    """Make `call` over and over on connections that have all had an answer before.

    uvloop accepts one connection a turn, so of many that come at once some wait for seconds,
    which says nothing of how long an answer takes. What is under way at the end is waited
    for, so the slow ones count as well.

    Raises:
        RuntimeError: If an answer was an error, or did not come.
    """
    pin(0, 1)
    return asyncio.run(_Load(call).put(port, connections, seconds))


def _by_wrk(port: int, call: Call, connections: int, seconds: float) -> Outcome:
    script = _SCRIPT.format(
        method=call.method,
        headers="\n".join(f"wrk.headers[{k!r}] = [==[{v}]==]" for k, v in call.headers.items()),
        body=call.body,
        numbered=str(NUMBER in call.body).lower(),
        seed=f"{next(_seeds)}0000000",
    )

    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        url = f"http://127.0.0.1:{port}{call.path}"
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
        command += ["--timeout", "30s", "--latency", "-s", file.name, url]
        # The benchmark's own command.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
        pin(process.pid, 1)
        text, _ = process.communicate()

    line = next(line for line in text.splitlines() if line.startswith("RESULT"))
    requests, microseconds, p99, errors = map(int, line.split()[1:])

    if errors:
        raise RuntimeError(f"{errors} of {requests} answers were wrong: {text}")

    return Outcome(requests / microseconds * 1e6, p99 / 1e6)


class _Load:
    """What all connections of one round share."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.numbers = count(next(_seeds) * 10_000_000)
        self.latencies: list[float] = []
        self.until = 0.0
        """Until when connections ask again, by `time.perf_counter`."""

    async def put(self, port: int, connections: int, seconds: float) -> Outcome:
        loop = asyncio.get_running_loop()
        made: list[_Connection] = []

        try:
            async with asyncio.timeout(seconds + 60):
                for _ in range(connections):
                    _, connection = await loop.create_connection(
                        lambda: _Connection(self), "127.0.0.1", port
                    )
                    made.append(connection)
                    connection.ask()
                    await connection.is_done

                self.latencies.clear()
                started = time.perf_counter()
                self.until = started + seconds

                for connection in made:
                    connection.ask()

                await asyncio.gather(*(connection.is_done for connection in made))
        except TimeoutError:
            raise RuntimeError("Some answers did not come.") from None
        finally:
            for connection in made:
                connection.close()

        took = time.perf_counter() - started
        return Outcome(len(self.latencies) / took, _percentile(self.latencies, 0.99))


class _Connection(asyncio.Protocol):
    """Asks again as soon as it has an answer, until the round is over."""

    def __init__(self, load: _Load) -> None:
        self.is_done = asyncio.get_running_loop().create_future()
        self._load = load
        self._transport = asyncio.Transport()
        self._asked = 0.0
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data

        if not _is_whole(self._received):
            return

        now = time.perf_counter()
        self._load.latencies.append(now - self._asked)

        if int(self._received.split(b" ", 2)[1]) != self._load.call.status:
            self._fail(f"An answer was wrong: {self._received!r}")
        elif now < self._load.until:
            self._send()
        elif not self.is_done.done():
            self.is_done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"A connection was lost: {exc!r}")

    def ask(self) -> None:
        self.is_done = asyncio.get_running_loop().create_future()
        self._send()

    def close(self) -> None:
        self._transport.abort()

    def _send(self) -> None:
        self._received = b""
        request = _request(self._load.call, str(next(self._load.numbers)))
        self._asked = time.perf_counter()
        self._transport.write(request)

    def _fail(self, reason: str) -> None:
        if not self.is_done.done():
            self.is_done.set_exception(RuntimeError(reason))


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


def _request(call: Call, number: str) -> bytes:
    body = call.body.replace(NUMBER, number).encode()
    headers = "".join(f"{name}: {value}\r\n" for name, value in call.headers.items())
    head = f"{call.method} {call.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _is_whole(answer: bytes) -> bool:
    """Tell whether an answer has come to its end."""
    head, end, body = answer.partition(b"\r\n\r\n")

    if not end:
        return False

    length = _LENGTH.search(head)

    if length is not None:
        return len(body) >= int(length[1])

    # What has neither length nor chunks has no body.
    return b"chunked" not in head.lower() or body.endswith(b"0\r\n\r\n")
