"""Requests that do not become runs: which are refused, how, and that no agent sees them."""

import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
import httpx2
import pytest
from fastapi import Depends, HTTPException, Request
from starlette.types import ASGIApp

from fastapi_carmy.agui import RunContext
from tests.support.agui import INPUT, app_with, body, events_in
from tests.support.asgi import connect

Ctx = RunContext[Any]


async def idle(run: Ctx) -> None:
    return None


class Counting:
    """Says how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, run: Ctx) -> None:
        self.runs += 1


async def request(
    app: ASGIApp,
    method: str,
    content: bytes | AsyncIterator[bytes] | None = None,
    *,
    path: str = "/agent",
    **headers: str,
) -> httpx2.Response:
    sent = {"content-type": "application/json", "accept": "text/event-stream"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://testserver"
    ) as client:
        return await client.request(method, path, content=content, headers=sent)


async def post(
    app: ASGIApp, content: bytes | AsyncIterator[bytes] | None = None, **headers: str
) -> httpx2.Response:
    return await request(app, "POST", body() if content is None else content, **headers)


@pytest.mark.spec("ag-ui B.13")
@pytest.mark.spec("ag-ui B.14")
@pytest.mark.spec("ag-ui B.15")
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b'{"threadId": ', ["RunAgentInput", "line 1 column"]),
        (b'{"threadId":"t","runId":"r"}', ["messages"]),
        (b"", ["empty"]),
        (b"  \n\t", ["empty"]),
        (body(messages=[{"id": "1", "role": "user"}]), ["messages[0].content"]),
        (body(messages=[{"id": 1, "role": "user", "content": "x"}]), ["messages[0].id"]),
    ],
)
async def test_a_wrong_body_is_refused(sent: bytes, told: list[str]) -> None:
    agent = Counting()

    response = await post(app_with({"/agent": agent}), sent)

    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert response.headers["vary"] == "accept"
    answer = response.json()
    assert set(answer) == {"code", "message"}
    assert answer["code"] == "INVALID_INPUT"
    assert all(text in answer["message"] for text in told)
    assert agent.runs == 0


@pytest.mark.spec("ag-ui B.16")
@pytest.mark.spec("ag-ui D.51")
@pytest.mark.parametrize(
    "content_type",
    ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"],
)
async def test_what_a_form_can_send_is_refused(content_type: str) -> None:
    agent = Counting()

    response = await post(app_with({"/agent": agent}), content_type=content_type)

    assert response.status_code == 415
    assert response.json()["code"] == "UNSUPPORTED_MEDIA_TYPE"
    assert content_type in response.json()["message"]
    assert response.headers["vary"] == "accept"
    assert agent.runs == 0


@pytest.mark.spec("ag-ui B.17")
@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "Application/JSON; charset=utf-8",
        "APPLICATION/JSON",
        "text/json",
        "application/vnd.acme.run+json",
    ],
)
async def test_every_spelling_of_json_is_taken(content_type: str) -> None:
    response = await post(app_with({"/agent": idle}), content_type=content_type)

    assert response.status_code == 200


@pytest.mark.spec("ag-ui B.18")
async def test_a_body_over_the_limit_is_refused() -> None:
    agent = Counting()
    app = app_with({"/agent": agent}, max_body_bytes=1024)
    large = body(state={"text": "x" * 4096})
    exact = body(state={"text": "x" * (1024 - len(body(state={"text": ""})))})
    assert len(exact) == 1024

    async def chunked() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 100):
            yield large[start : start + 100]

    for sent in (large, chunked()):
        response = await post(app, sent)
        assert response.status_code == 413
        assert response.json()["code"] == "INVALID_BODY"
        assert response.headers["vary"] == "accept"
    assert agent.runs == 0
    assert (await post(app, exact)).status_code == 200


@pytest.mark.spec("ag-ui B.18")
async def test_the_read_stops_at_the_limit() -> None:
    app = app_with({"/agent": idle}, max_body_bytes=1024)
    endless = (b"x" * 512 for _ in range(1000))

    async with connect(app, "/agent", method="POST", body=endless) as exchange:
        await exchange.started()

    assert exchange.status == 413
    assert exchange.body_messages_read < 10


@pytest.mark.spec("ag-ui B.19")
@pytest.mark.spec("ag-ui B.22")
@pytest.mark.parametrize(
    "accept",
    [
        "application/xml",
        "text/plain",
        "text/event-stream;q=0",
        "*/*;q=0",
        "text/event-stream;q=0, */*",
        "garbage",
        "application/json",
        "application/vnd.ag-ui.event+proto",
    ],
)
async def test_a_client_that_takes_no_events_is_refused(accept: str) -> None:
    agent = Counting()

    response = await post(app_with({"/agent": agent}), accept=accept)

    assert response.status_code == 406
    assert response.json()["code"] == "NOT_ACCEPTABLE"
    assert "text/event-stream" in response.json()["message"]
    assert response.headers["vary"] == "accept"
    assert agent.runs == 0


@pytest.mark.spec("ag-ui B.21")
@pytest.mark.parametrize(
    "accept", ["text/event-stream", "*/*", "", "text/*;q=0.4, application/json"]
)
async def test_what_clients_accept_is_served(accept: str) -> None:
    response = await post(app_with({"/agent": idle}), accept=accept)

    assert response.status_code == 200


@pytest.mark.spec("ag-ui B.23")
async def test_accept_is_looked_at_first() -> None:
    app = app_with({"/agent": idle})

    for sent, content_type in ((b"{", "application/json"), (body(), "text/plain")):
        response = await post(app, sent, accept="application/xml", content_type=content_type)
        assert response.status_code == 406


@pytest.mark.spec("ag-ui B.24")
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
async def test_only_post_works(method: str) -> None:
    agent = Counting()
    app = app_with({"/agent": agent})

    response = await request(app, method)
    other = await request(app, "POST", body(), path="/other")

    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    if method != "HEAD":
        assert set(response.json()) == {"code", "message"}
    assert other.status_code == 404
    assert agent.runs == 0


@pytest.mark.spec("ag-ui B.25")
@pytest.mark.parametrize(
    "fields",
    [
        {"state": None, "forwardedProps": None},
        {"somethingNewer": 1},
        {"threadId": "agent:chat:1", "runId": "1f0-a-b"},
        {"threadId": "", "runId": "", "tools": None, "context": None},
    ],
)
async def test_what_clients_send_is_served(fields: dict[str, Any]) -> None:
    response = await post(app_with({"/agent": idle}), body(**fields))

    first, _ = events_in(response.text)
    told = {**INPUT, **fields}
    assert (first["threadId"], first["runId"]) == (told["threadId"], told["runId"])


@pytest.mark.spec("ag-ui B.26")
async def test_an_unknown_role_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async def counts(run: Ctx) -> int:
        return len(run.messages)

    sent = body(
        messages=[{"id": "1", "role": "wizard"}, {"id": "2", "role": "system", "content": ""}]
    )
    with caplog.at_level(logging.WARNING):
        response = await post(app_with({"/agent": counts}), sent)

    assert events_in(response.text)[-1]["result"] == 1
    assert "left out" in caplog.text


async def test_who_reads_the_body_takes_it_from_nobody() -> None:
    async def length(request: Request) -> int:
        return len(await request.body())

    async def measure(run: Ctx, n: Annotated[int, Depends(length)]) -> int:
        return n

    app = app_with({"/agent": measure}, dependencies=[Depends(length)])

    with anyio.fail_after(5):
        answer = await post(app)

    assert events_in(answer.text)[-1]["result"] == len(body())


async def test_a_header_of_the_hosts_that_is_none_is_left_out() -> None:
    async def refuse() -> None:
        headers = {"X-€": "1", "X Y": "2", "X-A": "a\r\nX-B: b", "X-Kept": "3"}
        raise HTTPException(401, headers=headers)

    answer = await post(app_with({"/agent": idle}, dependencies=[Depends(refuse)]))

    assert answer.status_code == 401
    assert sorted(name for name in answer.headers if name.startswith("x")) == ["x-kept"]
