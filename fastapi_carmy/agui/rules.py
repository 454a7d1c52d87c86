"""The rules of an event sequence, by name, and the sentence that explains each."""

from types import MappingProxyType
from typing import Final

from fastapi_carmy.agui.errors import ProtocolViolationError

__all__ = ("LIFECYCLE_RULES", "RULES", "violation")

RULES: Final = MappingProxyType(
    {
        "run-not-started": "a run starts with RUN_STARTED or RUN_ERROR.",
        "run-ended": "nothing follows the end of a run.",
        "duplicate-run-started": "a run starts once.",
        "run-ids": "a run starts and ends with the thread and run ids of its input.",
        "duplicate-start": "what is open, or may be used only once, can't be opened again.",
        "not-open": "only what is open can be continued or closed.",
        "unknown-id": "what an event refers to must have been introduced before.",
        "out-of-order": "a tool call ends before its result.",
        "open-at-finish": "everything opened is closed before RUN_FINISHED.",
        "mixed-forms": "one item is streamed by START and END or by chunks, not by both.",
        "chunk-without-id": "the first chunk of a stream names it.",
        "chunk-mismatch": "a chunk may repeat what its stream's first one said, not change it.",
        "ambiguous-chunk": "a chunk without id or tag needs exactly one stream to continue.",
        "owner-mismatch": "a tag names the subagent, or the agent, that opened the item.",
        "open-interrupt": "a run with an open interrupt is no success.",
        "pending-tool-calls": "pendingToolCallIds are the started calls without a result.",
    }
)
"""Rule → sentence. Source: AG-UI 1.0, the producer's rules, and what its client enforces."""

LIFECYCLE_RULES: Final = frozenset(
    {"run-not-started", "run-ended", "duplicate-run-started", "run-ids", "open-at-finish"}
)
"""Those that hold even where verification is off."""


def violation(
    event_type: str, rule: str, entity_id: str | None = None, *, detail: str = ""
) -> ProtocolViolationError:
    """Return the refusal of an event that breaks `rule`."""
    return ProtocolViolationError(event_type, rule, RULES[rule] + detail, entity_id)
