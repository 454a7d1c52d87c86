"""The execution as a tool sees it: who calls, progress, suggestions, cancellation."""

import math
import threading
from collections.abc import Callable, Mapping

from pydantic_core import from_json

from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Cancellation
from fastapi_carmy.events import Event, ToolProgress
from fastapi_carmy.jsontext import encode
from fastapi_carmy.result import NextAction

__all__ = ("AgentContext",)


class AgentContext:
    """One execution, as its tool and its dependencies see it.

    A tool gets it by annotating a parameter; a dependency by `CurrentContext`.
    Its methods work from any thread, and `cancelled` in any event loop.

    Attributes:
        execution_id: `exec_` and a UUID.
        tool: The tool's name.
        request_id: The caller's key for this call, if it sent one.
        caller: Who calls.
    """

    __slots__ = (
        "_cancellation",
        "_last_progress",
        "_report",
        "_suggestions",
        "_thread",
        "caller",
        "execution_id",
        "request_id",
        "tool",
    )

    def __init__(
        self,
        *,
        execution_id: str,
        tool: str,
        request_id: str | None,
        caller: Caller,
        cancellation: Cancellation,
        report: Callable[[Event], None] | None = None,
    ) -> None:
        """Belong to one execution.

        Args:
            execution_id: The execution's own id.
            tool: The tool's name.
            request_id: The caller's key, if any.
            caller: Who calls.
            cancellation: The execution's signal.
            report: Takes events, in the thread that makes this object.
        """
        self.execution_id = execution_id
        self.tool = tool
        self.request_id = request_id
        self.caller = caller
        self._cancellation = cancellation
        self._report = report
        self._thread = threading.get_ident()
        self._last_progress = 0.0
        self._suggestions: list[NextAction] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether this execution was told to stop: a deadline, a hang-up, or the host."""
        return self._cancellation.is_cancelled

    async def cancelled(self) -> None:
        """Return once this execution is told to stop."""
        await self._cancellation.wait()

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tell how far the work has come.

        Progress is advice: when a reader is slow, older reports give way to newer ones.

        Args:
            done: In the tool's own unit.
            total: What `done` will be at the end, in the same unit.
            message: One line for a person.

        Raises:
            ValueError: If a number is not finite.
        """
        if not math.isfinite(done) or (total is not None and not math.isfinite(total)):
            raise ValueError("Progress is counted in finite numbers.")

        self._last_progress = float(done)
        self._send(
            ToolProgress(
                self.execution_id,
                self.tool,
                self._last_progress,
                None if total is None else float(total),
                message,
            )
        )

    def partial(self, value: object) -> None:
        """Hand out a part of the result before the rest is there.

        Args:
            value: Anything that JSON or a pydantic model can hold; taken as it is now.
        """
        # Nobody pays for what nobody sees.
        if self._report is None:
            return

        self._send(
            ToolProgress(
                self.execution_id,
                self.tool,
                self._last_progress,
                partial=from_json(encode(value)),
                has_partial=True,
            )
        )

    def suggest(
        self,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        reason: str,
        after_seconds: float | None = None,
    ) -> None:
        """Add what the agent may do next to the answer.

        Args:
            tool: The tool to call.
            arguments: Its arguments; `None` means the same as in this call.
            reason: One sentence.
            after_seconds: How long to wait before that.
        """
        self._suggestions.append(
            NextAction(
                tool=tool,
                reason=reason,
                arguments=None if arguments is None else dict(arguments),
                after_ms=None if after_seconds is None else round(after_seconds * 1000),
            )
        )

    @property
    def suggestions(self) -> tuple[NextAction, ...]:
        """What was suggested so far, oldest first."""
        return tuple(self._suggestions)

    def _send(self, event: Event) -> None:
        report = self._report

        if report is None:
            return

        if threading.get_ident() == self._thread:
            report(event)
        else:
            self._cancellation.post(lambda: report(event))
