"""A load generator: `wrk` where there is one, else a small one in Python."""

import asyncio
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
    """Make `call` over and over from the second core.

    Raises:
        RuntimeError: If an answer was an error, or did not come.
    """
    if has_wrk():
        return _by_wrk(port, call, connections, seconds)

    pin(0, 1)
    return asyncio.run(_by_python(port, call, connections, seconds))


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


async def _by_python(port: int, call: Call, connections: int, seconds: float) -> Outcome:
    latencies: list[float] = []
    began = time.perf_counter()
    until = began + seconds
    numbers = count(next(_seeds) * 10_000_000)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        while time.perf_counter() < until:
            started = time.perf_counter()
            writer.write(_request(call, str(next(numbers))))
            await _read_answer(reader, call.status)
            latencies.append(time.perf_counter() - started)

        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    rate = len(latencies) / (time.perf_counter() - began)
    return Outcome(rate, sorted(latencies)[int(len(latencies) * 0.99)])


def _request(call: Call, number: str) -> bytes:
    body = call.body.replace(NUMBER, number).encode()
    headers = "".join(f"{name}: {value}\r\n" for name, value in call.headers.items())
    head = f"{call.method} {call.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _read_answer(reader: asyncio.StreamReader, status: int) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()

    if int(head.split(b" ", 2)[1]) != status:
        raise RuntimeError(f"An answer was wrong: {head!r}")

    if b"transfer-encoding: chunked" in head:
        await reader.readuntil(b"\r\n0\r\n\r\n")
    elif b"content-length: " in head:
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
