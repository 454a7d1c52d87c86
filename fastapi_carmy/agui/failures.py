"""What a failed run tells its client, and what it does not."""

import logging
from collections.abc import Iterator
from typing import cast
from uuid import uuid4

from ag_ui import core
from ag_ui.core import RunErrorEvent
from pydantic import ValidationError

from fastapi_carmy.agui.errors import AgUiError
from fastapi_carmy.cancellation import Interrupted
from fastapi_carmy.errors import AgentError

__all__ = ("TIMEOUT", "failure_event")

_logger = logging.getLogger("fastapi_carmy.agui")

TIMEOUT = "TIMEOUT"


def failure_event(error: BaseException, *, expose: bool) -> RunErrorEvent:
    """Return RUN_ERROR for what an agent, or what belongs to it, raised.

    An `AgentError` and this package's own refusals tell their text. Anything else is
    logged under a random id, and only the id is told.

    Args:
        error: What was raised.
        expose: Whether the text of an unexpected exception is told as well.
    """
    told = next(_told_in(error), None)

    if told is not None:
        return told

    if isinstance(error, Interrupted):
        return RunErrorEvent(message="The agent was cancelled.", code="CANCELLED")

    error_id = uuid4().hex
    _logger.error("An agent failed (error id %s).", error_id, exc_info=error)
    text = f": {type(error).__name__}: {error}" if expose else ""

    return RunErrorEvent(
        message=_encodable(f"agent error: the agent failed (error id {error_id}){text}."),
        code="AGENT_ERROR",
    )


def _told_in(error: BaseException) -> Iterator[RunErrorEvent]:
    """Yield what may be told of `error`, or of the errors in a group, first cause first."""
    if isinstance(error, BaseExceptionGroup):
        for one in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _told_in(one)

    elif isinstance(error, AgentError):
        yield RunErrorEvent(message=_encodable(f"agent error: {error.message}"), code="AGENT_ERROR")

    elif isinstance(error, AgUiError):
        yield RunErrorEvent(message=_encodable(str(error)), code=error.code)

    elif isinstance(error, ValidationError) and hasattr(core, error.title):
        # Its text repeats the value.
        yield RunErrorEvent(message=f"{error.title} was given a wrong value.", code="PROTOCOL")


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
