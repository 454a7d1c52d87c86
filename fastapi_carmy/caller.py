"""Who calls: the trusted identity that the host supplies."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ("Caller",)


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity behind a call. Only the host makes one; no request can widen it.

    Idempotency keys of different principals or sessions never meet.
    """

    principal: str | None = None
    """Who it is: a user's or a service's stable id."""

    session: str | None = None
    """A narrower namespace under the principal, such as one conversation."""

    permissions: frozenset[str] = frozenset()
    """What it may do, for policies: `confirm:<tool>`, `tool:<tool>`, or the host's own."""

    metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    """Whatever else the host wants its tools and policies to see."""

    def __post_init__(self) -> None:
        """Refuse a text as permissions: `in` would look for parts of it.

        Raises:
            TypeError: If `permissions` is a text; split it into a set first.
        """
        if isinstance(self.permissions, str | bytes):
            raise TypeError("Caller.permissions is a set of texts, not one text; split it first.")

        if type(self.permissions) is not frozenset:
            object.__setattr__(self, "permissions", frozenset(self.permissions))
