"""One record for each call that reached the runtime. Source: carmy/1, section 6."""

import re
from collections.abc import Callable
from typing import Annotated

import pytest
from fastapi import Depends, Header, HTTPException
from fastapi.testclient import TestClient

from fastapi_carmy import AgentError, AgentRouter, Caller, ErrorCategory
from fastapi_carmy.audit import ExecutionRecord
from tests.support.calls import app_of, caller_from_headers, post, stream

pytestmark = pytest.mark.spec("carmy/1 6")

SECRET = "hunter2-hunter2"
ANNA = {"X-Principal": "anna", "X-Session": "s1", "X-Token": "token"}
Call = Callable[[TestClient], object]


class Trail:
    def __init__(self) -> None:
        self.records: list[ExecutionRecord] = []

    async def record(self, record: ExecutionRecord) -> None:
        self.records.append(record)


def audited(trail: Trail) -> AgentRouter:
    def router_guard(x_token: Annotated[str, Header()] = "") -> None:
        if x_token != "token":
            raise HTTPException(401)

    def tool_guard() -> None:
        raise HTTPException(403)

    agent = AgentRouter(
        caller=caller_from_headers,
        dependencies=[Depends(router_guard)],
        audit=[trail],
        timeout_seconds=20,
    )

    @agent.tool(effect="write")
    async def order(sku: str) -> str:
        if sku == "none":
            raise AgentError("NO_PRODUCT", f"No {SECRET}.", ErrorCategory.NOT_FOUND)
        return f"{SECRET} {sku}"

    @agent.tool(effect="read", dependencies=[Depends(tool_guard)])
    async def guarded() -> None: ...

    @agent.tool(effect="destructive")
    async def wipe() -> None: ...

    return agent


@pytest.mark.parametrize(
    ("tool", "arguments", "effect", "status", "error_code"),
    [
        ("order", {"sku": SECRET}, "write", "completed", None),
        ("order", {"sku": "none"}, "write", "failed", "NO_PRODUCT"),
        ("order", {"sku": 7}, "write", "failed", "INVALID_ARGUMENTS"),
        ("guarded", {}, "read", "failed", "FORBIDDEN"),
        ("wipe", {}, "destructive", "failed", "CONFIRMATION_REQUIRED"),
        ("nothing", {}, None, "failed", "TOOL_NOT_FOUND"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
def test_each_call_leaves_one_record_with_every_key(
    tool: str,
    arguments: dict[str, object],
    effect: str | None,
    status: str,
    error_code: str | None,
    *,
    streamed: bool,
) -> None:
    trail = Trail()
    headers = {**ANNA, "Accept": "text/event-stream"} if streamed else ANNA

    with TestClient(app_of(audited(trail))) as client:
        post(client, tool, arguments, request_id="r", headers=headers)

    (record,) = trail.records
    fields = record.as_dict()
    assert SECRET not in str(fields)
    assert re.fullmatch(r"exec_[0-9a-f-]{36}", str(fields.pop("execution_id")))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", str(fields.pop("started_at")))
    assert isinstance(fields.pop("duration_ms"), int)
    assert fields == {
        "request_id": "r",
        "principal": "anna",
        "session": "s1",
        "tool": tool,
        "effect": effect,
        "status": status,
        "error_code": error_code,
        "replayed": False,
    }


def test_a_replay_is_recorded_as_one() -> None:
    trail = Trail()

    with TestClient(app_of(audited(trail))) as client:
        post(client, "order", {"sku": "a"}, request_id="r", headers=ANNA)
        stream(client, "order", {"sku": "a"}, request_id="r", headers=ANNA)

    first, second = trail.records
    assert [record.replayed for record in trail.records] == [False, True]
    assert second.status == "completed"
    assert second.execution_id != first.execution_id


@pytest.mark.parametrize("headers", [{"X-Principal": "anna"}, {**ANNA, "Content-Type": "a/b"}])
def test_what_does_not_reach_the_runtime_is_the_hosts(headers: dict[str, str]) -> None:
    trail = Trail()

    with TestClient(app_of(audited(trail))) as client:
        answer = client.post("/agent/execute", content=b"{}", headers=headers)
        client.get("/agent/tools", headers=ANNA)

    assert answer.status_code in (400, 401)
    assert trail.records == []


async def test_calls_of_the_host_are_recorded_too() -> None:
    trail = Trail()

    await audited(trail).execute("order", {"sku": "a"}, caller=Caller(principal="job"))

    (record,) = trail.records
    assert (record.principal, record.session, record.request_id) == ("job", None, None)


def test_a_sink_that_fails_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def record(self, record: ExecutionRecord) -> None:
            raise RuntimeError(SECRET)

    trail = Trail()
    agent = AgentRouter(audit=[Broken(), trail])

    @agent.tool(effect="read")
    async def look() -> str:
        return "x"

    with TestClient(app_of(agent)) as client:
        answer = post(client, "look")

    assert answer.json()["data"] == "x"
    assert len(trail.records) == 1
    assert "An audit sink failed" in caplog.text
