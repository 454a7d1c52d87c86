"""What an answer proposes to do next. Source: carmy/1, section 2.2."""

from collections.abc import Mapping, Sequence
from typing import cast

from fastapi_carmy.errors import AgentError
from fastapi_carmy.result import NextAction

__all__ = ("next_actions",)

_POLL_AFTER_MS = 1000


def next_actions(
    tool: str, error: AgentError, suggestions: Sequence[NextAction]
) -> tuple[NextAction, ...]:
    """Return what helps after `error`, then what the tool itself suggested."""
    ours = _after(tool, error)
    return tuple(suggestions) if ours is None else (ours, *suggestions)


def _after(tool: str, error: AgentError) -> NextAction | None:
    if error.code == "CONFIRMATION_REQUIRED":
        return NextAction(
            tool=tool,
            reason=f"A person must confirm this call: it needs the permission confirm:{tool}.",
        )

    if error.retryable:
        return NextAction(
            tool=tool,
            reason="Make the same call again, with the same request_id.",
            after_ms=None if error.retry_after is None else error.retry_after * 1000,
        )

    if error.code == "EXECUTION_UNCERTAIN" and _is_running(error.details):
        return NextAction(
            tool=tool,
            reason="The first call is still running: ask again, with the same request_id.",
            after_ms=_POLL_AFTER_MS,
        )

    return None


def _is_running(details: object) -> bool:
    if not isinstance(details, Mapping):
        return False

    return cast("Mapping[str, object]", details).get("state") == "running"
