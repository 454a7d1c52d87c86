"""The ids that a run hands out."""

from ag_ui.core import AssistantMessage, RunAgentInput

__all__ = ("Ids",)


class Ids:
    """Counts one run's messages, calls, subagents and interrupts, from `<runId>-msg-1`.

    A message's id is unique in its thread, so those of the input are skipped.
    """

    __slots__ = ("_counts", "_prefix", "_taken")

    def __init__(self, run_input: RunAgentInput) -> None:
        self._prefix = run_input.run_id or "run"
        self._counts = {"msg": 0, "call": 0, "sub": 0, "interrupt": 0}
        self._taken: set[str] = set()

        for message in run_input.messages:
            self._taken.add(message.id)

            if isinstance(message, AssistantMessage):
                self._taken.update(call.id for call in message.tool_calls or ())

    def message(self) -> str:
        """Return the next message's id; reasoning and tool results are counted with them."""
        return self._next("msg")

    def tool_call(self) -> str:
        """Return the next tool call's id."""
        return self._next("call")

    def subagent(self) -> str:
        """Return the next subagent run's id."""
        return self._next("sub")

    def interrupt(self) -> str:
        """Return the next interrupt's id."""
        return self._next("interrupt")

    def _next(self, kind: str) -> str:
        while True:
            self._counts[kind] += 1
            made = f"{self._prefix}-{kind}-{self._counts[kind]}"

            if made not in self._taken:
                return made
