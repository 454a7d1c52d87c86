"""What an agent learns of its run, and what it reports beside events."""

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from ag_ui import core
from anyio.lowlevel import checkpoint

from fastapi_carmy.agui.context import RunContext
from fastapi_carmy.agui.errors import EventError, RunCancelledError
from fastapi_carmy.agui.testing import assert_events, collect, open_context, run_input
from fastapi_carmy.agui.tokens import CancelToken

Run = RunContext[Any]


@pytest.mark.spec("ag-ui E.61")
def test_the_request_is_at_hand() -> None:
    told = run_input(
        "hi",
        parentRunId="run-0",
        tools=[{"name": "search", "description": "d"}],
        context=[{"description": "d", "value": "v"}],
        forwardedProps={"tenant": "acme"},
    )

    run, _ = open_context(told)

    assert (run.thread_id, run.run_id, run.parent_run_id) == ("thread-1", "run-1", "run-0")
    assert len(run.messages) == 1
    assert run.tool("search") == run.tools[0]
    assert run.tool("x") is None
    assert run.context[0].value == "v"
    assert run.forwarded_props["tenant"] == "acme"


def test_what_was_not_sent_is_empty() -> None:
    run, _ = open_context()

    assert (run.tools, run.context, run.forwarded_props, run.resume()) == ([], [], None, [])


@pytest.mark.spec("ag-ui F.86")
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("add milk", "add milk"),
        ("", ""),
        (
            [
                {"type": "text", "text": "a"},
                {"type": "image", "source": {"type": "url", "value": "x"}},
                {"type": "text", "text": "b"},
            ],
            "a\nb",
        ),
    ],
)
def test_the_last_user_text_is_the_newest_users(content: Any, text: str) -> None:
    messages = [
        {"id": "1", "role": "user", "content": "old"},
        {"id": "2", "role": "user", "content": content},
        {"id": "3", "role": "assistant", "content": "x"},
    ]

    run, _ = open_context(run_input(messages=messages))

    assert run.last_user_text == text


@pytest.mark.spec("ag-ui F.86")
def test_without_a_user_message_there_is_no_user_text() -> None:
    run, _ = open_context()

    assert run.last_user_text is None


@pytest.mark.spec("ag-ui F.87")
def test_an_empty_run_id_gives_a_prefix_all_the_same() -> None:
    run, _ = open_context(run_input(run_id=""))

    assert run.new_message_id() == "run-msg-1"
    assert run.new_tool_call_id() == "run-call-1"


def test_ids_of_the_input_are_skipped() -> None:
    call = {"id": "run-1-call-1", "type": "function", "function": {"name": "f", "arguments": ""}}
    told = run_input(messages=[{"id": "run-1-msg-1", "role": "assistant", "toolCalls": [call]}])

    run, _ = open_context(told)

    assert run.new_message_id() == "run-1-msg-2"
    assert run.new_tool_call_id() == "run-1-call-2"


@pytest.mark.spec("ag-ui E.59")
async def test_an_answer_to_an_interrupt_is_found_by_its_id() -> None:
    async def agent(run: Run) -> None:
        assert run.is_resume
        answer = run.resume_for("i-1")
        assert answer is not None
        assert answer.status == "resolved"
        assert answer.payload is True
        assert run.resume_for("i-2") is None
        await run.say("Deleted.")

    told = run_input(resume=[{"interruptId": "i-1", "status": "resolved", "payload": True}])

    assert len(await collect(agent, told)) == 5


@pytest.mark.spec("ag-ui E.59")
def test_an_empty_list_of_answers_is_no_resume() -> None:
    run, _ = open_context(run_input(resume=[]))

    assert not run.is_resume


@pytest.mark.spec("ag-ui E.57")
async def test_a_question_arrives_with_all_that_was_said() -> None:
    async def agent(run: Run) -> object:
        return run.interrupt(
            id="i-1",
            reason="tool_approval",
            message="Really?",
            tool_call_id="c",
            response_schema={"type": "object"},
            expires_at=datetime(2030, 1, 1, tzinfo=UTC),
            metadata={"a": None},
        )

    assert_events(
        await collect(agent),
        [
            "RUN_STARTED",
            {
                "type": "RUN_FINISHED",
                "outcome": {
                    "type": "interrupt",
                    "interrupts": [
                        {
                            "id": "i-1",
                            "reason": "tool_approval",
                            "message": "Really?",
                            "toolCallId": "c",
                            "responseSchema": {"type": "object"},
                            "expiresAt": "2030-01-01T00:00:00+00:00",
                            "metadata": {"a": None},
                        }
                    ],
                },
            },
        ],
    )


async def test_several_questions_keep_their_order_and_an_id_is_made() -> None:
    run, _ = open_context()

    outcome = run.interrupt(core.Interrupt(id="a", reason="x"), reason="y")

    assert isinstance(outcome, core.RunFinishedInterruptOutcome)
    assert [one.id for one in outcome.interrupts] == ["a", "run-1-interrupt-1"]


@pytest.mark.spec("ag-ui E.58")
async def test_an_interrupt_without_a_question_fails_the_run() -> None:
    async def agent(run: Run) -> object:
        return run.interrupt()

    assert_events(await collect(agent), ["RUN_STARTED", {"type": "RUN_ERROR", "code": "PROTOCOL"}])


@pytest.mark.spec("ag-ui E.73")
@pytest.mark.parametrize("fails", [False, True])
async def test_the_end_tells_the_tokens_that_were_used(fails: bool) -> None:
    async def agent(run: Run) -> None:
        run.usage(provider="p", model="m", input_tokens=2, cached_input_tokens=0)
        run.usage(provider="p", model="m", input_tokens=3)
        run.usage(model="other", output_tokens=1)
        if fails:
            raise LookupError

    *_, last = await collect(agent)

    assert last.model_dump(mode="json", by_alias=True)["usage"] == [
        {"provider": "p", "model": "m", "inputTokens": 5, "cachedInputTokens": 0},
        {"model": "other", "outputTokens": 1},
    ]


async def test_a_sum_that_no_client_can_read_is_told_in_parts() -> None:
    async def agent(run: Run) -> None:
        for _ in range(2):
            run.usage(input_tokens=2**53 - 1)

    *_, last = await collect(agent)

    assert isinstance(last, core.RunFinishedEvent)
    assert last.usage is not None
    assert len(last.usage) == 2


def test_a_negative_count_is_refused() -> None:
    run, _ = open_context()

    with pytest.raises(EventError):
        run.usage(input_tokens=-1)


def test_a_stopped_run_sends_nothing_more() -> None:
    token = CancelToken()
    run, received = open_context(token=token)
    message = run.message()
    received.drain()
    assert not run.is_cancelled
    run.check_cancelled()

    token.cancel()

    assert run.is_cancelled
    with pytest.raises(RunCancelledError):
        run.check_cancelled()
    with pytest.raises(RunCancelledError):
        run.message()
    message.close()
    assert [event.type.value for event in received.drain()] == ["TEXT_MESSAGE_END"]


async def test_work_is_awaited_until_the_run_is_stopped() -> None:
    run, _ = open_context()
    cleaned_up = anyio.Event()

    async def quick() -> int:
        return 7

    async def endless() -> int:
        try:
            await anyio.sleep_forever()
        finally:
            await checkpoint()
            cleaned_up.set()
        return 1

    with anyio.fail_after(5):
        assert await run.until_cancelled(quick()) == 7

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.cancelled)
            await anyio.wait_all_tasks_blocked()
            run.cancel_token.cancel()

        assert await run.until_cancelled(endless()) is None
        await run.cancelled()


async def test_what_the_awaited_work_raises_is_raised() -> None:
    run, _ = open_context()

    async def broken() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await run.until_cancelled(broken())


async def test_an_interrupted_wait_interrupts_the_work_too() -> None:
    run, _ = open_context()
    cleaned_up = anyio.Event()

    async def endless() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned_up.set()

    with anyio.fail_after(5), anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.until_cancelled, endless())
            await anyio.wait_all_tasks_blocked()
            scope.cancel()

    assert cleaned_up.is_set()


async def test_drain_waits_for_the_client() -> None:
    run, received = open_context()
    await run.custom("app.x", 1)
    drained = anyio.Event()

    async def wait() -> None:
        await run.drain()
        drained.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert not drained.is_set()
            received.drain()

    assert drained.is_set()
