"""How much has been spent of a quota, counted in a storage that processes share.

The only module that knows the library `limits`.
"""

import time
from urllib.parse import quote

import anyio.to_thread

from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.quotas import QuotaKey

try:
    from limits import RateLimitItemPerSecond
    from limits.aio import storage as async_storage
    from limits.aio import strategies as async_strategies
    from limits.errors import ConfigurationError as UnknownStorageError
    from limits.storage import Storage, storage_from_string
    from limits.strategies import MovingWindowRateLimiter
except ImportError as error:
    message = 'A rate limit with a storage needs the extra: pip install "fastapi-carmy[ratelimit]"'
    raise ImportError(message) from error

__all__ = ("AnyStorage", "SharedQuota")

AnyStorage = Storage | async_storage.Storage


class SharedQuota:
    """Moving windows in a storage of `limits`, one a key."""

    def __init__(
        self, limit: int, per_seconds: int, *, storage: str | AnyStorage, namespace: str
    ) -> None:
        """Count in `storage`, or in the one its URL names.

        Raises:
            ConfigurationError: If the URL is unknown, the object is no storage, or the
                storage has no moving windows. The text never repeats the URL, which may
                hold a password.
        """
        self._item = RateLimitItemPerSecond(limit, per_seconds, namespace)
        self._limiter = _limiter(storage)

    async def spend(self, key: QuotaKey) -> float | None:
        """Spend one and return `None`, or return the seconds until there is one to spend."""
        names = [_name(part) for part in key]
        if isinstance(self._limiter, MovingWindowRateLimiter):
            # It waits for its storage, so it does that where nobody else waits for it.
            return await anyio.to_thread.run_sync(
                _spend_in_thread, self._limiter, self._item, names
            )

        if await self._limiter.hit(self._item, *names):
            return None

        window = await self._limiter.get_window_stats(self._item, *names)
        return window.reset_time - time.time()


def _limiter(
    storage: object,
) -> MovingWindowRateLimiter | async_strategies.MovingWindowRateLimiter:
    if isinstance(storage, str):
        try:
            storage = storage_from_string(storage)
        except UnknownStorageError:
            raise ConfigurationError("limits has no storage for this URL's scheme.") from None

    try:
        if isinstance(storage, Storage):
            return MovingWindowRateLimiter(storage)

        if isinstance(storage, async_storage.Storage):
            return async_strategies.MovingWindowRateLimiter(storage)

    except NotImplementedError:
        name = type(storage).__name__
        raise ConfigurationError(f"{name} has no moving windows; Redis, for one, has.") from None

    raise ConfigurationError(f"{type(storage).__name__!r} is not a storage of limits.")


def _spend_in_thread(
    limiter: MovingWindowRateLimiter, item: RateLimitItemPerSecond, names: list[str]
) -> float | None:
    if limiter.hit(item, *names):
        return None

    return limiter.get_window_stats(item, *names).reset_time - time.time()


def _name(part: str | None) -> str:
    # limits joins the parts with slashes: without quoting, "a/b" and "c" would meet "a" and "b/c".
    return "-" if part is None else "=" + quote(part, safe="", errors="surrogatepass")
