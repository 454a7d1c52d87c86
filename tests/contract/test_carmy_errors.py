"""Errors as data, and what never leaves the process. Source: carmy/1, sections 3, 4.5 and 5."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.testclient import TestClient
from pydantic import BaseModel, Field

from fastapi_carmy import AgentError, AgentRouter, ErrorCategory, agent_error_handler
from tests.support.calls import app_of, code, post, stream
from tests.support.servers import ROOT

SECRET = "hunter2-hunter2"

STATUS = {
    "validation": 400,
    "permission": 403,
    "not_found": 404,
    "cancelled": 408,
    "conflict": 409,
    "internal": 500,
    "capacity": 503,
    "timeout": 504,
}


@pytest.mark.spec("carmy/1 7.15")
@pytest.mark.spec("carmy/1 3")
@pytest.mark.parametrize("category", list(ErrorCategory))
def test_each_category_has_its_status(category: ErrorCategory) -> None:
    agent = AgentRouter()

    @agent.tool(effect="read", idempotent=True)
    async def fail() -> None:
        raise AgentError("NO", "No.", category)

    with TestClient(app_of(agent)) as client:
        answer = post(client, "fail")

    assert answer.status_code == STATUS[category]
    assert list(answer.json()) == ["execution_id", "status", "error", "_agent"]
    assert answer.json()["error"] == {
        "code": "NO",
        "message": "No.",
        "category": category,
        "recoverable": False,
        "retryable": False,
    }
    expected = {"cancelled": "cancelled", "timeout": "timed_out"}.get(category, "failed")
    assert answer.json()["status"] == expected
    assert answer.json()["_agent"] == {"cacheable": False, "next_actions": []}
    assert re.fullmatch(r"exec_[0-9a-f-]{36}", answer.json()["execution_id"])


@pytest.mark.spec("carmy/1 7.15")
def test_a_success_without_data_keeps_the_key() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def nothing() -> None: ...

    with TestClient(app_of(agent)) as client:
        answer = post(client, "nothing")

    assert answer.status_code == 200
    assert list(answer.json()) == ["execution_id", "status", "data", "_agent"]
    assert answer.json()["data"] is None


@pytest.mark.spec("carmy/1 2.2")
@pytest.mark.parametrize(
    ("effect", "idempotent", "cacheable"),
    [
        ("none", True, True),
        ("read", True, True),
        ("read", False, False),
        ("write", True, False),
        ("external_write", True, False),
    ],
)
def test_only_repeatable_reads_may_be_cached(
    effect: str, idempotent: bool, cacheable: bool
) -> None:
    agent = AgentRouter()

    @agent.tool(effect=effect, idempotent=idempotent)
    async def look() -> int:
        return 1

    with TestClient(app_of(agent)) as client:
        assert post(client, "look").json()["_agent"]["cacheable"] is cacheable


@pytest.mark.spec("carmy/1 5")
def test_an_error_carries_all_that_the_tool_says() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def fail() -> None:
        raise AgentError(
            "SOLD_OUT",
            "Sold out.",
            ErrorCategory.CAPACITY,
            retryable=True,
            retry_after=7,
            suggested_action="restock",
            details={"sku": "TEA", "left": 0, "odd": {1, float("nan")}},
        )

    with TestClient(app_of(agent)) as client:
        answer = post(client, "fail", {})

    error = answer.json()["error"]
    assert answer.headers["retry-after"] == "7"
    assert {key: error[key] for key in error if key != "details"} == {
        "code": "SOLD_OUT",
        "message": "Sold out.",
        "category": "capacity",
        "recoverable": True,
        "retryable": True,
        "retry_after": 7,
        "suggested_action": "restock",
    }
    assert error["details"]["sku"] == "TEA"
    (action,) = answer.json()["_agent"]["next_actions"]
    assert (action["tool"], action["after_ms"]) == ("fail", 7000)
    assert "same request_id" in action["reason"]


@pytest.mark.spec("carmy/1 7.16")
@pytest.mark.parametrize("value", [None, SECRET, {"secret": SECRET}, object()])
def test_output_that_does_not_match_is_not_sent(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def number() -> int:
        return value  # type: ignore[return-value]

    with TestClient(app_of(agent)) as client:
        answer = post(client, "number")
        frames = stream(client, "number")

    error = answer.json()["error"]
    assert answer.status_code == 500
    assert (error["code"], error["category"]) == ("INVALID_OUTPUT", "internal")
    assert frames[-1].json()["error"]["code"] == "INVALID_OUTPUT"
    assert SECRET not in answer.text + str(frames)
    assert error["details"]["correlation_id"] in caplog.text


@pytest.mark.spec("carmy/1 7.16")
@pytest.mark.parametrize("place", ["tool", "dependency", "guard", "router"])
def test_the_text_of_an_unexpected_exception_stays_inside(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(here: str) -> None:
        if here == place:
            raise RuntimeError(SECRET)

    def router_guard() -> None:
        fail("router")

    def guard() -> None:
        fail("guard")

    def dependency() -> None:
        fail("dependency")

    agent = AgentRouter(dependencies=[Depends(router_guard)])

    @agent.tool(effect="read", dependencies=[Depends(guard)])
    async def look(needed: Annotated[None, Depends(dependency)]) -> None:
        fail("tool")

    with TestClient(app_of(agent)) as client:
        answers = [
            post(client, "look"),
            post(client, "look", headers={"Accept": "text/event-stream"}),
        ]

    for answer in answers:
        assert SECRET not in answer.text
        assert "TOOL_PANIC" in answer.text
    error = answers[0].json()["error"]
    assert answers[0].status_code == 500
    assert (error["category"], error["recoverable"], error["retryable"]) == (
        "internal",
        False,
        False,
    )
    correlation_id = error["details"]["correlation_id"]
    (record,) = [entry for entry in caplog.records if correlation_id in entry.getMessage()]
    assert record.exc_info is not None
    assert SECRET in str(record.exc_info[1])


@pytest.mark.spec("carmy/1 4.1")
async def test_what_is_no_exception_is_not_swallowed() -> None:
    class Farewell(BaseException):
        pass

    agent = AgentRouter()
    seen: list[str] = []

    def dependency() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    @agent.tool(effect="read")
    async def look(needed: Annotated[None, Depends(dependency)]) -> None:
        raise Farewell

    with pytest.raises(Farewell):
        await agent.execute("look")

    assert seen == ["AgentError"]


@pytest.mark.spec("carmy/1 4.1")
def test_wrong_arguments_are_named_and_never_echoed() -> None:
    class Address(BaseModel):
        city: str
        number: Annotated[int, Field(ge=1)]

    agent = AgentRouter()

    @agent.tool(effect="read")
    async def send(to: list[Address], how: Literal["mail", "post"]) -> None: ...

    arguments = {"to": [{"city": 7, "number": SECRET}], "how": SECRET, "hwo": SECRET}

    with TestClient(app_of(agent)) as client:
        answer = post(client, "send", arguments)

    assert answer.status_code == 400
    assert code(answer) == "INVALID_ARGUMENTS"
    assert answer.json()["error"]["recoverable"] is True
    found = {error["path"]: error["type"] for error in answer.json()["error"]["details"]["errors"]}
    assert found == {
        "to[0].city": "string_type",
        "to[0].number": "int_parsing",
        "how": "literal_error",
        "hwo": "extra_forbidden",
    }
    assert all(
        set(error) == {"path", "message", "type"}
        for error in answer.json()["error"]["details"]["errors"]
    )
    assert SECRET not in answer.text


HTTP_ERRORS = [
    (401, "UNAUTHENTICATED", "permission"),
    (403, "FORBIDDEN", "permission"),
    (404, "NOT_FOUND", "not_found"),
    (409, "CONFLICT", "conflict"),
    (429, "RATE_LIMITED", "capacity"),
    (418, "HTTP_ERROR", "validation"),
    (422, "HTTP_ERROR", "validation"),
    (500, "TOOL_PANIC", "internal"),
    (503, "TOOL_PANIC", "internal"),
]


@pytest.mark.spec("carmy/1 3")
@pytest.mark.parametrize(("status", "name", "category"), HTTP_ERRORS)
@pytest.mark.parametrize("place", ["router", "guard", "dependency", "tool"])
def test_the_hosts_own_exceptions_become_errors(
    place: str, status: int, name: str, category: str
) -> None:
    def fail(here: str) -> None:
        if here == place:
            headers = {"Retry-After": "30", "X-Why": "because"}
            raise HTTPException(status, "The detail.", headers=headers)

    def router_guard() -> None:
        fail("router")

    def guard() -> None:
        fail("guard")

    def dependency() -> None:
        fail("dependency")

    agent = AgentRouter(dependencies=[Depends(router_guard)])

    @agent.tool(effect="read", dependencies=[Depends(guard)])
    async def look(needed: Annotated[None, Depends(dependency)]) -> None:
        fail("tool")

    with TestClient(app_of(agent)) as client:
        answer = post(client, "look")

    error = answer.json()["error"]
    is_own_status = place != "tool"
    assert answer.status_code == (status if is_own_status else STATUS[category])
    assert (answer.headers.get("x-why") == "because") is is_own_status
    assert (error["code"], error["category"]) == (name, category)
    assert (error["message"] == "The detail.") is (status < 500)
    assert error["retryable"] is (status == 429)
    assert error.get("retry_after") == (30 if status == 429 else None)
    assert (list(answer.json()) == ["error"]) is (place in ("router", "guard"))


@pytest.mark.spec("carmy/1 4.1")
def test_headers_of_a_refusal_never_replace_ours() -> None:
    def guard() -> None:
        headers = {"Content-Type": "text/plain", "content-length": "1", "Cache-Control": "public"}
        raise HTTPException(429, "No.", headers={**headers, "retry-after": "3"})

    agent = AgentRouter(dependencies=[Depends(guard)])

    with TestClient(app_of(agent)) as client:
        answer = post(client, "look")

    assert code(answer) == "RATE_LIMITED"
    assert answer.headers.get_list("retry-after") == ["3"]
    assert answer.headers.get_list("content-type") == ["application/json"]
    assert answer.headers.get_list("cache-control") == ["no-store"]
    assert answer.headers.get_list("content-length") == [str(len(answer.content))]


@pytest.mark.spec("carmy/1 5")
def test_the_hosts_endpoints_can_fail_alike() -> None:
    app = FastAPI()
    app.add_exception_handler(AgentError, agent_error_handler)

    @app.get("/product")
    async def product() -> None:
        raise AgentError("GONE", "Gone.", ErrorCategory.NOT_FOUND, retry_after=3)

    with TestClient(app) as client:
        answer = client.get("/product")

    assert answer.status_code == 404
    assert answer.headers["retry-after"] == "3"
    assert answer.json()["error"]["code"] == "GONE"


@pytest.mark.spec("carmy/1 4.5")
def test_each_code_of_the_contract_has_a_test() -> None:
    page = (ROOT / "docs" / "wire.md").read_text()
    table = page[page.index("### 4.5") : page.index("## 5")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    codes = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    tests = "".join(path.read_text() for path in (ROOT / "tests/contract").glob("test_carmy_*.py"))

    assert len(codes) > 15
    assert sorted(name for name in codes if f'"{name}"' not in tests) == []


@pytest.mark.parametrize("is_guard", [False, True])
def test_an_error_whose_headers_are_no_texts_is_answered_all_the_same(*, is_guard: bool) -> None:
    def refuse() -> None:
        raise HTTPException(403, headers={"X-Left": 5})  # type: ignore[dict-item]

    agent = AgentRouter(dependencies=[Depends(refuse)] if is_guard else [])

    @agent.tool(effect="read")
    def look(_refused: Annotated[None, Depends(refuse)]) -> None: ...

    answer = post(TestClient(app_of(agent), raise_server_exceptions=False), "look")

    assert (answer.status_code, code(answer)) == (403, "FORBIDDEN")
    assert answer.headers["x-left"] == "5"
