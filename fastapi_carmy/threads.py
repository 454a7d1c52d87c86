"""Functions in threads, which can be waited for but not stopped."""

import threading
from collections.abc import Callable

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

from fastapi_carmy.cancellation import Interrupted, NoThreadError, Task, join, start_task
from fastapi_carmy.errors import ConfigurationError

__all__ = ("LoopLimiter", "ThreadCall")


class ThreadCall:
    """One call of a function, in a thread."""

    __slots__ = ("_after", "_call", "_claim", "_ending", "_has_ended", "_task")

    def __init__(self, call: Callable[[], object]) -> None:
        """Prepare `call`; nothing runs yet."""
        self._call = call
        self._claim = threading.Lock()
        self._task: Task[object] | None = None
        # Held for a few instructions, when the thread ends and when somebody asks it for more.
        self._ending = threading.Lock()
        self._has_ended = False
        self._after: Callable[[], None] | None = None

    async def result(self, limiter: CapacityLimiter) -> object:
        """Run the function in a thread and return what it returns.

        Interrupting this leaves the thread running: see `ended`.

        Raises:
            NoThreadError: If it is interrupted while it waits for a free thread.
        """
        self._task = start_task(run_sync(self._run, limiter=limiter))

        try:
            return await join(self._task)
        except Interrupted:
            if self._withdraw():
                raise NoThreadError from None

            raise

    async def ended(self) -> BaseException | None:
        """Wait for the thread, however it ends; return what it raised."""
        if self._task is None:
            return None

        try:
            await join(self._task)
        except Exception as error:  # noqa: BLE001
            # Nobody waits for this outcome any more; the runtime logs it.
            return error

        return None

    def then(self, call: Callable[[], None]) -> None:
        """Let the thread itself make `call` once the function has ended; at once if it has.

        Only the first `call` counts. It is made even when the loop is gone by then.
        """
        with self._ending:
            if self._after is not None:
                return

            self._after = call

            if not self._has_ended:
                return

        call()

    def _withdraw(self) -> bool:
        """Keep the function from running; tell whether it had not begun."""
        if not self._claim.acquire(blocking=False):
            return False

        if self._task is not None:
            self._task.cancel()

        return True

    def _run(self) -> object:
        # Taken once, by the thread or by `_withdraw`: never both.
        if not self._claim.acquire(blocking=False):
            return None

        try:
            return self._call()
        finally:
            with self._ending:
                self._has_ended = True
                after = self._after

            if after is not None:
                after()


class LoopLimiter:
    """How many threads run at once, in each event loop by itself.

    A limiter of one loop can't wake who waits in another one, and a router may serve
    several: a `TestClient` without `with` starts one for each request.
    """

    __slots__ = ("_limiters", "_most")

    def __init__(self, most: int) -> None:
        """Let `most` run at once; binds nothing to a loop.

        Raises:
            ConfigurationError: If that is no number above 0.
        """
        if most < 1:
            raise ConfigurationError(f"max_threads is 1 or more, not {most!r}.")

        self._most = most
        # Gone with its loop.
        self._limiters = RunVar[CapacityLimiter]("fastapi_carmy_threads")

    def get(self) -> CapacityLimiter:
        """Return the running loop's limiter."""
        limiter = self._limiters.get(None)

        if limiter is None:
            limiter = CapacityLimiter(self._most)
            self._limiters.set(limiter)

        return limiter
