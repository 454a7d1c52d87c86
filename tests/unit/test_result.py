"""Answers, made once as bytes. Source: carmy/1, section 2.2."""

import re
from itertools import islice

import pytest
from pydantic_core import from_json

from fastapi_carmy import AgentError, ErrorCategory
from fastapi_carmy.next_actions import next_actions
from fastapi_carmy.result import ExecutionResult, NextAction, execution_ids, status_of
from fastapi_carmy.runtime_errors import busy, execution_uncertain, store_error

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def test_a_success_is_written_in_the_contracts_order() -> None:
    action = NextAction(tool="order", reason="Order it.", arguments={"sku": "é"}, after_ms=5)

    result = ExecutionResult.completed("exec_1", b'[1,"a"]', cacheable=True, next_actions=[action])

    assert result.body.decode() == (
        '{"execution_id":"exec_1","status":"completed","data":[1,"a"],'
        '"_agent":{"cacheable":true,"next_actions":[{"tool":"order","arguments":{"sku":"é"},'
        '"reason":"Order it.","after_ms":5}]}}'
    )
    assert result.data == [1, "a"]
    assert result.cacheable
    assert result.next_actions == (action,)
    assert (result.status, result.error, result.replayed) == ("completed", None, False)


def test_a_failure_is_written_in_the_contracts_order() -> None:
    error = AgentError("NO", "No.", ErrorCategory.CONFLICT)

    result = ExecutionResult.failed("exec_1", error)

    assert result.body.decode() == (
        '{"execution_id":"exec_1","status":"failed","error":{"code":"NO","message":"No.",'
        '"category":"conflict","recoverable":false,"retryable":false},'
        '"_agent":{"cacheable":false,"next_actions":[]}}'
    )
    assert result.error is error
    assert result.data is None
    assert not result.cacheable


def test_a_replay_is_what_was_recorded() -> None:
    error = AgentError(
        "LATER",
        "Later.",
        ErrorCategory.CAPACITY,
        retryable=True,
        retry_after=3,
        suggested_action="look",
        details=[1, {"a": None}],
    )
    failed = ExecutionResult.failed("exec_1", error)
    completed = ExecutionResult.completed("exec_1", b"null", cacheable=False)

    replay = ExecutionResult.replay("exec_1", failed.status, failed.body)
    success = ExecutionResult.replay("exec_1", completed.status, completed.body)

    assert replay.error is not None
    assert replay.error.as_dict() == error.as_dict()
    assert replay.error.status_code == error.status_code
    assert (replay.body, replay.status, replay.replayed) == (failed.body, "failed", True)
    assert (success.body, success.status, success.error) == (completed.body, "completed", None)


def test_a_success_is_replayed_unread() -> None:
    unreadable = b"{"

    result = ExecutionResult.replay("exec_1", "completed", unreadable)

    assert (result.body, result.status, result.error) == (unreadable, "completed", None)


@pytest.mark.parametrize("category", list(ErrorCategory))
def test_the_status_follows_the_category(category: ErrorCategory) -> None:
    expected = {"cancelled": "cancelled", "timeout": "timed_out"}.get(category, "failed")

    assert status_of(AgentError("NO", "No.", category)) == expected


SUGGESTED = NextAction(tool="look", reason="Look.")


@pytest.mark.parametrize(
    ("error", "tools", "after_ms"),
    [
        (AgentError("CONFIRMATION_REQUIRED", "", ErrorCategory.PERMISSION), ["t", "look"], None),
        (busy(), ["t", "look"], 1000),
        (store_error(), ["t", "look"], 1000),
        (
            AgentError("LATER", "", ErrorCategory.CONFLICT, retryable=True),
            ["t", "look"],
            None,
        ),
        (execution_uncertain("e", "now", "running"), ["t", "look"], 1000),
        (execution_uncertain("e", "now", "abandoned"), ["look"], None),
        (AgentError("EXECUTION_UNCERTAIN", "", ErrorCategory.CONFLICT), ["look"], None),
        (AgentError("NO", "", ErrorCategory.CONFLICT, recoverable=True), ["look"], None),
    ],
    ids=["confirm", "busy", "store", "retry", "running", "abandoned", "no-details", "other"],
)
def test_what_helps_comes_before_what_the_tool_suggested(
    error: AgentError, tools: list[str], after_ms: int | None
) -> None:
    actions = next_actions("t", error, [SUGGESTED])

    assert [action.tool for action in actions] == tools
    assert actions[-1] is SUGGESTED
    assert actions[0].after_ms == after_ms
    assert actions[0].arguments is None


def test_what_json_cannot_hold_is_replaced_in_suggestions() -> None:
    action = NextAction(tool="t", reason="\ud800", arguments={"a": object()})

    body = ExecutionResult.completed("e", b"1", cacheable=False, next_actions=[action]).body

    assert from_json(body)["_agent"]["next_actions"][0]["tool"] == "t"


def test_an_execution_id_is_a_random_uuid_of_its_own() -> None:
    ids = list(islice(execution_ids(), 1_000))

    assert len({*ids}) == 1_000
    assert all(re.fullmatch(f"exec_{_UUID}", one) for one in ids)
    assert {one[24] for one in ids} == set("89ab")
