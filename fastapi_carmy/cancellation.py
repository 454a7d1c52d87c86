"""One execution's cancellation signal, and how it interrupts a task exactly once.

The only module that imports asyncio: an anyio cancel scope interrupts every `await` of
a `finally`, so tools are cancelled by an edge-triggered `Task.cancel` instead. Whatever
else needs asyncio itself (`Latch`, `Bell`, `after`, `race`) stands here for that reason, and
makes the module longer than others.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import TypeVar

__all__ = (
    "TICKS",
    "TICK_SECONDS",
    "Bell",
    "CancelReason",
    "Cancellation",
    "Interrupted",
    "Latch",
    "Loop",
    "NoThreadError",
    "Task",
    "after",
    "join",
    "race",
    "start_task",
)

T = TypeVar("T")

Interrupted = asyncio.CancelledError
"""What an interrupted `await` raises."""

Loop = asyncio.AbstractEventLoop
"""What tasks and timers run in."""

Task = asyncio.Task
"""A running piece of work, as `start_task` returns it."""


TICK_SECONDS = 0.05
"""How often those who keep calls ask the new ones whether they take their time."""

TICKS = 2
"""How often they ask it."""

_QUICK_SECONDS = TICKS * TICK_SECONDS
"""The longest that a call may take before it gets timers of its own."""


class NoThreadError(asyncio.CancelledError):
    """An `await` was interrupted while it waited for a free thread: nothing ran."""


class CancelReason(StrEnum):
    """Why an execution was told to stop."""

    DEADLINE = "deadline"
    DISCONNECT = "disconnect"
    STOP = "stop"
    """The server stops."""
    HOST = "host"
    """Somebody stopped it on purpose."""


class Cancellation:
    """Tells one execution to stop: once, for one reason, from anywhere.

    It is created, and its methods are called, in the loop of the execution;
    `fire_threadsafe`, `reason` and `is_cancelled` work from any thread.

    A quick call never pays for timers, nor for watching its client, where somebody keeps
    it who sets `ticks_left` to `TICKS` and then calls `tick` every `TICK_SECONDS`.
    """

    __slots__ = (
        "_alarm",
        "_alarm_at",
        "_at_alarm",
        "_before",
        "_cut_seconds",
        "_home",
        "_sent",
        "_waiting",
        "_watch",
        "_watcher",
        "finishes",
        "interrupts",
        "loop",
        "overran",
        "reason",
        "ticks_left",
    )

    def __init__(self) -> None:
        """Belong to the running loop; nothing is watched yet."""
        self.loop = asyncio.get_running_loop()
        self.reason: CancelReason | None = None
        """Why it was told to stop; `None` as long as it was not."""
        self.finishes = False
        """Whether a disconnect is only noted, because the work is to run to its end."""
        self.overran = False
        """Whether finishing took longer than `limit_finish` allowed."""
        self.interrupts: asyncio.Task[object] | None = None
        """The task that `fire` interrupts: the current one, between `begin` and `end`."""
        self.ticks_left = 0
        """How many ticks are to come before it looks after itself."""
        self._home: asyncio.Task[object] | None = None
        self._before = 0
        self._cut_seconds = 0.0
        self._sent = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._at_alarm: Callable[[], None] | None = None
        self._watch: Callable[[], Awaitable[None]] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._waiting: list[Latch] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody said stop."""
        return self.reason is not None

    def fire(self, reason: CancelReason) -> None:
        """Say stop; the first reason stays, later calls do nothing."""
        if self.reason is not None or (self.finishes and reason is CancelReason.DISCONNECT):
            return

        self.reason = reason

        for latch in self._waiting:
            latch.set()

        self._interrupt()

    def fire_threadsafe(self, reason: CancelReason) -> None:
        """Say stop from another thread."""
        self.loop.call_soon_threadsafe(self.fire, reason)

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` in the execution's thread, from another one."""
        self.loop.call_soon_threadsafe(work)

    async def wait(self) -> None:
        """Return once somebody said stop; works in any loop and thread."""
        latch = Latch()
        self._waiting.append(latch)

        # Looked at after the latch is known, so that `fire` sees one or this sees the other.
        if self.reason is None:
            await latch.wait()

    def begin(self) -> None:
        """Let `fire` interrupt the current task from here to `end`.

        Raises:
            Interrupted: If stop was said already.
        """
        if self.reason is not None:
            raise Interrupted

        task = self.interrupts = self._home or self._task()
        self._before = task.cancelling()

    def end(self) -> None:
        """Let nothing interrupt the current task any more, and forget the limit."""
        self.interrupts = None
        self._at_alarm = None

        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def settle(self) -> bool:
        """Take back the interruption, if there was one; tell whether this object sent it.

        Call it after `end`, when the work was interrupted, or may have swallowed that.

        Returns:
            `False` when the task was interrupted by somebody else as well, or only by
            somebody else: then the interruption must go on.
        """
        task = self._task()

        if self._sent:
            # The work may have fired the signal itself and returned before any await.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

            self._take_back()

        return task.cancelling() <= self._before

    def limit(self, seconds: float) -> None:
        """Fire `DEADLINE` after `seconds`, until `end`."""
        self._at_alarm = self._at_deadline
        self._alarm_at = self.loop.time() + seconds

        # The ticks end before any longer limit is over; the timer is set by the last one.
        if not self.ticks_left or seconds <= _QUICK_SECONDS:
            self._set_alarm()

    def limit_finish(self, seconds: float) -> None:
        """Interrupt the current task every `seconds`, until `end` or `close`, whatever was said.

        Each interruption ends one wait, and there may be another one behind it. `overran`
        tells afterwards that this happened.
        """
        task = self._home or self._task()
        self.end()

        if self._sent:
            # As in `close`.
            self._take_back()

        self._before = task.cancelling()
        self._cut_seconds = seconds
        self._at_alarm = self._cut
        self._alarm_at = self.loop.time() + seconds

        if not self.ticks_left or seconds <= _QUICK_SECONDS:
            self._set_alarm()

    def watch(self, disconnected: Callable[[], Awaitable[None]]) -> None:
        """Fire `DISCONNECT` once `disconnected()` returns."""
        self._watch = disconnected

        if not self.ticks_left:
            self._start_watching()

    def tick(self) -> None:
        """Let time pass; at the last one, set the timers of a call that takes its time."""
        self.ticks_left -= 1

        if self.ticks_left:
            return

        if self._at_alarm is not None and self._alarm is None:
            self._set_alarm()

        self._start_watching()

    def close(self) -> None:
        """Stop watching and forget the limit; say it when the execution is over."""
        self._watch = None

        if self._sent:
            # Whatever swallowed an interruption has left the task marked by it.
            self._take_back()

        if self.interrupts is not None or self._at_alarm is not None:
            self.end()

        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    def _task(self) -> "asyncio.Task[object]":
        """Return the current task, looked up once: what is cancelled here lives in one."""
        if self._home is None:
            self._home = asyncio.current_task(self.loop)
            assert self._home is not None

        return self._home

    def _take_back(self) -> None:
        for _ in range(self._sent):
            self._task().uncancel()

        self._sent = 0

    def _interrupt(self) -> None:
        if self.interrupts is not None:
            self._sent += 1
            self.interrupts.cancel()

    def _cut(self) -> None:
        self.overran = True
        self._sent += 1
        self._task().cancel()
        self._alarm = self.loop.call_later(self._cut_seconds, self._cut)

    def _at_deadline(self) -> None:
        self.fire(CancelReason.DEADLINE)

    def _set_alarm(self) -> None:
        assert self._at_alarm is not None
        self._alarm = self.loop.call_at(self._alarm_at, self._at_alarm)

    def _start_watching(self) -> None:
        if self._watch is not None and self._watcher is None:
            self._watcher = self.loop.create_task(self._wait_for_disconnect(self._watch))

    async def _wait_for_disconnect(self, disconnected: Callable[[], Awaitable[None]]) -> None:
        await disconnected()
        self.fire(CancelReason.DISCONNECT)


def start_task(work: Coroutine[object, object, object]) -> "asyncio.Task[object]":
    """Run `work` in a task of its own; the caller keeps the task and joins it."""
    return asyncio.get_running_loop().create_task(work)


async def join(task: "asyncio.Task[object]") -> object:
    """Return what `task` returns; being interrupted here does not interrupt `task`."""
    await asyncio.wait((task,))
    return task.result()


class Latch:
    """Set once, from any thread, and awaited in any loop; bound to none."""

    __slots__ = ("_calls", "_lock", "is_set")

    def __init__(self) -> None:
        """Start unset."""
        self.is_set = False
        # Between threads; held for a few instructions, never across an await.
        self._lock = threading.Lock()
        self._calls: dict[object, tuple[asyncio.AbstractEventLoop, Callable[[], object]]] = {}

    def set(self) -> bool:
        """Set it; tell whether this call did."""
        with self._lock:
            if self.is_set:
                return False

            self.is_set = True
            calls, self._calls = self._calls, {}

        for loop, call in calls.values():
            # A loop that was closed has nobody left to tell.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(call)

        return True

    def then(self, call: Callable[[], object]) -> Callable[[], None]:
        """Run `call` in the running loop once this is set; at the next turn if it is.

        Returns:
            A function that takes the wish back.
        """
        loop = asyncio.get_running_loop()
        key = object()

        with self._lock:
            if not self.is_set:
                self._calls[key] = (loop, call)
                return partial(self._forget, key)

        return loop.call_soon(call).cancel

    async def wait(self) -> None:
        """Return once this is set."""
        if self.is_set:
            return

        done = asyncio.get_running_loop().create_future()
        forget = self.then(partial(_settle, done))

        try:
            await done
        finally:
            forget()

    def _forget(self, key: object) -> None:
        self._calls.pop(key, None)


def _settle(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)


class Bell:
    """Wakes the one task that waits for it, again and again; much cheaper than an event.

    Its methods are called in one loop, that of the task.
    """

    __slots__ = ("_due", "_timer", "_waiter")

    def __init__(self) -> None:
        """Belong to no loop yet."""
        self._waiter: asyncio.Future[None] | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        """Wake who waits; nobody else hears it."""
        if self._waiter is not None:
            _settle(self._waiter)

    async def wait(self, seconds: float | None = None) -> None:
        """Return when it rings, or after `seconds`."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()

        self._due = math.inf if seconds is None else loop.time() + seconds

        # One timer serves many waits: it looks at what is due when it goes off.
        if self._timer is not None and self._due < self._timer.when():
            self.close()

        if self._timer is None and seconds is not None:
            self._timer = loop.call_at(self._due, self._at_time)

        try:
            await waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _at_time(self) -> None:
        self._timer = None

        if self._waiter is None or self._due == math.inf:
            return

        loop = self._waiter.get_loop()

        if loop.time() >= self._due:
            _settle(self._waiter)
        else:
            self._timer = loop.call_at(self._due, self._at_time)


def after(seconds: float, call: Callable[[], object]) -> Callable[[], None]:
    """Run `call` in the running loop after `seconds`; what is returned takes it back."""
    return asyncio.get_running_loop().call_later(seconds, call).cancel


async def race(work: Awaitable[T], stop: Latch) -> tuple[bool, T | None]:
    """Await `work`, but no longer than until `stop` is set; then interrupt it once.

    Returns:
        `(True, result)`, or `(False, None)` when `stop` won; what an interrupted
        `work` then raises or returns is dropped.
    """
    task = asyncio.ensure_future(work)
    forget = stop.then(task.cancel)

    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        # Looked at, so that the loop does not report it as lost.
        _ = task.cancelled() or task.exception()
        raise
    finally:
        forget()

    if stop.is_set and task.cancelled():
        return False, None

    return True, task.result()
