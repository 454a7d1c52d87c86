"""Executions that the host starts itself: the same pipeline, without HTTP."""

import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from fastapi_carmy.buffer import EventBuffer
from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Cancellation, CancelReason, join, start_task
from fastapi_carmy.envelope import decode, encode_call
from fastapi_carmy.errors import AgentError
from fastapi_carmy.events import Event, ExecutionCompleted, ExecutionStarted
from fastapi_carmy.injection import HostOpened, needs_request
from fastapi_carmy.result import ExecutionResult, execution_ids
from fastapi_carmy.runtime_errors import invalid_request
from fastapi_carmy.service import Service

__all__ = ("HostCall", "execute", "stream")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """One call of the host."""

    tool: str
    arguments: Mapping[str, object]
    caller: Caller
    request_id: str | None
    opened: HostOpened


async def execute(
    service: Service,
    host_call: HostCall,
    *,
    cancellation: Cancellation | None = None,
    buffer: EventBuffer[Event] | None = None,
) -> ExecutionResult:
    """Run one call of the host; a failure is an answer too."""
    opened = host_call.opened
    report = None if buffer is None else buffer.report

    try:
        body = encode_call(host_call.tool, host_call.arguments, host_call.request_id)
        call = decode(body, service.finder(opened.overrides))

        if call.tool is not None and opened.lacks_request and needs_request(call.tool):
            raise invalid_request("the tool takes something from an HTTP request; pass `request=`")
    except AgentError as error:
        result = ExecutionResult.failed(next(execution_ids()), error)

        if report is not None:
            report(ExecutionStarted(result.execution_id, host_call.tool))
            report(ExecutionCompleted(result))

        return result

    execution = service.runtime.begin(opened, report, cancellation)
    result = await execution.run(call)

    if buffer is not None:
        buffer.end()

    await execution.aclose()

    try:
        await opened.run_background(result)
    except Exception:
        # The call has its answer, and is recorded.
        _logger.exception("A background task of execution %s failed.", result.execution_id)

    return result


async def stream(service: Service, host_call: HostCall) -> AsyncGenerator[Event, None]:
    """Run one call of the host, and yield what its execution reports."""
    buffer = EventBuffer[Event](lambda event: event)
    cancellation = Cancellation()

    async def run() -> None:
        try:
            await execute(service, host_call, cancellation=cancellation, buffer=buffer)
        except BaseException as error:
            buffer.end(error)
            raise

        buffer.end()

    task = start_task(run())

    try:
        while (events := await buffer.next()) is not None:
            for event in events:
                yield event
    finally:
        cancellation.fire(CancelReason.HOST)
        await join(task)
