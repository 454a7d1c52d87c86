"""A whole run without HTTP: for endpoints written by hand, and for tests."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from ag_ui.core import BaseEvent, RunAgentInput
from ag_ui.core.events import Event
from pydantic import TypeAdapter

from fastapi_carmy.agui.agents import agent_of
from fastapi_carmy.agui.run import Run, RunOptions
from fastapi_carmy.agui.state import StateType
from fastapi_carmy.agui.tokens import CancelToken
from fastapi_carmy.agui.transform import TransformerFactory
from fastapi_carmy.cancellation import join, start_task

__all__ = ("parse_frames", "run_events")

_EVENT: TypeAdapter[BaseEvent] = TypeAdapter(Event)


async def run_events(
    agent: object,
    run_input: RunAgentInput,
    *,
    state: Any = None,
    transformers: Sequence[TransformerFactory] = (),
    echo_input: bool = False,
    verify: bool = True,
    timeout_seconds: float | None = None,
    expose_errors: bool = False,
    token: CancelToken | None = None,
    values: Mapping[str, Any] | None = None,
) -> AsyncGenerator[BaseEvent]:
    """Run an agent, and yield the events that its client gets, from RUN_STARTED to the end.

    They are read from what would go over the wire. Closing the iterator earlier stops
    the run, as a client that leaves does.

    Args:
        agent: See `AgentRouter.agui`, for the options as well.
        run_input: What the client sends.
        state: The type of the state.
        transformers: Make the run's transformers.
        echo_input: Whether RUN_STARTED repeats the input.
        verify: Whether events out of order are refused.
        timeout_seconds: How long the run may take.
        expose_errors: Whether the text of unexpected exceptions is told.
        token: Stops the run.
        values: What dependencies would give the agent: parameter → value.
    """
    found = agent_of(agent)
    options = RunOptions(
        state_type=StateType(found.state_type if state is None else state),
        transformers=transformers,
        echo_input=echo_input,
        verify=verify,
        timeout_seconds=timeout_seconds,
        expose_errors=expose_errors,
    )
    run = Run(run_input, options, token=token)
    task = start_task(run.drive(found.bind(dict(values or {}))))

    try:
        async for frames in run.frames():
            for event in parse_frames(frames):
                yield event
    finally:
        if not run.has_ended:
            run.disconnect()

        await join(task)


def parse_frames(frames: bytes) -> list[BaseEvent]:
    """Return the events in whole frames."""
    return [
        _EVENT.validate_json(frame.removeprefix(b"data: "))
        for frame in frames.split(b"\n\n")
        if frame.startswith(b"data: ")
    ]
