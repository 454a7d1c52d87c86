"""Running one tool: its turn, its dependencies, its function. Source: carmy/1, 4.1, 8 and 9."""

import logging
import time
from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import partial
from inspect import isawaitable
from typing import cast

from pydantic_core import from_json

from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Cancellation, Interrupted, NoThreadError
from fastapi_carmy.context import AgentContext
from fastapi_carmy.envelope import Call
from fastapi_carmy.events import Event, ToolStarted
from fastapi_carmy.invocation import call_async_generator, iterate
from fastapi_carmy.result import NextAction
from fastapi_carmy.seams import Opened, Settings
from fastapi_carmy.threads import ThreadCall
from fastapi_carmy.tool import Tool, ToolKind

__all__ = ("Phase", "ToolRun")

_logger = logging.getLogger(__name__)


class Phase(IntEnum):
    """How far an execution has come; decides what its end means."""

    WAITING = 0
    OPENING = 1
    RUNNING = 2
    """The tool's own code has begun."""
    RETURNED = 3
    """The point of no return: neither a hang-up nor the deadline counts any more."""


class ToolRun:
    """One run of one tool, inside one execution.

    Attributes:
        phase: How far it has come.
        started: When the tool was about to run, by `time.monotonic`; `None` before that.
    """

    __slots__ = (
        "_call",
        "_caller",
        "_cancellation",
        "_context",
        "_execution_id",
        "_opened",
        "_report",
        "_settings",
        "_thread",
        "_turn",
        "phase",
        "started",
    )

    def __init__(
        self,
        execution_id: str,
        settings: Settings,
        call: Call,
        *,
        caller: Caller,
        opened: Opened,
        cancellation: Cancellation,
        report: Callable[[Event], None] | None,
    ) -> None:
        """Prepare; nothing runs yet. For the arguments see `Execution`."""
        self._execution_id = execution_id
        self._settings = settings
        self._call = call
        self._caller = caller
        self._opened = opened
        self._cancellation = cancellation
        self._report = report
        self._context: AgentContext | None = None
        self._thread: ThreadCall | None = None
        self._turn: str | None = None
        self.phase = Phase.WAITING
        self.started: float | None = None

    @property
    def has_thread(self) -> bool:
        """Whether a thread still runs the tool."""
        return self._thread is not None

    @property
    def context(self) -> AgentContext:
        """The execution as the tool sees it; made when somebody asks."""
        if self._context is None:
            request_id = self._call.request_id
            self._context = AgentContext(
                execution_id=self._execution_id,
                tool=self._call.tool_name,
                request_id=request_id if isinstance(request_id, str) else None,
                caller=self._caller,
                cancellation=self._cancellation,
                report=self._report,
            )

        return self._context

    @property
    def suggestions(self) -> tuple[NextAction, ...]:
        """What the tool suggested to do next."""
        return () if self._context is None else self._context.suggestions

    async def perform(self, tool: Tool) -> object:
        """Wait for the tool's turn, open its dependencies, run it; its deadline counts already.

        Raises:
            Interrupted: If the execution was told to stop; `phase` says when.
            BaseException: Whatever a dependency or the tool raises.
        """
        spec = tool.spec
        settings = self._settings
        cancellation = self._cancellation
        cancellation.finishes = (spec.on_disconnect or settings.on_disconnect) == "finish"
        cancellation.begin()

        if not spec.parallel_safe:
            if not settings.turns.take_nowait(spec.name):
                await settings.turns.take(spec.name)

            self._turn = spec.name

        self.phase = Phase.OPENING

        if self._report is not None:
            self.started = time.monotonic()
            self._report(ToolStarted(self._execution_id, spec.name))

        values = self._call.arguments

        if tool.has_injected:
            values = await self._with_injected(tool, values)

            if cancellation.is_cancelled:
                # A dependency swallowed it; nothing would interrupt the tool any more.
                raise Interrupted

        value = await self._run(tool, tool.bind(values))
        cancellation.end()
        cancellation.lift()

        if cancellation.is_cancelled:
            _logger.warning("Tool %r returned although it was told to stop.", spec.name)
            raise Interrupted

        self.phase = Phase.RETURNED
        return value

    async def await_thread(self) -> None:
        """Wait for a thread that was told to stop, and log how it ended."""
        thread = self._thread
        late = None if thread is None else await thread.ended()
        self._thread = None

        if late is not None:
            _logger.warning(
                "The thread of execution %s raised after it was told to stop.",
                self._execution_id,
                exc_info=late,
            )

    def give_turn(self) -> None:
        """Let the next execution of this tool run; harmless when repeated."""
        turn = self._turn
        self._turn = None

        if turn is not None:
            self._settings.turns.give(turn)

    async def _with_injected(self, tool: Tool, values: dict[str, object]) -> dict[str, object]:
        if tool.has_dependencies:
            injected = await self._opened.dependencies(tool, self.context, values)
            values = {**values, **injected}

        for name in tool.context_parameters:
            values[name] = self.context

        for name in tool.caller_parameters:
            values[name] = self._caller

        return values

    async def _run(self, tool: Tool, call: Callable[[], object]) -> object:
        self.phase = Phase.RUNNING

        if tool.kind is ToolKind.ASYNC:
            return await cast("Awaitable[object]", call())

        if tool.kind is ToolKind.ASYNC_GENERATOR:
            return await call_async_generator(call, partial(self._report_item, tool))

        if tool.kind is ToolKind.THREAD_GENERATOR:
            call = partial(iterate, call, partial(self._report_item, tool), self.context)

        thread = self._thread = ThreadCall(call)

        try:
            value = await thread.result(self._settings.limiter.get())
        except NoThreadError:
            self._thread = None
            self.phase = Phase.WAITING
            raise
        except Interrupted:
            # The thread goes on: it keeps its turn and its dependencies until it ends.
            raise
        except BaseException:
            self._thread = None
            raise

        self._thread = None
        return await value if isawaitable(value) else value

    def _report_item(self, tool: Tool, item: object) -> None:
        if self._report is not None:
            # As the answer will show it; one that does not fit ends the tool here.
            self.context.partial(from_json(tool.output.dump_item(item)))
