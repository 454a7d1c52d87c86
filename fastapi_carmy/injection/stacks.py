"""Where dependencies stay open, and how all of them get to know how the execution ended."""

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Final

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

    async def enter_async_context(self, cm: _Context) -> Any:
        """Open `cm`, which can't swallow what it is closed with."""
        return await super().enter_async_context(_NeverSwallowing(cm))


def stack_keys(inner: AsyncExitStack, function: AsyncExitStack) -> dict[str, object]:
    """Return what a scope holds for FastAPI's solver to open yield dependencies on."""
    return {_INNER: inner, _FUNCTION: function, _CLEANUP_SCOPES: {}}


class _NeverSwallowing:
    __slots__ = ("_inner",)

    def __init__(self, inner: _Context) -> None:
        self._inner = inner

    async def __aenter__(self) -> Any:
        return await self._inner.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._inner.__aexit__(kind, error, traceback)
