"""The reference client of AG-UI (`@ag-ui/client`, TypeScript) against our agents.

Needs Node and npm; the client is installed beside this module when it is first needed.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ag_ui import core
from ag_ui.core import BaseEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastapi_carmy.agui import ProtocolViolationError, Verifier
from tests.support.servers import serve_import

HERE = Path(__file__).parent
INSTALL = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
LIMIT_SECONDS = 60

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def node() -> str:
    """Return the Node to run the client with, which is installed by now."""
    found, npm = shutil.which("node"), shutil.which("npm")
    if found is None or npm is None:
        pytest.skip("The reference client needs Node and npm, which are not installed here.")
    if not (HERE / "node_modules" / "@ag-ui" / "client").is_dir():
        done = subprocess.run(  # noqa: S603 - A constant.
            INSTALL, cwd=HERE, capture_output=True, text=True, check=False, timeout=150
        )
        if done.returncode != 0:
            pytest.skip(f"The reference client can't be installed: {done.stderr.strip()[:500]}")
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_import("tests.support.agui_app:app") as server:
        yield server.url


class Report:
    """What the client saw."""

    def __init__(self, node: str, url: str, *, warns: bool = False, **options: Any) -> None:
        script = str(HERE / "agui_client.mjs")
        done = subprocess.run(  # noqa: S603 - The tests' own script.
            [node, script, url, json.dumps(options)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        assert done.stdout, done.stderr
        self.code = done.returncode
        self.told: dict[str, Any] = json.loads(done.stdout)
        assert bool(self.told["warnings"]) == warns, self.told["warnings"]

    def __getitem__(self, name: str) -> Any:
        return self.told[name]

    def texts(self, role: str) -> list[str]:
        return [m["content"] for m in self["messages"] if m["role"] == role and "content" in m]


@pytest.mark.spec("ag-ui N.154")
def test_chatty(node: str, url: str) -> None:
    report = Report(node, f"{url}/chatty", threadId="thread-1", runId="run-1")

    assert report.code == 0, report.told
    assert report.texts("assistant") == ["Hello, world."]
    assert report["request"]["finished"]["pendingToolCallIds"] == ["run-1-call-1"]


@pytest.mark.spec("ag-ui N.154")
@pytest.mark.spec("ag-ui A.4")
def test_verbose(node: str, url: str) -> None:
    report = Report(node, f"{url}/verbose", runId="run-1")

    assert report.code == 0, report.told
    assert {m["id"]: m.get("content") for m in report["messages"]} == {
        "user-1": "hello",
        "run-1-msg-1": "They want the weather.",
        "run-1-msg-2": "Let me check.",
        "run-1-call-1": None,
        "run-1-msg-3": '{"tempC":21}',
    }
    assert report["state"] == {"cityName": "Seoul", "tempC": 21}
    assert report["request"]["finished"]["pendingToolCallIds"] == []


@pytest.mark.spec("ag-ui N.154")
def test_broken(node: str, url: str) -> None:
    report = Report(node, f"{url}/broken")

    assert report.code == 1, report.told
    assert report.texts("assistant") == ["Looking that up…"]
    assert report["events"][-1]["code"] == "AGENT_ERROR"


@pytest.mark.spec("ag-ui N.154")
@pytest.mark.spec("ag-ui M.144")
@pytest.mark.spec("ag-ui M.145")
def test_cautious_asks_and_is_answered(node: str, url: str) -> None:
    first = Report(node, f"{url}/cautious", threadId="t")
    answer = [{"interruptId": "delete-everything", "status": "resolved", "payload": True}]
    second = Report(node, f"{url}/cautious", threadId="t", resume=answer)

    assert first.code == 0, first.told
    assert first["request"]["finished"]["outcome"] == "interrupt"
    assert [one["id"] for one in first["pendingInterrupts"]] == ["delete-everything"]
    assert second.code == 0, second.told
    assert second.texts("assistant") == ["Deleted."]


@pytest.mark.spec("ag-ui N.154")
@pytest.mark.spec("ag-ui L.142")
def test_chunks(node: str, url: str) -> None:
    report = Report(node, f"{url}/chunks")

    assert report.code == 0, report.told
    assert {m["id"]: m.get("content") for m in report["messages"]} == {
        "user-1": "hello",
        "think-1": "Two things to say, then a lookup.",
        "say-1": "Hello, world!",
        "say-2": "Goodbye",
        "call-1": None,
    }
    (call,) = next(m["toolCalls"] for m in report["messages"] if m["id"] == "call-1")
    assert call["function"] == {"name": "search", "arguments": '{"q":"rust"}'}


@pytest.mark.spec("ag-ui L.141")
def test_chunks_are_not_expanded_by_the_server(url: str) -> None:
    answer = httpx2.post(
        f"{url}/chunks", json={"threadId": "t", "runId": "r", "messages": []}, timeout=20
    )

    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert [event["type"] for event in events] == [
        "RUN_STARTED",
        *["REASONING_MESSAGE_CHUNK"] * 3,
        *["TEXT_MESSAGE_CHUNK"] * 5,
        *["TOOL_CALL_CHUNK"] * 2,
        "TEXT_MESSAGE_CHUNK",
        "RUN_FINISHED",
    ]
    ids = [event.get("messageId") for event in events if event["type"] == "TEXT_MESSAGE_CHUNK"]
    assert ids == ["say-1", None, None, "say-2", None, "say-1"]


@pytest.mark.spec("ag-ui N.154")
def test_state_goes_on_from_the_clients(node: str, url: str) -> None:
    report = Report(node, f"{url}/stateful", state={"hits": 7})

    assert report.code == 0, report.told
    assert report["state"] == {"hits": 8}


@pytest.mark.spec("ag-ui J.131")
def test_a_patch_that_fails_is_refused_whole(node: str, url: str) -> None:
    report = Report(node, f"{url}/patches", warns=True)

    assert report.code == 0, report.told
    assert report["state"] == {"seen": 2}


@pytest.mark.spec("ag-ui M.153")
def test_a_forecast_is_thought_said_and_shown_in_order(node: str, url: str) -> None:
    report = Report(node, f"{url}/forecaster")

    assert report.code == 0, report.told
    assert report["state"] == {"city": "Seoul", "tempC": 21, "checked": True}
    assert report.texts("assistant") == ["It is 21 degrees in Seoul."]
    phases = [
        kind
        for kind in report["types"]
        if kind in ("REASONING_END", "TEXT_MESSAGE_END")
        or kind.startswith(("STATE", "RUN_FINISHED"))
    ]
    assert phases == [
        "REASONING_END",
        "TEXT_MESSAGE_END",
        "STATE_SNAPSHOT",
        "STATE_SNAPSHOT",
        "RUN_FINISHED",
    ]


@pytest.mark.spec("ag-ui M.151")
def test_an_activity_is_shown_and_changed(node: str, url: str) -> None:
    report = Report(node, f"{url}/searcher")

    assert report.code == 0, report.told
    (shown,) = [m for m in report["messages"] if m["role"] == "activity"]
    assert shown["content"] == {"query": "tea", "hits": 12, "done": True}


@pytest.mark.spec("ag-ui M.152")
def test_the_next_turn_brings_the_whole_conversation(node: str, url: str) -> None:
    first = Report(node, f"{url}/verbose", threadId="t", runId="run-1")
    asked = {"id": "user-2", "role": "user", "content": "And tomorrow?"}

    second = Report(node, f"{url}/reader", threadId="t", messages=[*first["messages"], asked])

    assert second.code == 0, second.told
    assert second["request"]["finished"]["result"] == [*first["messages"], asked]


@pytest.mark.spec("ag-ui M.144")
@pytest.mark.spec("ag-ui M.145")
@pytest.mark.spec("ag-ui M.146")
@pytest.mark.spec("ag-ui M.147")
@pytest.mark.spec("ag-ui M.148")
def test_a_person_decides(node: str, url: str) -> None:
    def ask(**entry: Any) -> Report:
        return Report(node, f"{url}/deployer", resume=[{"status": "resolved", **entry}])

    first = Report(node, f"{url}/deployer")
    assert first.texts("assistant") == ["Which build?"]
    assert [one["id"] for one in first["pendingInterrupts"]] == ["deploy"]

    deployed = ask(interruptId="deploy", payload={"build": 42})
    assert deployed.texts("assistant") == ["Deployed build 42."]
    cancelled = ask(interruptId="deploy", status="cancelled")
    assert cancelled.texts("assistant") == ["Nothing deployed."]
    other = ask(interruptId="another", payload={"build": 42})
    assert other["request"]["finished"]["outcome"] == "interrupt"
    wrong = ask(interruptId="deploy", payload="42")
    assert wrong.code == 1
    assert wrong["events"][-1]["message"] == "agent error: The answer names no build."


@pytest.mark.spec("ag-ui M.149")
def test_answers_count_in_the_request_that_carries_them(node: str, url: str) -> None:
    def ask(*answered: str) -> list[str]:
        resume = [{"interruptId": one, "status": "resolved", "payload": True} for one in answered]
        options: dict[str, Any] = {"resume": resume} if resume else {}
        report = Report(node, f"{url}/planner", **options)
        assert report.code == 0, report.told
        return [one["id"] for one in report["pendingInterrupts"]] or report.texts("assistant")

    assert ask() == ["flight", "hotel"]
    assert ask("flight") == ["hotel"]
    assert ask("hotel") == ["flight"]
    assert ask("flight", "hotel") == ["Booked."]


@pytest.mark.spec("ag-ui N.156")
def test_refusals_reach_the_application(node: str, url: str) -> None:
    wrong_state = Report(node, f"{url}/stateful", state={"hits": "seven"})
    refused = Report(node, f"{url}/small")

    assert wrong_state.code == 1
    assert wrong_state["events"][-1]["code"] == "SERIALIZATION"
    assert refused.code == 2
    assert refused["failure"]["status"] == 413
    assert refused["failure"]["payload"]["code"] == "INVALID_BODY"


@pytest.mark.spec("ag-ui B.30")
def test_an_address_where_nobody_listens_is_a_transport_error(node: str) -> None:
    report = Report(node, "http://127.0.0.1:9")

    assert report.code == 2
    assert report["failure"].get("status") is None


def test_aborting_stops_the_agents_task_within_a_second(node: str, url: str) -> None:
    report = Report(node, f"{url}/waiting", abortAfterMs=300)
    aborted = time.monotonic()
    stopped = httpx2.get(f"{url}/waiting/stopped", timeout=20)

    assert report["types"][0] == "RUN_STARTED"
    assert stopped.json() == {"saw_cancelled": [True]}
    assert time.monotonic() - aborted < 1


# What our verifier accepts, the client accepts.

IDS = st.sampled_from(["a", "b"])
TAGS = st.sampled_from([None, None, None, "s1", "s2"])
MAYBE = st.none() | IDS


def _events() -> st.SearchStrategy[BaseEvent]:
    role = st.none() | st.sampled_from(["assistant", "user"])
    tagged: dict[str, Any] = {"subagentRunId": TAGS}
    message = {"messageId": IDS, **tagged}
    call = {"toolCallId": IDS, **tagged}
    return st.one_of(
        st.builds(core.TextMessageStartEvent, **message),
        st.builds(core.TextMessageContentEvent, delta=st.just("x"), **message),
        st.builds(core.TextMessageEndEvent, **message),
        st.builds(
            core.TextMessageChunkEvent, messageId=MAYBE, role=role, delta=st.just("x"), **tagged
        ),
        st.builds(
            core.ToolCallStartEvent,
            toolCallName=st.just("t"),
            parentMessageId=MAYBE,
            **call,
        ),
        st.builds(core.ToolCallArgsEvent, delta=st.just("x"), **call),
        st.builds(core.ToolCallEndEvent, **call),
        st.builds(
            core.ToolCallChunkEvent,
            toolCallId=MAYBE,
            toolCallName=st.sampled_from([None, "t", "u"]),
            parentMessageId=MAYBE,
            delta=st.just("x"),
            **tagged,
        ),
        st.builds(
            core.ToolCallResultEvent,
            content=st.just("x"),
            role=st.just("tool"),
            **call,
            messageId=IDS,
        ),
        st.builds(core.ReasoningStartEvent, **message),
        st.builds(core.ReasoningMessageStartEvent, role=st.just("reasoning"), **message),
        st.builds(core.ReasoningMessageContentEvent, delta=st.just("x"), **message),
        st.builds(core.ReasoningMessageEndEvent, **message),
        st.builds(core.ReasoningEndEvent, **message),
        st.builds(core.ReasoningMessageChunkEvent, messageId=MAYBE, delta=st.just("x"), **tagged),
        st.builds(core.StepStartedEvent, stepName=IDS, **tagged),
        st.builds(core.StepFinishedEvent, stepName=IDS, **tagged),
        st.builds(core.CustomEvent, name=st.just("x"), value=st.none(), **tagged),
        st.builds(
            core.SubagentStartedEvent,
            subagentRunId=st.sampled_from(["s1", "s2"]),
            name=st.just("x"),
            parentSubagentRunId=st.sampled_from([None, "s1", "s2"]),
        ),
        st.builds(core.SubagentFinishedEvent, subagentRunId=st.sampled_from(["s1", "s2"])),
        st.builds(
            core.ReasoningEncryptedValueEvent,
            subtype=st.sampled_from(["tool-call", "message"]),
            entityId=IDS,
            encryptedValue=st.just("x"),
            **tagged,
        ),
        st.builds(
            core.ActivitySnapshotEvent,
            activityType=st.just("x"),
            content=st.just({}),
            replace=st.sampled_from([None, False]),
            **message,
        ),
        st.builds(core.ActivityDeltaEvent, activityType=st.just("x"), patch=st.just([]), **message),
        st.builds(
            core.MessagesSnapshotEvent,
            messages=st.lists(
                st.builds(
                    core.AssistantMessage,
                    id=IDS,
                    role=st.just("assistant"),
                    subagentRunId=TAGS,
                ),
                max_size=1,
            ),
        ),
    )


def _accepted(events: list[BaseEvent]) -> list[BaseEvent]:
    """Return the run that is left when our verifier leaves out what it refuses."""
    verifier = Verifier()
    kept: list[BaseEvent] = []
    for event in [core.RunStartedEvent(thread_id="t", run_id="r"), *events]:
        try:
            verifier.check(event)
        except ProtocolViolationError:
            continue
        kept.append(event)
    for event in [
        *verifier.closing_events(),
        core.RunFinishedEvent(thread_id="t", run_id="r"),
    ]:
        verifier.check(event)
        kept.append(event)
    return kept


def test_what_the_verifier_accepts_the_client_accepts(node: str) -> None:
    runs: list[list[BaseEvent]] = []

    @settings(max_examples=400, suppress_health_check=list(HealthCheck))
    @given(st.lists(_events(), min_size=5, max_size=40))
    def collect(events: list[BaseEvent]) -> None:
        runs.append(_accepted(events))

    collect()
    lines = "".join(
        json.dumps([event.model_dump(mode="json", by_alias=True) for event in run]) + "\n"
        for run in runs
    )
    done = subprocess.run(  # noqa: S603 - The tests' own script.
        [node, str(HERE / "agui_client.mjs"), "--verify"],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )

    verdicts = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(verdicts) == len(runs), done.stderr
    refused = [
        (verdict, [event.model_dump(mode="json", by_alias=True) for event in run])
        for verdict, run in zip(verdicts, runs, strict=True)
        if verdict is not None
    ]
    assert refused == []
    assert max(len(run) for run in runs) > 10
