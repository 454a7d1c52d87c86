"""No input breaks the execute route, and no error tells what was sent.

Source: carmy/1, sections 2.1, 2.2 and 4.5.
"""

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from fastapi import Depends, Header
from fastapi.testclient import TestClient
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, Field, Json
from pydantic_core import from_json, to_json

from fastapi_carmy import AgentRouter
from tests.support.calls import app_of
from tests.support.sse import parse_frames

SECRET = "hunter2-hunter2"
JSON = "application/json"
SERVERS_OWN = {"TOOL_PANIC", "INVALID_OUTPUT", "STORE_ERROR"}
STATUSES = {200, 400, 403, 404, 413, 500, 503}


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Everything(BaseModel):
    when: date | None = None
    price: Decimal | None = None
    id: UUID | None = None
    link: AnyUrl | None = None
    text: Annotated[str, Field(pattern="^[a-z]*$", max_length=10)] = ""
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None
    any_of: int | list[str] | dict[str, int] | None = None
    numbers: set[float] = set()
    inner: "Everything | None" = None


def pages(skip: int = 0, limit: Annotated[int, Field(le=100)] = 10) -> tuple[int, int]:
    return skip, limit


def router() -> AgentRouter:
    agent = AgentRouter(max_body_bytes=4_096)

    @agent.tool(effect="none")
    async def echo(value: object = None) -> object:
        return value

    @agent.tool(effect="read")
    async def everything(
        everything: Everything,
        page: Annotated[tuple[int, int], Depends(pages)],
        how: Literal["mail", "post"] = "post",
        x_number: Annotated[int, Header()] = 0,
    ) -> int:
        return page[0]

    @agent.tool(effect="read")
    async def divide(by: float) -> float:
        return 1 / by

    @agent.tool(effect="write", name="text.length")
    def length(text: str) -> int:
        return len(text)

    @agent.tool(effect="destructive")
    async def wipe() -> None: ...

    return agent


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(app_of(router())) as client:
        yield client


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["cat", "dog", "mail", "2026-01-02", SECRET]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["kind", "lives", "name", "pet", "inner", "text", "any_of"])
            | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
arguments = json_values | st.fixed_dictionaries(
    {},
    optional={
        "value": json_values,
        "everything": json_values,
        "by": json_values,
        "text": json_values,
        "skip": json_values,
        "how": json_values,
    },
)
envelopes = st.fixed_dictionaries(
    {},
    optional={
        "tool": st.sampled_from(["echo", "everything", "divide", "text.length", "wipe", "ech"])
        | json_values,
        "arguments": arguments,
        "request_id": st.sampled_from(["r1", "r2", "r3"]) | json_values,
        "context": json_values,
    },
)
headers = st.fixed_dictionaries(
    {"Content-Type": st.sampled_from([JSON, JSON, JSON, "application/a+json", "text/plain"])},
    optional={
        "Accept": st.sampled_from([JSON, "text/event-stream", "*/*", ";q=,", "a/b;q=nan"]),
        "Idempotency-Key": st.sampled_from(["r1", '"r2"', '"', "", "x" * 300, "\xff\xfe"]),
        "X-Number": st.sampled_from(["1", "one", ""]),
    },
)


def send(client: TestClient, body: bytes, sent: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Send a request, and check everything that holds for every answer."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
    response = client.post("/agent/execute", content=body, headers=raw)
    assert response.status_code in STATUSES, response.text
    assert response.headers["cache-control"] == "no-store"

    if response.headers["content-type"] == "text/event-stream":
        frames = list(parse_frames([response.content]))
        assert frames[0].event == "execution.started"
        assert frames[-1].event == "execution.completed"
        answer = frames[-1].json()
        assert isinstance(answer.pop("replayed"), bool)
    else:
        assert response.headers["content-type"] == JSON
        answer = from_json(response.content, allow_inf_nan=False)

    _check(answer)
    status = response.status_code
    if status >= 500 and status != 503:
        assert answer["error"]["code"] in SERVERS_OWN
    return status, answer


def _check(answer: dict[str, Any]) -> None:
    if list(answer) == ["error"]:
        assert answer["error"]["recoverable"] is True
    elif "error" in answer:
        assert list(answer) == ["execution_id", "status", "error", "_agent"]
        assert answer["status"] in ("failed", "cancelled", "timed_out")
    else:
        assert list(answer) == ["execution_id", "status", "data", "_agent"]
        assert answer["status"] == "completed"

    if "error" in answer:
        error = answer["error"]
        assert {"code", "message", "category", "recoverable", "retryable"} <= set(error)
        if error["code"] in SERVERS_OWN - {"STORE_ERROR"}:
            assert set(error["details"]) == {"correlation_id"}


@given(body=st.binary(max_size=200), sent=headers)
@settings(max_examples=300)
def test_no_bytes_break_it(client: TestClient, body: bytes, sent: dict[str, str]) -> None:
    send(client, body, sent)


@given(envelope=envelopes, sent=headers)
@settings(max_examples=700)
@example(envelope={"tool": "echo", "request_id": []}, sent={"Idempotency-Key": "r1"})
def test_no_envelope_breaks_it(
    client: TestClient, envelope: dict[str, object], sent: dict[str, str]
) -> None:
    send(client, to_json(envelope), {"Content-Type": JSON, **sent})


@given(
    call=envelopes.map(lambda envelope: {"tool": "echo", **envelope}),
    data=st.data(),
)
@settings(max_examples=300)
def test_no_slip_of_the_pen_breaks_it(
    client: TestClient, call: dict[str, object], data: st.DataObject
) -> None:
    """A body that is almost right: cut, doubled or changed somewhere."""
    body = to_json(call)
    place = data.draw(st.integers(0, len(body)))
    piece = data.draw(st.binary(max_size=3) | st.sampled_from([b",", b"NaN", b"\\ud800", b"1e999"]))
    skipped = data.draw(st.integers(0, 3))

    send(client, body[:place] + piece + body[place + skipped :], {"Content-Type": JSON})


ECHOLESS = [
    {"tool": SECRET},
    {"tool": "echo", SECRET: 1},
    {"tool": "echo", "arguments": SECRET},
    {"tool": "echo", "arguments": {SECRET: 1}},
    {"tool": "echo", "request_id": SECRET * 20},
    {"tool": "echo", "request_id": [SECRET]},
    *(
        {"tool": "everything", "arguments": {"everything": {name: value}, "how": SECRET}}
        for name in Everything.model_fields
        for value in (SECRET, [SECRET], {"kind": SECRET}, {SECRET: SECRET}, {"text": SECRET})
    ),
    {"tool": "divide", "arguments": {"by": SECRET}},
    {"tool": "everything", "arguments": {"everything": {}, "skip": SECRET, "limit": SECRET}},
]


@pytest.mark.parametrize("accept", [JSON, "text/event-stream"])
@pytest.mark.parametrize("call", ECHOLESS, ids=range(len(ECHOLESS)))
def test_no_error_echoes_what_was_sent(
    client: TestClient, call: dict[str, object], accept: str
) -> None:
    """The name of an argument that is not there is told: the agent wrote it, and must find it."""
    _, answer = send(client, to_json(call), {"Content-Type": JSON, "Accept": accept})

    error = to_json(answer["error"]).decode()
    if SECRET in call or call["tool"] == SECRET or "arguments" not in call:
        assert SECRET not in error
    else:
        for wrong in answer["error"]["details"]["errors"]:
            assert SECRET not in wrong["message"]
            assert SECRET not in wrong["type"]


@given(prefix=st.text(max_size=5), suffix=st.text(max_size=5), value=json_values)
@settings(max_examples=150)
def test_no_message_holds_a_value(
    client: TestClient, prefix: str, suffix: str, value: object
) -> None:
    planted = f"{prefix}{SECRET}{suffix}"
    items = {"when": planted, "price": planted, "pet": {"kind": planted}, "any_of": [[planted]]}
    call = {"tool": "everything", "arguments": {"everything": {**items, "inner": items}}}

    _, answer = send(client, to_json(call), {"Content-Type": JSON})

    assert SECRET not in to_json(answer["error"]).decode()


class Mail(BaseModel):
    body: Json[dict[str, int]]
    raw: Annotated[str, Field(min_length=3)]


def test_values_inside_of_texts_are_not_echoed_either() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def send_mail(mail: Mail) -> None: ...

    call = {
        "tool": "send_mail",
        "arguments": {"mail": {"body": to_json({"a": SECRET}).decode(), "raw": ""}},
    }

    with TestClient(app_of(agent)) as client:
        answer = client.post("/agent/execute", json=call)

    assert answer.json()["error"]["code"] == "INVALID_ARGUMENTS"
    assert SECRET not in answer.text
