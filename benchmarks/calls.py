"""The requests that contenders are asked, and what a right answer holds."""

import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NUMBER = "#N#"
"""Stands in a body for what differs in each request."""

_JSON = {"Content-Type": "application/json"}
_ARGUMENTS = '{"sku":"A-1","quantity":2}'
_ORDER = rb'"sku":"A-1","quantity":2,"total":5.0'


@dataclass(frozen=True, slots=True)
class Call:
    """One request, made again and again."""

    path: str
    body: str = ""
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: _JSON)
    expected: bytes = _ORDER
    """A pattern that a right answer's body holds."""
    status: int = 200


def _mcp(headers: Mapping[str, str], number: str = "1") -> Call:
    params = f'{{"name":"create_order","arguments":{_ARGUMENTS}}}'
    return Call(
        "/mcp",
        f'{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{params}}}',
        headers={**_JSON, "Accept": "application/json, text/event-stream", **headers},
        expected=rb'A-1[\\"]+,(\\n|\s)*[\\"]+quantity[\\"]+:\s*2',
    )


ENDPOINT = Call("/orders", _ARGUMENTS)
EXECUTE = Call("/agent/execute", f'{{"tool":"create_order","arguments":{_ARGUMENTS}}}')
EXECUTE_ONCE = Call(
    "/agent/execute",
    f'{{"tool":"create_order","arguments":{_ARGUMENTS},"request_id":"r-{NUMBER}"}}',
)
_EVENTS = {**_JSON, "Accept": "text/event-stream"}
EXECUTE_AS_EVENTS = Call(EXECUTE.path, EXECUTE.body, headers=_EVENTS)
PROGRESS = Call(
    "/agent/execute",
    '{"tool":"restock","arguments":{"sku":"A-1"}}',
    headers=_EVENTS,
    expected=rb'(?s)"progress":1\.0,"total":100\.0.*"progress":100\.0.*execution\.completed',
)
PROGRESS_BY_HAND = Call("/restock", '{"sku":"A-1"}', headers=_EVENTS, expected=PROGRESS.expected)
DOCUMENT = Call("/document", method="GET", headers={}, expected=b"xxx")
CATALOG = Call("/agent/tools", method="GET", headers={}, expected=b'"name":"create_order"')
MCP = _mcp({})


def mcp_session(port: int) -> Call:
    """Open a session of MCP, and return a call within it."""
    hello = (
        '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
        '"capabilities":{},"clientInfo":{"name":"benchmark","version":"1"}}}'
    )
    _, headers, _ = ask(port, Call("/mcp", hello, headers=MCP.headers))
    session = {"Mcp-Session-Id": headers["mcp-session-id"]}
    ready = '{"jsonrpc":"2.0","method":"notifications/initialized"}'
    ask(port, Call("/mcp", ready, headers={**MCP.headers, **session}))
    return _mcp(session, NUMBER)


def catalog_again(port: int) -> Call:
    """Return a request for the catalog by a client that has it."""
    _, headers, _ = ask(port, CATALOG)
    return Call(
        CATALOG.path,
        method="GET",
        headers={"If-None-Match": headers["etag"]},
        expected=b"^$",
        status=304,
    )


def ask(port: int, call: Call, number: str = "0") -> tuple[int, Mapping[str, str], bytes]:
    """Make one request; return status, headers by lower-case name, and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    try:
        body = call.body.replace(NUMBER, number) or None
        connection.request(call.method, call.path, body, dict(call.headers))
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read()
    finally:
        connection.close()


def check(port: int, call: Call) -> None:
    """Make one request and look whether its answer is right.

    Raises:
        RuntimeError: If it is not.
    """
    status, _, body = ask(port, call, "7654321")

    if status != call.status or re.search(call.expected, body) is None:
        raise RuntimeError(f"{call.path} answered {status}: {body!r}")
