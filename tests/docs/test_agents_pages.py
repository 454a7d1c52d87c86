"""Each claim of the pages about agents, by the programs that they show."""

import subprocess
import sys
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from docs.snippets.agui import by_hand, streaming, transformers
from docs.snippets.agui.testing import (
    test_the_clerk_asks_before_it_buys,
    test_the_clerk_buys_what_was_confirmed,
)
from fastapi_carmy.agui.testing import collect, run_input
from tests.support.agui import INPUT, events_in, texts_in, types_in

__all__ = ("test_the_clerk_asks_before_it_buys", "test_the_clerk_buys_what_was_confirmed")


def run(app: FastAPI, path: str) -> str:
    with TestClient(app) as client:
        said = [{"id": "u", "role": "user", "content": "Is there tea?"}]
        answer = client.post(path, json={**INPUT, "messages": said})
    assert answer.status_code == 200
    return str(answer.text)


async def test_a_model_is_streamed_piece_by_piece() -> None:
    events: list[Any] = await collect(streaming.parrot, run_input("hello"))

    deltas = [event.delta for event in events if event.type.value == "TEXT_MESSAGE_CONTENT"]
    assert deltas == ["You", " said: ", "hello"]


def test_transformers_hide_promote_and_stamp() -> None:
    text = run(transformers.app, "/chat")

    events = events_in(text)
    assert "internal_debug" not in text
    assert types_in(events)[-3:] == ["TOOL_CALL_RESULT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert all(isinstance(event["timestamp"], int) for event in events)


def test_an_endpoint_by_hand_answers_and_refuses() -> None:
    assert texts_in(run(by_hand.app, "/acme/chat")) == ["Hello, acme!"]

    with TestClient(by_hand.app) as client:
        refused = client.post("/acme/chat", json={})
    assert refused.status_code == 400
    assert refused.json()["detail"]["code"] == "INVALID_INPUT"


def test_a_frameworks_stream_is_served() -> None:
    pytest.importorskip("pydantic_ai", reason="The group `frameworks` is not installed.")
    from docs.snippets.agui import frameworks  # noqa: PLC0415 - Needs what was just looked for.

    text = run(frameworks.app, "/assistant")

    assert types_in(text).count("RUN_STARTED") == 1
    assert "".join(texts_in(text)) == "Tea is in stock."


def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['ag_ui'] = None; import fastapi_carmy.agui"
    # The code is this test's own.
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert 'pip install "fastapi-carmy[agui]"' in done.stderr
