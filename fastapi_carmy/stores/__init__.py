"""Idempotency stores: the contract, and the one that needs nothing else."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from fastapi_carmy.errors import ConfigurationError
from fastapi_carmy.stores.base import (
    Acquired,
    Conflict,
    Entry,
    IdempotencyCapacityError,
    IdempotencyStore,
    InProgress,
    Key,
    Record,
    Replay,
    Reservation,
)
from fastapi_carmy.stores.memory import MemoryStore

__all__ = (
    "Acquired",
    "Conflict",
    "Entry",
    "IdempotencyCapacityError",
    "IdempotencyStore",
    "InProgress",
    "Key",
    "MemoryStore",
    "Record",
    "Replay",
    "Reservation",
    "open_store",
)

N = TypeVar("N", int, float)

_METHODS = ("reserve", "complete", "release", "abandon", "lookup", "aclose")


def open_store(url_or_store: str | IdempotencyStore) -> IdempotencyStore:
    """Return the store that a URL names, or the one that was given.

    `memory://` is a `MemoryStore`; its options are `ttl_seconds`, `max_entries` and
    `max_bytes`, as in `memory://?ttl_seconds=3600&max_entries=500`.

    Raises:
        ConfigurationError: If the scheme or an option is unknown, a value does not fit, or
            the object is no store. The text never repeats the URL, which may hold a
            password.
    """
    if not isinstance(url_or_store, str):
        return _checked(url_or_store)

    try:
        parts = urlsplit(url_or_store)
    except ValueError:
        raise ConfigurationError("The store's URL is malformed.") from None

    opener = _OPENERS.get(parts.scheme)
    if opener is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_OPENERS))
        raise ConfigurationError(
            f"There is no store for the scheme {parts.scheme!r}; this version has {known}."
        )

    return opener(parts)


def _checked(store: IdempotencyStore) -> IdempotencyStore:
    if isinstance(store, type):
        raise ConfigurationError(f"{store.__name__} is a class; give one of its objects.")

    missing = [name for name in _METHODS if not callable(getattr(store, name, None))]
    if missing:
        raise ConfigurationError(
            f"{type(store).__name__!r} is not an IdempotencyStore: it lacks {', '.join(missing)}."
        )

    return store


def _open_memory(parts: SplitResult) -> IdempotencyStore:
    if parts.netloc or parts.path.strip("/") or parts.fragment:
        raise ConfigurationError("memory:// takes options only, as in memory://?ttl_seconds=3600.")

    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ConfigurationError(
            "memory:// takes each option once: max_bytes, max_entries, ttl_seconds."
        )

    ttl_seconds = _number(options, "ttl_seconds", float, default=86_400.0)
    max_entries = _number(options, "max_entries", int, default=10_000)
    max_bytes = _number(options, "max_bytes", int, default=64 * 2**20)
    if options:
        raise ConfigurationError(
            f"memory:// has no option {min(options)!r}; it has max_bytes, max_entries "
            "and ttl_seconds."
        )

    return MemoryStore(ttl_seconds=ttl_seconds, max_entries=max_entries, max_bytes=max_bytes)


def _number(options: dict[str, str], name: str, convert: Callable[[str], N], *, default: N) -> N:
    text = options.pop(name, None)
    if text is None:
        return default

    try:
        return convert(text)
    except ValueError:
        raise ConfigurationError(f"The store option {name} must be a number.") from None


_OPENERS: Final[Mapping[str, Callable[[SplitResult], IdempotencyStore]]] = MappingProxyType(
    {"memory": _open_memory}
)
