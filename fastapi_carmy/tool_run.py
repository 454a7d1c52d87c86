"""How a tool runs: in its turn, with its dependencies, in whichever way its function needs."""

import logging
import time
from collections.abc import Callable
from functools import partial
from inspect import isawaitable

from pydantic_core import from_json

from fastapi_carmy.cancellation import Interrupted, NoThreadError
from fastapi_carmy.events import ToolStarted
from fastapi_carmy.invocation import call_async_generator, iterate
from fastapi_carmy.state import ExecutionState, Phase
from fastapi_carmy.threads import ThreadCall
from fastapi_carmy.tool import Tool, ToolKind

__all__ = ("await_thread", "give_turn", "perform")

_logger = logging.getLogger(__name__)

# A member is looked up in its enum each time that it is named, which takes as long as a call.
_ASYNC = ToolKind.ASYNC
_OPENING, _RUNNING, _RETURNED = Phase.OPENING, Phase.RUNNING, Phase.RETURNED


async def perform(state: ExecutionState, tool: Tool) -> object:
    """Wait for the tool's turn, open its dependencies, run it.

    Its deadline counts already, and it may be interrupted already.

    Raises:
        Interrupted: If the execution was told to stop; `state.phase` says when.
        BaseException: Whatever a dependency or the tool raises.
    """
    spec = tool.spec
    settings = state.settings
    cancellation = state.cancellation
    cancellation.finishes = (spec.on_disconnect or settings.on_disconnect) == "finish"

    if not spec.parallel_safe:
        turn = settings.turns[spec.name]

        if not turn.take_nowait():
            await turn.take()

        state.turn = turn

    state.phase = _OPENING

    if state.report is not None:
        state.tool_started = time.monotonic()
        state.report(ToolStarted(state.id, spec.name))

    values = state.call.arguments

    if tool.has_injected:
        values = await _with_injected(state, tool, values)

        if cancellation.reason is not None:
            # A dependency swallowed it; nothing would interrupt the tool any more.
            raise Interrupted

    state.phase = _RUNNING

    if tool.kind is _ASYNC:
        call = tool.call
        value: object = await call(**values)
    else:
        value = await _run_otherwise(state, tool, partial(tool.call, **values))

    cancellation.end()

    if cancellation.reason is not None:
        _logger.warning("Tool %r returned although it was told to stop.", spec.name)
        raise Interrupted

    state.phase = _RETURNED
    return value


async def await_thread(state: ExecutionState) -> None:
    """Wait for a thread that was told to stop, and log how it ended."""
    thread = state.thread
    late = None if thread is None else await thread.ended()
    state.thread = None

    if late is not None:
        _logger.warning(
            "The thread of execution %s raised after it was told to stop.",
            state.id,
            exc_info=late,
        )


def give_turn(state: ExecutionState) -> None:
    """Let the next execution of this tool run; harmless when repeated."""
    turn = state.turn

    if turn is not None:
        state.turn = None
        turn.give()


async def _with_injected(
    state: ExecutionState, tool: Tool, values: dict[str, object]
) -> dict[str, object]:
    if tool.has_dependencies:
        injected = await state.opened.dependencies(tool, state.context, values)
        values = {**values, **injected}

    for name in tool.context_parameters:
        values[name] = state.context()

    for name in tool.caller_parameters:
        values[name] = state.caller

    return values


async def _run_otherwise(state: ExecutionState, tool: Tool, call: Callable[[], object]) -> object:
    """Run a generator, or a function that needs a thread."""
    report = partial(_report_item, state, tool)

    if tool.kind is ToolKind.ASYNC_GENERATOR:
        return await call_async_generator(call, report)

    if tool.kind is ToolKind.THREAD_GENERATOR:
        call = partial(iterate, call, report, state.context())

    thread = state.thread = ThreadCall(call)

    try:
        value = await thread.result(state.settings.limiter.get())
    except NoThreadError:
        state.thread = None
        state.phase = Phase.WAITING
        raise
    except Interrupted:
        # The thread goes on: it keeps its turn and its dependencies until it ends.
        raise
    except BaseException:
        state.thread = None
        raise

    state.thread = None
    return await value if isawaitable(value) else value


def _report_item(state: ExecutionState, tool: Tool, item: object) -> None:
    if state.report is not None:
        # As the answer will show it; one that does not fit ends the tool here.
        state.context().partial(from_json(tool.output.dump_item(item)))
