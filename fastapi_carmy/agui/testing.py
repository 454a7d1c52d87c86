"""For the tests of agents: what a run says, without HTTP, and whether it may say that."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ag_ui.core import BaseEvent, EventType, RunAgentInput, RunFinishedEvent

from fastapi_carmy.agui.channel import Channel
from fastapi_carmy.agui.context import RunContext
from fastapi_carmy.agui.outbox import Outbox
from fastapi_carmy.agui.running import parse_frames, run_events
from fastapi_carmy.agui.state import StateType
from fastapi_carmy.agui.tokens import CancelToken
from fastapi_carmy.agui.transform import Chain, TransformerFactory
from fastapi_carmy.agui.verify import Verifier

__all__ = ("Receiver", "assert_events", "collect", "open_context", "run_input")


def run_input(
    text: str | None = None, *, thread_id: str = "thread-1", run_id: str = "run-1", **fields: Any
) -> RunAgentInput:
    """Return an input.

    Args:
        text: What the user says; no message without it.
        thread_id: The conversation's id.
        run_id: The run's id.
        fields: Further fields of `RunAgentInput`.
    """
    spoken = [] if text is None else [{"id": "user-1", "role": "user", "content": text}]

    return RunAgentInput.model_validate(
        {"thread_id": thread_id, "run_id": run_id, "messages": spoken, **fields}
    )


async def collect(
    agent: object,
    run_input: RunAgentInput | None = None,
    *,
    state: Any = None,
    transformers: Sequence[TransformerFactory] = (),
    echo_input: bool = False,
    verify: bool = True,
    timeout_seconds: float | None = None,
    expose_errors: bool = False,
    token: CancelToken | None = None,
    values: Mapping[str, Any] | None = None,
) -> list[BaseEvent]:
    """Run an agent to its end, and return the events that its client gets.

    They are read from what would go over the wire. The options are those of
    `AgentRouter.agui`.

    Args:
        agent: As for `AgentRouter.agui`.
        run_input: What the client sends; an empty conversation by default.
        state: The type of the state.
        transformers: Make the run's transformers.
        echo_input: Whether RUN_STARTED repeats the input.
        verify: Whether events out of order are refused.
        timeout_seconds: How long the run may take.
        expose_errors: Whether unexpected exceptions are told.
        token: Stops the run.
        values: What dependencies would give the agent: parameter → value.
    """
    events = run_events(
        agent,
        _or_default(run_input),
        state=state,
        transformers=transformers,
        echo_input=echo_input,
        verify=verify,
        timeout_seconds=timeout_seconds,
        expose_errors=expose_errors,
        token=token,
        values=values,
    )

    return [event async for event in events]


class Receiver:
    """The client's side of a context that a test made."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def drain(self) -> list[BaseEvent]:
        """Return what was sent since the last time."""
        return parse_frames(b"".join(self._outbox.take_nowait()))

    def close(self) -> None:
        """Go away: whatever would send raises `DisconnectedError` from here."""
        self._outbox.close()


def open_context(
    run_input: RunAgentInput | None = None,
    *,
    state: Any = None,
    transformers: Sequence[TransformerFactory] = (),
    verify: bool = True,
    token: CancelToken | None = None,
) -> tuple[RunContext[Any], Receiver]:
    """Return a run's context, and what receives from it; RUN_STARTED is not sent.

    Args:
        run_input: What the client sends; an empty conversation by default.
        state: The type of the state.
        transformers: Make the run's transformers.
        verify: Whether events out of order are refused.
        token: Stops the run.
    """
    told = _or_default(run_input)
    outbox = Outbox()
    channel = Channel(
        told,
        token or CancelToken(),
        outbox,
        chain=Chain(transformers),
        verify=verify,
        needs_start=False,
    )

    return RunContext(told, channel, StateType[Any](state)), Receiver(outbox)


def assert_events(
    events: Iterable[BaseEvent],
    expected: Sequence[str | EventType | Mapping[str, Any]] | None = None,
    *,
    run_input: RunAgentInput | None = None,
) -> None:
    """Check that a run's events may come in this order, and that they are what is expected.

    Args:
        events: All of one run, RUN_STARTED first.
        expected: One entry an event: its type, or members of its JSON.
        run_input: The run's input; its ids and messages are checked against.

    Raises:
        AssertionError: If an event is out of order, the run does not end, or an event is
            not the expected one.
    """
    seen = list(events)
    _assert_order(seen, run_input)

    if expected is None:
        return

    told = [_told(event) for event in seen]
    types = [event["type"] for event in told]
    wanted = [_wanted(one) for one in expected]

    if types != [one.get("type") or kind for one, kind in zip(wanted, types, strict=False)] or len(
        types
    ) != len(wanted):
        raise AssertionError(f"The events are {types}, not {[one.get('type') for one in wanted]}.")

    for index, (event, want) in enumerate(zip(told, wanted, strict=True)):
        differing = {name: event.get(name) for name in want if event.get(name) != want[name]}

        if differing:
            raise AssertionError(f"Event {index} ({event['type']}) has {differing}, not {want}.")


def _assert_order(events: Sequence[BaseEvent], run_input: RunAgentInput | None) -> None:
    verifier = Verifier(run_input)

    for event in events:
        _note_withheld(verifier, event)

        try:
            verifier.check(event)
        except Exception as error:
            raise AssertionError(str(error)) from error

    if not verifier.has_ended:
        raise AssertionError("The run has no end: neither RUN_FINISHED nor RUN_ERROR.")


def _note_withheld(verifier: Verifier, event: BaseEvent) -> None:
    """Take the run's word for calls whose results a transformer kept from the client."""
    outcome = event.outcome if isinstance(event, RunFinishedEvent) else None

    if outcome is not None and outcome.type == "success":
        listed = outcome.pending_tool_call_ids

        for call in verifier.pending_tool_calls:
            if listed is not None and call not in listed:
                verifier.note_answer(call)


def _told(event: BaseEvent) -> dict[str, Any]:
    return event.model_dump(mode="json", by_alias=True)


def _wanted(expected: str | EventType | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(expected, Mapping):
        return dict(expected)

    return {"type": str(getattr(expected, "value", expected))}


def _or_default(told: RunAgentInput | None) -> RunAgentInput:
    return run_input() if told is None else told
