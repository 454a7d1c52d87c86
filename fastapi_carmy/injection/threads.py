"""Sync dependencies in the router's own threads.

FastAPI runs them in threads that the whole process shares, and lets go of one when the
waiting task is interrupted: what it opens then is never closed.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import contextmanager
from functools import partial
from inspect import isclass
from typing import Any, cast

from anyio import CancelScope, CapacityLimiter
from anyio.to_thread import run_sync
from fastapi.security.base import SecurityBase

from fastapi_carmy.cancellation import Interrupted, NoThreadError
from fastapi_carmy.runtime_errors import cancelled
from fastapi_carmy.signature import kind_of
from fastapi_carmy.threads import LoopLimiter, ThreadCall
from fastapi_carmy.tool import ToolKind

__all__ = ("in_own_thread",)

_Call = Callable[..., Any]


def in_own_thread(call: _Call, limiter: LoopLimiter) -> _Call:
    """Return `call`, made so that the solver runs it in a thread of `limiter` if it is sync."""
    if isinstance(call, SecurityBase):
        # Known to FastAPI by its class; none of its own is sync.
        return cast("_Call", call)

    kind = ToolKind.THREAD if isclass(call) else kind_of(call)

    if kind is ToolKind.THREAD:
        return _InThread(call, limiter)

    return _IteratedInThread(call, limiter) if kind is ToolKind.THREAD_GENERATOR else call


class _Same:
    """Stands for a callable: equal to it, so that they share a place in the solver's cache."""

    __slots__ = ("_call", "_limiter")

    def __init__(self, call: _Call, limiter: LoopLimiter) -> None:
        self._call = call
        self._limiter = limiter

    def __eq__(self, other: object) -> bool:
        return self._call == (other._call if isinstance(other, _Same) else other)

    def __hash__(self) -> int:
        return hash(self._call)


class _InThread(_Same):
    __slots__ = ()

    async def __call__(self, **values: Any) -> Any:
        return await _run(partial(self._call, **values), self._limiter)


class _IteratedInThread(_Same):
    __slots__ = ()

    async def __call__(self, **values: Any) -> AsyncGenerator[Any, None]:
        manager = contextmanager(self._call)(**values)
        value = await _run(
            manager.__enter__, self._limiter, undo=partial(_leave, manager, cancelled())
        )

        try:
            yield value
        except BaseException as error:
            # A closing dependency never waits for a free thread: others may wait for it.
            with CancelScope(shield=True):
                if not await run_sync(partial(_leave, manager, error), limiter=CapacityLimiter(1)):
                    raise
        else:
            with CancelScope(shield=True):
                await run_sync(partial(_leave, manager), limiter=CapacityLimiter(1))


async def _run(
    call: Callable[[], Any], limiter: LoopLimiter, undo: Callable[[], object] | None = None
) -> Any:
    """Run `call` in a thread of `limiter`; when interrupted, see it through and `undo` it."""
    thread = ThreadCall(call)

    try:
        return await thread.result(limiter.get())
    except NoThreadError:
        raise
    except Interrupted:
        with CancelScope(shield=True):
            if await thread.ended() is None and undo is not None:
                await run_sync(undo, limiter=CapacityLimiter(1))

        raise


def _leave(manager: Any, error: BaseException | None = None) -> bool:
    if error is None:
        return bool(manager.__exit__(None, None, None))

    return bool(manager.__exit__(type(error), error, error.__traceback__))
