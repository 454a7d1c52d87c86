"""AG-UI over HTTP on a real server: events, headers, frames."""

from collections.abc import Callable
from typing import Any

import anyio
import httpx2
import pytest
from ag_ui import core
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from fastapi_carmy.agui import RunContext
from tests.support.agui import (
    Hits,
    Waiting,
    app_with,
    body,
    broken,
    cautious,
    chatty,
    events_in,
    post,
    stateful,
    stream,
    texts_in,
    types_in,
    verbose,
)

Ctx = RunContext[Any]
Serve = Callable[[ASGIApp], str]


async def idle(run: Ctx) -> None:
    return None


class Counting:
    """Says how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, run: Ctx) -> None:
        self.runs += 1


@pytest.mark.spec("ag-ui A.1")
async def test_a_run_is_answered_with_its_events(serve: Serve) -> None:
    url = serve(app_with({"/agent": chatty}))

    response = await post(f"{url}/agent")

    events = events_in(response.text)
    assert response.status_code == 200
    assert types_in(events) == [
        "RUN_STARTED",
        "STEP_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]
    assert events[-1]["threadId"] == "thread-1"
    assert events[-1]["runId"] == "run-1"
    assert events[-1]["outcome"] == {
        "type": "success",
        "pendingToolCallIds": ["run-1-call-1"],
    }


async def test_the_greeters_body_is_exactly_this(serve: Serve) -> None:
    async def greeter(run: Ctx) -> None:
        await run.say("Hello!")

    response = await post(f"{serve(app_with({'/agent': greeter}))}/agent")

    assert response.text == (
        'data: {"type":"RUN_STARTED","threadId":"thread-1","runId":"run-1",'
        '"protocolVersion":"1.0"}\n\n'
        'data: {"type":"TEXT_MESSAGE_START","messageId":"run-1-msg-1","role":"assistant"}\n\n'
        'data: {"type":"TEXT_MESSAGE_CONTENT","messageId":"run-1-msg-1","delta":"Hello!"}\n\n'
        'data: {"type":"TEXT_MESSAGE_END","messageId":"run-1-msg-1"}\n\n'
        'data: {"type":"RUN_FINISHED","threadId":"thread-1","runId":"run-1",'
        '"outcome":{"type":"success"}}\n\n'
    )


@pytest.mark.spec("ag-ui A.2")
async def test_the_headers_keep_everybody_from_collecting(serve: Serve) -> None:
    response = await post(f"{serve(app_with({'/agent': chatty}))}/agent")

    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["transfer-encoding"] == "chunked"
    assert response.headers["cache-control"] == "no-cache, no-store, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["vary"] == "accept"
    assert "content-length" not in response.headers


@pytest.mark.spec("ag-ui A.3")
@pytest.mark.spec("ag-ui A.9")
async def test_every_frame_is_one_line_of_camel_case_without_nulls(serve: Serve) -> None:
    response = await post(f"{serve(app_with({'/agent': verbose}))}/agent")

    events = events_in(response.text)
    keys = {key for event in events for key in event}
    assert "null" not in response.text
    assert not [key for key in keys if "_" in key]
    assert events[0]["protocolVersion"] == "1.0"
    assert {
        "RUN_STARTED",
        "STATE_SNAPSHOT",
        "CUSTOM",
        "STEP_STARTED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "TEXT_MESSAGE_START",
        "TOOL_CALL_START",
        "TOOL_CALL_RESULT",
        "STATE_DELTA",
        "RUN_FINISHED",
    } <= set(types_in(events))


@pytest.mark.spec("ag-ui A.5")
async def test_the_run_starts_before_its_agent_speaks(serve: Serve) -> None:
    url = serve(app_with({"/agent": Waiting()}, disconnect_grace_seconds=0))

    with anyio.fail_after(5):
        async with stream(f"{url}/agent") as response:
            first = await anext(response.aiter_bytes())

    assert first.startswith(b'data: {"type":"RUN_STARTED"')


@pytest.mark.spec("ag-ui A.6")
async def test_a_run_that_fails_is_a_200_with_an_error_event(serve: Serve) -> None:
    response = await post(f"{serve(app_with({'/agent': broken}))}/agent")

    *before, last = events_in(response.text)
    assert response.status_code == 200
    assert types_in(before)[-1] == "TEXT_MESSAGE_END"
    assert last["type"] == "RUN_ERROR"
    assert last["code"] == "AGENT_ERROR"
    assert "the weather service is down" in last["message"]


@pytest.mark.spec("ag-ui A.7")
async def test_a_question_is_the_outcome(serve: Serve) -> None:
    response = await post(f"{serve(app_with({'/agent': cautious}))}/agent")

    assert events_in(response.text)[-1]["outcome"] == {
        "type": "interrupt",
        "interrupts": [
            {
                "id": "delete-everything",
                "reason": "tool_approval",
                "message": "Delete everything?",
            }
        ],
    }


@pytest.mark.spec("ag-ui A.8")
async def test_an_idle_agent_starts_and_finishes(serve: Serve) -> None:
    response = await post(f"{serve(app_with({'/agent': idle}))}/agent")

    assert types_in(response.text) == ["RUN_STARTED", "RUN_FINISHED"]


@pytest.mark.spec("ag-ui A.11")
async def test_preflights_are_the_middlewares(serve: Serve) -> None:
    agent = Counting()
    app = app_with({"/agent": agent})
    app.add_middleware(CORSMiddleware, allow_origins=["https://ui.example"], allow_methods=["*"])
    url = serve(app)

    async with http_client() as client:
        preflight = await client.options(
            f"{url}/agent",
            headers={
                "origin": "https://ui.example",
                "access-control-request-method": "POST",
            },
        )
        plain = await client.options(f"{url}/agent")

    assert preflight.status_code == 200
    assert plain.status_code == 405
    assert agent.runs == 0


@pytest.mark.spec("ag-ui A.12")
async def test_an_http_1_0_client_gets_the_whole_stream(serve: Serve) -> None:
    host, port = _address(serve(app_with({"/agent": chatty})))
    request = (
        b"POST /agent HTTP/1.0\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body()), body())
    )

    answer = await _raw(host, port, request)

    assert b"RUN_FINISHED" in answer
    assert answer.endswith((b"\n\n", b"0\r\n\r\n"))


@pytest.mark.spec("ag-ui B.17")
async def test_a_missing_content_type_is_taken_unless_it_is_required(serve: Serve) -> None:
    lenient = serve(app_with({"/agent": idle}))
    strict = serve(app_with({"/agent": idle}, require_content_type=True))
    request = (
        b"POST /agent HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body()), body())
    )

    assert b"200 OK" in await _raw(*_address(lenient), request)
    assert b"415 " in await _raw(*_address(strict), request)


@pytest.mark.spec("ag-ui B.19")
async def test_several_accept_lines_are_one(serve: Serve) -> None:
    url = serve(app_with({"/agent": idle}))
    request = (
        b"POST /agent HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Accept: application/json\r\nAccept: text/event-stream\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body()), body())
    )

    assert b"200 OK" in await _raw(*_address(url), request)


@pytest.mark.spec("ag-ui B.29")
async def test_a_state_of_another_type_is_told_in_the_stream(serve: Serve) -> None:
    url = serve(app_with({"/agent": stateful}, state=Hits))

    wrong = await post(f"{url}/agent", body(state={"hits": "seven"}))
    right = await post(f"{url}/agent", body(state={"hits": 7}))

    assert wrong.status_code == 200
    assert types_in(wrong.text) == ["RUN_STARTED", "RUN_ERROR"]
    assert events_in(wrong.text)[-1]["code"] == "SERIALIZATION"
    assert events_in(right.text)[1]["snapshot"] == {"hits": 8}


async def test_an_unexpected_error_does_not_leave_the_process(serve: Serve) -> None:
    async def crash(run: Ctx) -> None:
        raise KeyError("secret")

    response = await post(f"{serve(app_with({'/agent': crash}))}/agent")

    assert "secret" not in response.text
    assert types_in(response.text) == ["RUN_STARTED", "RUN_ERROR"]


@pytest.mark.spec("ag-ui K.134")
@pytest.mark.spec("ag-ui K.135")
@pytest.mark.spec("ag-ui K.136")
async def test_text_of_every_kind_arrives_as_it_was(serve: Serve) -> None:
    odd = ["a\nb", "a\r\nb", "a\rb", "data: x", "\n\n: x", '\t"\\', "\u2028"]
    unit = "한국어 \N{REGIONAL INDICATOR SYMBOL LETTER K} äöü \uff21 e\u0301 "
    long = [unit * 40] * 64
    document = {"sentences": [f"Sentence {number}." for number in range(4000)]}

    async def speaker(run: Ctx) -> None:
        async with run.message() as message:
            for text in [*odd, *long]:
                await message.delta(text)
        await run.set_state(document)

    response = await post(f"{serve(app_with({'/agent': speaker}))}/agent")

    assert texts_in(response.text) == [*odd, *long]
    (snapshot,) = [e for e in events_in(response.text) if e["type"] == "STATE_SNAPSHOT"]
    assert snapshot["snapshot"] == document


@pytest.mark.spec("ag-ui L.143")
async def test_a_call_told_in_chunks_may_have_a_result(serve: Serve) -> None:
    async def agent(run: Ctx) -> None:
        run.emit(core.ToolCallChunkEvent(tool_call_id="c", tool_call_name="t", delta="{}"))
        run.emit(core.ToolCallResultEvent(message_id="m", tool_call_id="c", content="1"))
        run.emit(core.TextMessageChunkEvent(message_id="n", delta="Done."))

    answer = await post(f"{serve(app_with({'/agent': agent}))}/agent")

    assert types_in(answer.text) == [
        "RUN_STARTED",
        "TOOL_CALL_CHUNK",
        "TOOL_CALL_RESULT",
        "TEXT_MESSAGE_CHUNK",
        "RUN_FINISHED",
    ]


@pytest.mark.spec("ag-ui D.41")
async def test_a_silent_run_is_kept_alive(serve: Serve) -> None:
    async def slow(run: Ctx) -> None:
        await anyio.sleep(0.4)
        await run.say("finally")

    url = serve(app_with({"/agent": slow}, keep_alive_seconds=0.05))
    quiet = serve(app_with({"/agent": slow}, keep_alive_seconds=None))

    kept = await post(f"{url}/agent")
    silent = await post(f"{quiet}/agent")

    assert types_in(kept.text) == types_in(silent.text)
    assert kept.text.count("\n\n:\n\n") + kept.text.count(":\n\n:") >= 1
    assert kept.text.replace(":\n\n", "") == silent.text
    assert len(kept.text) - len(silent.text) >= 2 * len(":\n\n")
    assert kept.text.endswith('"success"}}\n\n')


@pytest.mark.spec("ag-ui D.42")
async def test_a_talking_run_needs_no_comments(serve: Serve) -> None:
    async def talks(run: Ctx) -> None:
        async with run.message() as message:
            for _ in range(20):
                await message.delta("x")
                await anyio.sleep(0.02)

    url = serve(app_with({"/agent": talks}, keep_alive_seconds=0.5))

    assert ":\n\n" not in (await post(f"{url}/agent")).text.replace('":"', "")


@pytest.mark.spec("ag-ui N.159")
async def test_gzip_does_not_collect_the_stream(serve: Serve) -> None:
    app = app_with({"/agent": Waiting()}, disconnect_grace_seconds=0)
    app.add_middleware(GZipMiddleware, minimum_size=1)

    with anyio.fail_after(5):
        async with stream(f"{serve(app)}/agent", accept_encoding="gzip") as response:
            first = await anext(response.aiter_raw())

    assert first.startswith(b'data: {"type":"RUN_STARTED"')
    assert "content-encoding" not in response.headers


def http_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(timeout=20)


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


async def _raw(host: str, port: int, request: bytes) -> bytes:
    """Send bytes, and read until the server closes."""
    answer = b""
    with anyio.fail_after(20):
        async with await anyio.connect_tcp(host, port) as connection:
            await connection.send(request)
            try:
                while True:
                    answer += await connection.receive()
            except anyio.EndOfStream:
                return answer
