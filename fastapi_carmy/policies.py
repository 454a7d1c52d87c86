"""Policies: who may run which tool, and how often.

A policy is any object with one or more of the methods `check`, `admit` and `lists`; it
inherits from nothing. Those of a router run in the order they were given, after
`SafePolicy`, which is always first. Past the usual size, because the package's own three stand
beside the protocols that they fulfil.
"""

import inspect
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from fastapi_carmy.caller import Caller
from fastapi_carmy.errors import AgentError, ConfigurationError, ErrorCategory
from fastapi_carmy.quotas import MemoryQuota, QuotaKey
from fastapi_carmy.tool import ToolSpec

if TYPE_CHECKING:
    from fastapi_carmy.shared_quotas import AnyStorage, SharedQuota

__all__ = (
    "AdmitsCalls",
    "ChecksCalls",
    "GivesBack",
    "ListsTools",
    "Policies",
    "Policy",
    "PolicyCall",
    "RateLimit",
    "RequireToolPermission",
    "SafePolicy",
    "compile_policies",
)


class PolicyCall:
    """One call, as policies see it. They read it and change nothing."""

    __slots__ = ("_arguments", "_read_arguments", "caller", "request_id", "tool")

    tool: ToolSpec
    caller: Caller
    request_id: str | None

    def __init__(
        self,
        tool: ToolSpec,
        caller: Caller,
        request_id: str | None,
        read_arguments: Callable[[], Mapping[str, object]],
    ) -> None:
        """Describe one call.

        Args:
            tool: The tool to run.
            caller: Who calls; an anonymous `Caller` when the host named none.
            request_id: As sent, or `None`.
            read_arguments: Returns the arguments as sent; called when a policy looks, once.
        """
        self.tool = tool
        self.caller = caller
        self.request_id = request_id
        self._read_arguments = read_arguments
        self._arguments: Mapping[str, object] | None = None

    @property
    def arguments(self) -> Mapping[str, object]:
        """The arguments as sent, by name: not validated yet, defaults not filled in."""
        if self._arguments is None:
            self._arguments = self._read_arguments()

        return self._arguments


class ChecksCalls(Protocol):
    """A policy that says whether a call is allowed."""

    def check(self, call: PolicyCall) -> Awaitable[None] | None:
        """Return when the call is allowed; raise when it is not.

        Runs on every call, replays included, before the arguments are validated: it
        consumes nothing, and its answer does not depend on how often it was asked. May be
        `async`; a plain one runs on the event loop, so it must not wait for anything.

        Raises:
            AgentError: To refuse the call; the first policy that refuses wins.
        """
        ...


class AdmitsCalls(Protocol):
    """A policy that spends something for each execution that really starts."""

    def admit(self, call: PolicyCall) -> Awaitable[None] | None:
        """Spend what one execution costs; raise, and spend nothing, when it is not there.

        Runs once an execution is about to start: never on a replay, nor for a call that was
        refused. Spending is atomic: of simultaneous calls no more are admitted than the
        quota has room for. May be `async`; a plain one must not wait for anything.

        An object that has a method `give_back` as well is told when an execution that it
        admitted did not start after all.

        Raises:
            AgentError: To refuse the call; its `request_id` stays free.
        """
        ...


class GivesBack(AdmitsCalls, Protocol):
    """A policy that can take back what it spent."""

    def give_back(self, call: PolicyCall) -> Awaitable[None] | None:
        """Give back what `admit` spent: the execution did not start after all.

        A later policy refused it, or it waited in vain for its turn, a thread or a
        dependency. May be `async`; a plain one must not wait for anything.
        """
        ...


class ListsTools(Protocol):
    """A policy that says which tools a caller's catalog shows."""

    def lists(self, caller: Caller, tool: ToolSpec) -> bool:
        """Return whether `caller` gets to see `tool`, where catalogs are per caller.

        Hiding a tool does not refuse its calls; that is what `check` is for.
        """
        ...


Policy = ChecksCalls | AdmitsCalls | ListsTools
"""What a router takes: an object with one or more of the three methods."""

_Step = Callable[[PolicyCall], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Policies:
    """A router's policies, taken apart: what none of them has costs no call anything."""

    checks: tuple[_Step, ...]
    admits: tuple[_Step, ...]
    give_backs: tuple[_Step | None, ...]
    """What takes back each of `admits`, at the same place; `None` where nothing does."""
    lists: tuple[Callable[[Caller, ToolSpec], bool], ...]
    has_own: bool
    """Whether the host's policies check or count calls; `SafePolicy` says nothing of most."""

    async def check(self, call: PolicyCall) -> None:
        """Ask each policy in order; the first that refuses wins.

        Raises:
            AgentError: What a policy refused with.
            TypeError: If a policy answers with a value. Such a policy means something by
                it, so the call does not pass.
        """
        for check in self.checks:
            answer = check(call)
            if answer is not None:
                await _settled(answer, check)

    async def admit(self, call: PolicyCall) -> None:
        """Let each policy spend what one execution costs, in order; all of them, or none.

        Raises:
            AgentError: What a policy refused with.
            TypeError: As for `check`.
        """
        for place, admit in enumerate(self.admits):
            try:
                answer = admit(call)
                if answer is not None:
                    await _settled(answer, admit)
            except BaseException:
                await self.give_back(call, places=place)
                raise

    async def give_back(self, call: PolicyCall, *, places: int | None = None) -> None:
        """Let policies take back what `admit` spent, the last one first.

        Args:
            call: As admitted.
            places: How many of them did spend; all by default.
        """
        for give_back in reversed(self.give_backs[:places]):
            answer = None if give_back is None else give_back(call)
            if answer is not None:
                await answer

    def shows(self, caller: Caller, tool: ToolSpec) -> bool:
        """Return whether every policy lists `tool` for `caller`."""
        return all(lists(caller, tool) for lists in self.lists)


async def _settled(answer: object, step: _Step) -> None:
    if isinstance(answer, Awaitable):
        answer = await cast("Awaitable[object]", answer)

    if answer is not None:
        name = getattr(step, "__qualname__", type(step).__name__)
        raise TypeError(f"{name} answered with a {type(answer).__name__}; it raises to refuse.")


def compile_policies(policies: Iterable[Policy]) -> Policies:
    """Take policies apart, `SafePolicy` first.

    Raises:
        ConfigurationError: If one of them has none of the three methods, has one that can't
            be called, has an `async` method `lists`, or is a class instead of an object.
    """
    ordered: list[Policy] = [SafePolicy(), *policies]
    for policy in ordered:
        if isinstance(policy, type) or not any(_method(policy, name) for name in _METHODS):
            raise ConfigurationError(
                f"{policy!r} is not a policy: it needs to be an object with one or more of the "
                f"methods {', '.join(_METHODS)}."
            )

    checks, admits = _methods(ordered, "check"), _methods(ordered, "admit")
    return Policies(
        checks=checks,
        admits=admits,
        give_backs=tuple(
            _method(policy, "give_back") for policy in ordered if _method(policy, "admit")
        ),
        lists=_methods(ordered, "lists"),
        has_own=len(checks) > 1 or bool(admits),
    )


_METHODS = ("check", "admit", "lists")


def _methods(policies: Iterable[Policy], name: str) -> tuple[Callable[..., Any], ...]:
    found = (_method(policy, name) for policy in policies)
    return tuple(method for method in found if method is not None)


def _method(policy: Policy, name: str) -> Callable[..., Any] | None:
    # Looked up as a call would, so that a policy behind a proxy is never skipped silently.
    method: Callable[..., Any] | None = getattr(policy, name, None)
    if method is not None and not callable(method):
        raise ConfigurationError(f"{type(policy).__name__}.{name} must be a method.")

    if name == "lists" and inspect.iscoroutinefunction(method):
        # Its coroutine would count as true, and show every tool.
        raise ConfigurationError(f"{type(policy).__name__}.lists must not be async.")

    return method


class SafePolicy:
    """Lets nothing irreversible run without a person. First in every router.

    A tool with effect `destructive`, or one that requires confirmation, needs
    `confirm:<tool>` in the caller's permissions. Source: carmy/1, section 4.4.
    """

    def check(self, call: PolicyCall) -> None:
        """Refuse what needs a confirmation and has none.

        Raises:
            AgentError: `CONFIRMATION_REQUIRED`.
        """
        tool = call.tool
        if not tool.needs_confirmation:
            return

        permission = f"confirm:{tool.name}"
        if permission not in call.caller.permissions:
            raise AgentError(
                "CONFIRMATION_REQUIRED",
                f"A person must confirm this call: the caller lacks {permission!r}.",
                ErrorCategory.PERMISSION,
                recoverable=True,
            )


class RequireToolPermission:
    """Lets a caller run, and see, only the tools it has `tool:<tool>` for."""

    def check(self, call: PolicyCall) -> None:
        """Refuse a caller that lacks the tool's permission.

        Raises:
            AgentError: `FORBIDDEN`.
        """
        if not self.lists(call.caller, call.tool):
            raise AgentError(
                "FORBIDDEN",
                f"The caller lacks {f'tool:{call.tool.name}'!r}.",
                ErrorCategory.PERMISSION,
            )

    def lists(self, caller: Caller, tool: ToolSpec) -> bool:
        """Show the tools that `check` allows."""
        return f"tool:{tool.name}" in caller.permissions


class RateLimit:
    """Lets each caller start so many executions in any stretch of time.

    A caller is a principal and a session; those without either share one quota. Replays,
    refused calls, and executions that did not start after all spend nothing.

    The quota is counted in this process, exactly. To share it between processes, hand in a
    storage of the library `limits`, which the extra `ratelimit` installs; such a storage
    can't give back what an execution spent that was admitted and did not start.
    """

    def __init__(
        self,
        limit: int,
        *,
        per_seconds: int,
        per_tool: bool = False,
        storage: "str | AnyStorage | None" = None,
        namespace: str = "carmy",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up a quota.

        Args:
            limit: Most executions within any `per_seconds`.
            per_seconds: Length of the window, in whole seconds.
            per_tool: Count each tool by itself, instead of all together.
            storage: A storage of `limits` or its URL, such as
                `async+redis://localhost:6379`; it must support moving windows. One that is
                not asynchronous is used in a worker thread. `None` counts in this process.
            namespace: Keeps quotas apart that share a storage.
            clock: Seconds that never go back, for quotas in this process.

        Raises:
            ConfigurationError: If a number is not positive, or the storage does not fit.
            ImportError: If a storage is named and `limits` is not installed.
        """
        if limit < 1 or per_seconds < 1:
            raise ConfigurationError(
                f"A rate limit is 1 or more per 1 or more seconds, not {limit!r} per "
                f"{per_seconds!r}."
            )

        self._limit = limit
        self._per_seconds = per_seconds
        self._per_tool = per_tool
        self._own = MemoryQuota(limit, per_seconds, clock)
        self._shared = (
            None
            if storage is None
            else _shared_quota(limit, per_seconds, storage=storage, namespace=namespace)
        )

    def admit(self, call: PolicyCall) -> Awaitable[None] | None:
        """Spend one execution of the caller's quota.

        Raises:
            AgentError: `RATE_LIMITED`, with the seconds until there is room again.
        """
        key = self._key(call)
        if self._shared is not None:
            return self._admit_shared(self._shared, key)

        self._refuse_after(self._own.spend(key))
        return None

    def give_back(self, call: PolicyCall) -> None:
        """Take back one execution, where the quota is counted in this process."""
        if self._shared is None:
            self._own.give_back(self._key(call))

    def _key(self, call: PolicyCall) -> QuotaKey:
        caller = call.caller
        return (caller.principal, caller.session, call.tool.name if self._per_tool else None)

    async def _admit_shared(self, shared: "SharedQuota", key: QuotaKey) -> None:
        self._refuse_after(await shared.spend(key))

    def _refuse_after(self, wait_seconds: float | None) -> None:
        if wait_seconds is None:
            return

        raise AgentError(
            "RATE_LIMITED",
            f"Only {self._limit} calls per {self._per_seconds} seconds are allowed.",
            ErrorCategory.CAPACITY,
            retryable=True,
            # Floats of the clock may add up to a hair more than the window.
            retry_after=min(math.ceil(self._per_seconds), max(1, math.ceil(wait_seconds))),
        )


def _shared_quota(
    limit: int, per_seconds: int, *, storage: "str | AnyStorage", namespace: str
) -> "SharedQuota":
    # Only a quota that is shared needs the extra.
    from fastapi_carmy.shared_quotas import SharedQuota  # noqa: PLC0415

    return SharedQuota(limit, per_seconds, storage=storage, namespace=namespace)
