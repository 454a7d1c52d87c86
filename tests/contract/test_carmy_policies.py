"""Policies and confirmation on the wire. Source: carmy/1, sections 4.1 and 4.4."""

import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from fastapi_carmy import AgentError, AgentRouter, Caller, Effect, ErrorCategory
from fastapi_carmy.policies import PolicyCall, RateLimit, RequireToolPermission
from tests.support.calls import app_of, caller_from_headers, code, post
from tests.support.clock import Clock

ANNA = {"X-Principal": "anna"}


@pytest.mark.spec("carmy/1 7.11")
@pytest.mark.spec("carmy/1 4.4")
@pytest.mark.parametrize("how", ["destructive", "required"])
def test_what_needs_a_person_needs_its_confirmation(how: str) -> None:
    agent = AgentRouter(caller=caller_from_headers)
    runs: list[str] = []

    async def wipe(name: str) -> str:
        runs.append(name)
        return name

    if how == "destructive":
        agent.add_tool(wipe, effect=Effect.DESTRUCTIVE)
    else:
        agent.add_tool(wipe, effect="none", confirmation="required")
    confirmed = {**ANNA, "X-Permissions": "confirm:wipe"}
    other = {**ANNA, "X-Permissions": "confirm:other confirm tool:wipe"}

    with TestClient(app_of(agent)) as client:
        refused = post(client, "wipe", {"name": "a"}, headers=ANNA, request_id="r")
        with_other = post(client, "wipe", {"name": "a"}, headers=other)
        blind = post(client, "wipe", {"nonsense": 1}, headers=ANNA, request_id="")
        done = post(client, "wipe", {"name": "a"}, headers=confirmed, request_id="r")
        replay_refused = post(client, "wipe", {"name": "a"}, headers=ANNA, request_id="r")

    for answer in (refused, with_other, blind, replay_refused):
        assert answer.status_code == 403
        assert code(answer) == "CONFIRMATION_REQUIRED"
        assert answer.json()["error"]["category"] == "permission"
        assert answer.json()["error"]["recoverable"] is True
    (action,) = refused.json()["_agent"]["next_actions"]
    assert action["tool"] == "wipe"
    assert "confirm:wipe" in action["reason"]
    assert "person" in action["reason"]
    assert done.json()["data"] == "a"
    assert runs == ["a"]


@pytest.mark.spec("carmy/1 4.4")
@pytest.mark.parametrize(
    "body",
    [
        {"permissions": ["confirm:wipe"]},
        {"confirmation": "approved"},
        {"context": {"permissions": ["confirm:wipe"]}},
        {"arguments": {"confirmation": True}},
        {"arguments": {"caller": {"permissions": ["confirm:wipe"]}}},
    ],
    ids=["permissions", "confirmation", "context", "argument", "caller-argument"],
)
def test_nothing_in_a_request_can_confirm_it(body: dict[str, object]) -> None:
    agent = AgentRouter()
    runs: list[str] = []

    @agent.tool(effect="destructive")
    async def wipe(caller: Caller) -> None:
        runs.append("wipe")

    with TestClient(app_of(agent)) as client:
        answer = client.post("/agent/execute", json={"tool": "wipe", **body})

    assert code(answer) in ("INVALID_REQUEST", "CONFIRMATION_REQUIRED")
    assert runs == []


@pytest.mark.spec("carmy/1 4.5")
def test_a_caller_runs_the_tools_it_has_permission_for() -> None:
    agent = AgentRouter(caller=caller_from_headers, policies=[RequireToolPermission()])

    @agent.tool(effect="read")
    async def look() -> str:
        return "x"

    with TestClient(app_of(agent)) as client:
        refused = post(client, "look", headers=ANNA)
        allowed = post(client, "look", headers={**ANNA, "X-Permissions": "tool:look"})

    assert (refused.status_code, code(refused)) == (403, "FORBIDDEN")
    assert "tool:look" in refused.json()["error"]["message"]
    assert allowed.json()["data"] == "x"


@pytest.mark.spec("carmy/1 7.18")
def test_a_rate_is_limited_for_each_caller() -> None:
    clock = Clock()
    agent = AgentRouter(
        caller=caller_from_headers, policies=[RateLimit(2, per_seconds=60, clock=clock)]
    )

    @agent.tool(effect="write")
    async def count(x: str) -> str:
        return x

    with TestClient(app_of(agent)) as client:
        refused = post(client, "count", {"x": 7}, headers=ANNA)
        first = post(client, "count", {"x": "a"}, headers=ANNA, request_id="r")
        replay = post(client, "count", {"x": "a"}, headers=ANNA, request_id="r")
        clock.now = 20
        second = post(client, "count", {"x": "b"}, headers=ANNA)
        third = post(client, "count", {"x": "c"}, headers=ANNA, request_id="s")
        of_another = post(client, "count", {"x": "c"}, headers={"X-Principal": "bob"})
        clock.now = 60
        later = post(client, "count", {"x": "c"}, headers=ANNA, request_id="s")

    assert code(refused) == "INVALID_ARGUMENTS"
    assert [answer.status_code for answer in (first, replay, second)] == [200, 200, 200]
    error = third.json()["error"]
    assert third.status_code == 503
    assert (error["code"], error["category"]) == ("RATE_LIMITED", "capacity")
    assert error["retryable"] is error["recoverable"] is True
    assert error["retry_after"] == 40
    assert third.headers["retry-after"] == "40"
    assert third.json()["_agent"]["next_actions"][0]["after_ms"] == 40_000
    assert of_another.status_code == later.status_code == 200


class Witness:
    """Writes down what it sees, and refuses what it is told to."""

    def __init__(self, name: str, seen: list[object], *, refuses: bool = False) -> None:
        self.name = name
        self._seen = seen
        self._refuses = refuses

    async def check(self, call: PolicyCall) -> None:
        self._seen.append((self.name, call.tool.name, dict(call.arguments), call.request_id))
        if self._refuses:
            raise AgentError(self.name, "No.", ErrorCategory.PERMISSION)


@pytest.mark.spec("carmy/1 4.1")
def test_policies_are_asked_in_order_before_ids_and_arguments_are_checked() -> None:
    seen: list[object] = []
    agent = AgentRouter(
        policies=[
            Witness("FIRST", seen),
            Witness("SECOND", seen, refuses=True),
            Witness("THIRD", seen),
        ]
    )

    @agent.tool(effect="read")
    async def look(text: str) -> None: ...

    @agent.tool(effect="destructive")
    async def wipe() -> None: ...

    with TestClient(app_of(agent)) as client:
        answer = post(client, "look", {"nonsense": [1]}, request_id="x" * 300)
        destructive = post(client, "wipe")
        unknown = post(client, "nothing")

    assert code(answer) == "SECOND"
    assert code(destructive) == "CONFIRMATION_REQUIRED"
    assert code(unknown) == "TOOL_NOT_FOUND"
    assert seen == [
        ("FIRST", "look", {"nonsense": [1]}, "x" * 300),
        ("SECOND", "look", {"nonsense": [1]}, "x" * 300),
    ]


@pytest.mark.spec("carmy/1 4.1")
def test_an_id_is_checked_before_the_arguments() -> None:
    agent = AgentRouter()

    @agent.tool(effect="read")
    async def look(text: str) -> None: ...

    with TestClient(app_of(agent)) as client:
        both = post(client, "look", {"text": 7}, request_id="")
        arguments = post(client, "look", {"text": 7}, request_id="r")

    assert (code(both), code(arguments)) == ("INVALID_ID", "INVALID_ARGUMENTS")


@pytest.mark.spec("carmy/1 4.1")
def test_policies_check_replays_too_and_admit_only_what_starts() -> None:
    seen: list[str] = []

    class Both:
        def check(self, call: PolicyCall) -> None:
            seen.append("check")

        async def admit(self, call: PolicyCall) -> None:
            seen.append("admit")

    agent = AgentRouter(policies=[Both()])

    @agent.tool(effect="write")
    async def count(x: str) -> None: ...

    with TestClient(app_of(agent)) as client:
        for arguments in ({"x": 7}, {"x": "a"}, {"x": "a"}, {"x": "b"}):
            post(client, "count", arguments, request_id="r")

    assert seen == ["check", "check", "admit", "check", "check"]


def test_a_policy_that_fails_lets_nothing_pass(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[str] = []

    class Broken:
        def check(self, call: PolicyCall) -> None:
            raise RuntimeError("secret")

    agent = AgentRouter(policies=[Broken()])

    @agent.tool(effect="read")
    async def look() -> None:
        runs.append("look")

    with TestClient(app_of(agent)) as client:
        answer = post(client, "look")

    assert (answer.status_code, code(answer)) == (500, "TOOL_PANIC")
    assert "secret" not in answer.text
    assert "secret" in caplog.text
    assert runs == []


def test_a_policy_may_refuse_in_the_hosts_own_words() -> None:
    class Closed:
        def check(self, call: PolicyCall) -> None:
            raise HTTPException(409, "Closed on Sundays.")

    agent = AgentRouter(policies=[Closed()])

    @agent.tool(effect="read")
    async def look() -> None: ...

    with TestClient(app_of(agent)) as client:
        answer = post(client, "look")

    assert (answer.status_code, code(answer)) == (409, "CONFLICT")
    assert answer.json()["error"]["message"] == "Closed on Sundays."


@pytest.mark.parametrize(
    ("per_caller", "suggested"), [(True, None), (False, "export_payroll")], ids=["own", "shared"]
)
def test_a_suggestion_names_no_tool_that_the_callers_catalog_hides(
    per_caller: bool, suggested: str | None
) -> None:
    agent = AgentRouter(
        caller=caller_from_headers,
        policies=[RequireToolPermission()],
        per_caller_catalog=per_caller,
    )

    async def run() -> None: ...

    for name in ("list_items", "export_payroll"):
        agent.add_tool(run, effect="read", name=name)

    headers = {"X-Permissions": "tool:list_items"}

    with TestClient(app_of(agent)) as client:
        hidden = post(client, "export_payrol", headers=headers).json()["error"]
        shown = post(client, "list_item", headers=headers).json()["error"]

    assert hidden.get("suggested_action") == suggested
    assert shown["suggested_action"] == "list_items"
