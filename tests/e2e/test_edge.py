"""Hostile requests and hostile values, byte by byte. Source: carmy/1, sections 1, 2 and 3."""

from collections.abc import Iterator
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.testclient import TestClient

from fastapi_carmy import AgentContext, AgentError, AgentRouter, Caller, ErrorCategory
from tests.support.asgi import connect as connect_in_process
from tests.support.calls import app_of, code, post
from tests.support.wire import call, connect, serve_here

MIB = 2**20
JSON = {"Content-Type": "application/json"}
HOSTILE = "a\r\nSet-Cookie: evil=1\r\n\r\nevent: execution.completed\ndata: {}\n\n\0\u2028\x7f"


def body_of(size: int) -> bytes:
    """Return a call of exactly `size` bytes."""
    head, tail = b'{"tool":"echo","arguments":{"text":"', b'"}}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


def anonymous() -> Caller:
    return Caller()


def echoing(agent: AgentRouter) -> AgentRouter:
    @agent.tool(effect="none")
    async def echo(text: str) -> int:
        return len(text)

    return agent


@pytest.fixture
def guarded() -> tuple[FastAPI, list[str]]:
    """An application, and which of its guards ran."""
    ran: list[str] = []

    def guard(request: Request) -> None:
        ran.append("guard")
        if "authorization" not in request.headers:
            raise HTTPException(401, "Who are you?", {"WWW-Authenticate": "Bearer"})

    agent = echoing(AgentRouter(dependencies=[Depends(guard)], caller=anonymous))
    return app_of(agent), ran


@pytest.mark.spec("carmy/1 7.7")
@pytest.mark.parametrize(("size", "status"), [(MIB, 200), (MIB + 1, 413), (2 * MIB, 413)])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_body_may_have_one_mebibyte(
    size: int, status: int, stream: bool, guarded: tuple[FastAPI, list[str]]
) -> None:
    app, ran = guarded
    accept = "text/event-stream" if stream else "application/json"
    headers = {**JSON, "Authorization": "Bearer x", "Accept": accept, "Content-Length": str(size)}

    async with (
        serve_here(app) as served,
        connect(served, "/agent/execute", method="POST", headers=headers) as wire,
    ):
        if status == 200:
            await wire.send(body_of(size))
        # Otherwise it is refused before a byte of the body has come.
        answer = await wire.answer()

    assert answer.status == status
    assert ran == (["guard"] if status == 200 else [])
    if status == 413:
        assert answer.code == "PAYLOAD_TOO_LARGE"
        assert answer.headers["content-type"] == "application/json"


def endless(sent: list[int]) -> Iterator[bytes]:
    while True:
        sent.append(1)
        yield b"[" * 65_536


@pytest.mark.spec("carmy/1 7.7")
@pytest.mark.parametrize("declared", [None, "10"], ids=["chunked", "lying"])
@pytest.mark.parametrize("knows", [False, True], ids=["stranger", "known"])
async def test_an_undeclared_body_is_counted_after_the_guards_and_read_no_further(
    declared: str | None, knows: bool, guarded: tuple[FastAPI, list[str]]
) -> None:
    app, ran = guarded
    headers = {**JSON}
    if declared is not None:
        headers["Content-Length"] = declared
    if knows:
        headers["Authorization"] = "Bearer x"
    sent: list[int] = []

    async with connect_in_process(
        app, "/agent/execute", method="POST", headers=headers, body=endless(sent)
    ) as exchange:
        answer = await exchange.json()

    assert ran == ["guard"]
    assert exchange.status == (413 if knows else 401)
    assert answer["error"]["code"] == ("PAYLOAD_TOO_LARGE" if knows else "UNAUTHENTICATED")
    assert len(sent) == (MIB // 65_536 + 1 if knows else 0)


@pytest.mark.spec("carmy/1 7.7")
@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_a_chunked_body_is_refused_before_it_ends(
    http: str, guarded: tuple[FastAPI, list[str]]
) -> None:
    app, _ = guarded
    headers = {**JSON, "Authorization": "Bearer x", "Transfer-Encoding": "chunked"}
    chunk = b"10000\r\n" + b"[" * 65_536 + b"\r\n"

    async with (
        serve_here(app, http=http) as served,
        connect(served, "/agent/execute", method="POST", headers=headers) as wire,
    ):
        for _ in range(MIB // 65_536 + 1):
            await wire.send(chunk)
        # Its end never comes.
        await wire.until(b'"PAYLOAD_TOO_LARGE"')

    assert wire.received.startswith(b"HTTP/1.1 413 ")


async def test_a_stranger_with_a_mebibyte_of_brackets_is_not_listened_to(
    guarded: tuple[FastAPI, list[str]],
) -> None:
    app, ran = guarded

    async with (
        serve_here(app) as served,
        connect(served, "/agent/execute", method="POST", headers=JSON, body=b"[" * MIB) as wire,
    ):
        answer = await wire.answer()

    assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert ran == ["guard"]


async def test_a_known_caller_with_a_mebibyte_of_brackets_is_refused(
    guarded: tuple[FastAPI, list[str]],
) -> None:
    app, _ = guarded

    with TestClient(app) as client:
        answer = client.post(
            "/agent/execute", content=b"[" * MIB, headers={**JSON, "Authorization": "Bearer x"}
        )

    assert (answer.status_code, code(answer)) == (400, "INVALID_REQUEST")


def add_hostile_headers(agent: AgentRouter) -> None:
    """Add tools that set headers, or whose dependencies and guards do."""

    def set_headers(response: Response) -> None:
        for name, value in (
            ("X-Text", HOSTILE),
            ("X-Nul", "a\0b"),
            ("X-Split: evil\r\nX-Evil", "1"),
            ("Content-Length", "1"),
            ("Transfer-Encoding", "chunked"),
            ("Content-Encoding", "gzip"),
            ("Connection", "upgrade"),
            ("Cache-Control", "public"),
            ("X-Fine", "fine"),
        ):
            raw = (name.lower().encode(), value.encode())
            response.raw_headers.append(raw)

    @agent.tool(effect="read")
    async def headers(set_headers: Annotated[None, Depends(set_headers)]) -> str:
        return "done"

    @agent.tool(effect="read")
    async def http_error() -> None:
        raise HTTPException(400, HOSTILE, {"X-Text": HOSTILE, "Content-Length": "1"})

    def refuse() -> None:
        headers = {"X-Text": HOSTILE, "Content-Length": "1", "X\r\nEvil": "1", "X-Fine": "fine"}
        raise HTTPException(403, HOSTILE, headers)

    @agent.tool(effect="read", dependencies=[Depends(refuse)])
    async def guard() -> None: ...

    @agent.tool(effect="read")
    async def dependency(refused: Annotated[None, Depends(refuse)]) -> None: ...


def hostile_agent() -> AgentRouter:
    """A router whose tools put hostile text wherever a tool can put anything."""
    agent = AgentRouter()
    add_hostile_headers(agent)

    @agent.tool(effect="read")
    async def output(context: AgentContext) -> dict[str, str]:
        context.progress(1, message=HOSTILE)
        context.partial({HOSTILE: HOSTILE})
        context.suggest(HOSTILE, {HOSTILE: HOSTILE}, reason=HOSTILE)
        return {HOSTILE: HOSTILE}

    @agent.tool(effect="read")
    async def error() -> None:
        raise AgentError(
            "HOSTILE",
            HOSTILE,
            ErrorCategory.VALIDATION,
            suggested_action=HOSTILE,
            details={HOSTILE: HOSTILE},
        )

    return agent


@pytest.mark.parametrize("http", ["h11", "httptools"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize(
    ("tool", "status"),
    [
        ("output", 200),
        ("headers", 200),
        ("error", 400),
        ("http_error", 400),
        ("guard", 403),
        ("dependency", 403),
        (HOSTILE, 404),
    ],
    ids=["output", "headers", "error", "http-error", "guard", "dependency", "no-such-tool"],
)
async def test_nothing_that_a_tool_says_becomes_a_header_or_an_event(
    tool: str, status: int, stream: bool, http: str
) -> None:
    async with (
        serve_here(app_of(hostile_agent()), http=http) as served,
        call(served, tool, stream=stream) as wire,
    ):
        answer = await wire.answer()

    is_stream = answer.headers["content-type"] == "text/event-stream"
    assert answer.status == (200 if is_stream else status)
    assert not {"set-cookie", "x-evil", "evil", "x-text", "x-nul"} & answer.headers.keys()
    assert answer.headers["cache-control"] == "no-store"
    assert "content-encoding" not in answer.headers
    assert answer.result["status" if tool != "guard" else "error"]
    if is_stream:
        names = [frame.event for frame in answer.frames]
        assert names.count("execution.completed") == 1
        assert names[0] == "execution.started"
    elif tool in {"headers", "guard", "dependency"}:
        assert answer.headers["x-fine"] == "fine"


@pytest.mark.spec("carmy/1 3")
@pytest.mark.parametrize(
    ("raised", "sent"), [(200, 400), (204, 400), (304, 400), (307, 307), (404, 404), (418, 418)]
)
def test_a_refusal_has_a_status_that_can_carry_one(raised: int, sent: int) -> None:
    def refuse() -> None:
        raise HTTPException(raised, "No.", {"Location": "/login"})

    agent = echoing(AgentRouter(dependencies=[Depends(refuse)], caller=anonymous))

    with TestClient(app_of(agent)) as client:
        answer = client.post("/agent/execute", json={"tool": "echo"}, follow_redirects=False)

    assert answer.status_code == sent
    assert answer.json()["error"]["message"] == "No."
    assert answer.headers["location"] == "/login"


@pytest.mark.spec("carmy/1 2.1")
@pytest.mark.parametrize("key", [b"a\tb", b'"unclosed', b"k" * 257, b"", b'""'], ids=repr)
def test_a_hostile_idempotency_key_is_an_id_like_any_other(key: bytes) -> None:
    with TestClient(app_of(echoing(AgentRouter()))) as client:
        answer = client.post(
            "/agent/execute",
            json={"tool": "echo", "arguments": {"text": ""}},
            headers=[(b"Idempotency-Key", key)],
        )
        healthy = post(client, "echo", {"text": "abc"})

    assert answer.status_code == (200 if key == b"a\tb" else 400)
    assert healthy.json()["data"] == 3
