"""Where dependencies stay open, and how all of them get to know how the execution ended."""

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Final

from anyio import CancelScope

__all__ = ("Stack", "stack_keys")

_INNER: Final = "fastapi_inner_astack"
_FUNCTION: Final = "fastapi_function_astack"
_CLEANUP_SCOPES: Final = "fastapi_async_cleanup_scopes"

_Context = AbstractAsyncContextManager[Any, Any]


class Stack(AsyncExitStack):
    """An exit stack in which everyone sees the truth.

    A dependency that swallows the error would make those opened before it believe in a
    success, and commit. Here each one is closed with the error that ended the execution.
    """

    def __init__(self) -> None:
        """Open nothing yet."""
        super().__init__()
        self.shielded_by_fastapi: dict[AsyncExitStack, CancelScope] = {}
        """The stacks on which FastAPI itself lets dependencies close in peace; since 0.163."""
        self._shield: CancelScope | None = None

    async def enter_async_context(self, cm: _Context) -> Any:
        """Open `cm`, which can't swallow what it is closed with, and closes in peace."""
        if self._shield is None and self not in self.shielded_by_fastapi:
            # Entered before the dependency, which may own scopes that it leaves first.
            self._shield = self.enter_context(CancelScope())

        return await super().enter_async_context(_NeverSwallowing(cm, self._shield))


def stack_keys(inner: Stack, function: Stack) -> dict[str, object]:
    """Return what a scope holds for FastAPI's solver to open yield dependencies on."""
    scopes: dict[AsyncExitStack, CancelScope] = {}
    inner.shielded_by_fastapi = function.shielded_by_fastapi = scopes
    return {_INNER: inner, _FUNCTION: function, _CLEANUP_SCOPES: scopes}


class _NeverSwallowing:
    __slots__ = ("_inner", "_shield")

    def __init__(self, inner: _Context, shield: CancelScope | None) -> None:
        self._inner = inner
        self._shield = shield

    async def __aenter__(self) -> Any:
        return await self._inner.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._shield is not None:
            self._shield.shield = True

        try:
            await self._inner.__aexit__(kind, error, traceback)
        finally:
            if self._shield is not None:
                self._shield.shield = False
