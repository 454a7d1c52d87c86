import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import anyio
import pytest
from limits.aio.storage import MemoryStorage as AsyncMemoryStorage
from limits.storage import MemoryStorage, Storage

from fastapi_carmy.caller import Caller
from fastapi_carmy.errors import AgentError, ConfigurationError, ErrorCategory
from fastapi_carmy.policies import (
    Policies,
    Policy,
    PolicyCall,
    RateLimit,
    RequireToolPermission,
    SafePolicy,
    compile_policies,
)
from fastapi_carmy.quotas import MemoryQuota
from fastapi_carmy.tool import Confirmation, Effect, ToolSpec
from tests.support.clock import Clock

ALICE = Caller("alice", "chat-1")
BOB = Caller("bob", "chat-1")


def tool(
    name: str = "count", effect: Effect = Effect.WRITE, confirmation: Confirmation = "none"
) -> ToolSpec:
    return ToolSpec(
        name=name,
        description="",
        input_schema={},
        output_schema={},
        effect=effect,
        confirmation=confirmation,
    )


def call(
    spec: ToolSpec | None = None,
    caller: Caller = ALICE,
    read_arguments: Callable[[], Mapping[str, object]] = dict,
) -> PolicyCall:
    return PolicyCall(spec or tool(), caller, "order-1", read_arguments)


async def refusal_of(policies: Policies, policy_call: PolicyCall) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await policies.check(policy_call)
    return caught.value


async def admit(limit: RateLimit, policy_call: PolicyCall | None = None) -> None:
    await compile_policies([limit]).admit(policy_call or call())


async def wait_told_by(limit: RateLimit, policy_call: PolicyCall | None = None) -> int | None:
    with pytest.raises(AgentError) as caught:
        await admit(limit, policy_call)
    assert caught.value.code == "RATE_LIMITED"
    return caught.value.retry_after


def test_a_policy_that_looks_at_the_arguments_has_them_read_once() -> None:
    reads: list[None] = []

    def read_arguments() -> Mapping[str, object]:
        reads.append(None)
        return {"x": 1}

    policy_call = call(read_arguments=read_arguments)

    assert reads == []
    assert policy_call.arguments == {"x": 1}
    assert policy_call.arguments is policy_call.arguments
    assert reads == [None]


async def test_policies_are_asked_in_order_and_the_first_refusal_wins() -> None:
    asked: list[str] = []

    class Refusing:
        def __init__(self, code: str) -> None:
            self.code = code

        async def check(self, call: PolicyCall) -> None:
            asked.append(self.code)
            raise AgentError(self.code, "No.", ErrorCategory.PERMISSION)

    class Allowing:
        def check(self, call: PolicyCall) -> None:
            asked.append(call.caller.principal or "")

    policies = compile_policies([Allowing(), Refusing("FIRST"), Refusing("SECOND")])

    assert (await refusal_of(policies, call())).code == "FIRST"
    assert asked == ["alice", "FIRST"]


async def test_the_safe_policy_comes_before_those_of_the_router() -> None:
    asked: list[str] = []

    class Watching:
        def check(self, call: PolicyCall) -> None:
            asked.append(call.tool.name)

    policies = compile_policies([Watching()])

    refusal = await refusal_of(policies, call(tool("wipe", Effect.DESTRUCTIVE)))

    assert refusal.code == "CONFIRMATION_REQUIRED"
    assert asked == []


async def test_a_policy_may_have_any_of_the_three_methods() -> None:
    admitted: list[str] = []

    class Admitting:
        async def admit(self, call: PolicyCall) -> None:
            admitted.append(call.tool.name)

    class Listing:
        def lists(self, caller: Caller, tool: ToolSpec) -> bool:
            return tool.name != "secret"

    policies = compile_policies([Admitting(), Listing()])

    await policies.check(call())
    assert admitted == []
    await policies.admit(call())
    assert admitted == ["count"]
    assert policies.shows(ALICE, tool())
    assert not policies.shows(ALICE, tool("secret"))
    assert (len(policies.checks), len(policies.admits), len(policies.lists)) == (1, 1, 1)


async def test_a_check_that_answers_instead_of_raising_lets_nothing_pass() -> None:
    class AnsweringNo:
        def check(self, call: PolicyCall) -> bool:
            return False

    class AnsweringLater:
        async def check(self, call: PolicyCall) -> bool:
            return True

    class Yielding:
        async def check(self, call: PolicyCall) -> AsyncIterator[None]:
            yield

    for policy in (AnsweringNo(), AnsweringLater(), Yielding()):
        with pytest.raises(TypeError, match=type(policy).__name__):
            await compile_policies([policy]).check(call())  # type: ignore[list-item]


async def test_a_plain_method_may_return_an_awaitable() -> None:
    passed: list[str] = []

    async def later(name: str) -> None:
        passed.append(name)

    class Deferring:
        def check(self, call: PolicyCall) -> Awaitable[None]:
            return later("check")

        def admit(self, call: PolicyCall) -> Awaitable[None]:
            return later("admit")

    policies = compile_policies([Deferring()])
    await policies.check(call())
    await policies.admit(call())

    assert passed == ["check", "admit"]


async def test_a_policy_behind_a_proxy_is_asked() -> None:
    class Proxy:
        def __getattr__(self, name: str) -> object:
            return getattr(RequireToolPermission(), name)

    policies = compile_policies([Proxy()])  # type: ignore[list-item]

    assert (await refusal_of(policies, call())).code == "FORBIDDEN"


def _no_policies() -> list[object]:
    class Misspelt:
        def chek(self, call: PolicyCall) -> None: ...

    class Flag:
        check = True

    class AsyncLists:
        async def lists(self, caller: Caller, tool: ToolSpec) -> bool:
            return False

    return [Misspelt(), Flag(), AsyncLists(), RequireToolPermission, "allow", None]


@pytest.mark.parametrize(
    "policy", _no_policies(), ids=["misspelt", "flag", "async", "class", "text", "none"]
)
def test_what_is_no_policy_stops_the_start(policy: Policy) -> None:
    with pytest.raises(ConfigurationError):
        compile_policies([policy])


@pytest.mark.spec("carmy/1 4.4")
@pytest.mark.parametrize(
    "spec",
    [tool("wipe", Effect.DESTRUCTIVE), tool("wipe", Effect.READ, confirmation="required")],
    ids=["destructive", "required"],
)
async def test_what_needs_a_person_needs_the_permission_that_says_one_confirmed(
    spec: ToolSpec,
) -> None:
    policies = compile_policies([])

    for permissions in (set[str](), {"confirm:count"}, {"confirm:"}, {"confirm:*"}, {"tool:wipe"}):
        caller = Caller("alice", permissions=frozenset(permissions))
        refusal = await refusal_of(policies, call(spec, caller))

        assert refusal.as_dict() == {
            "code": "CONFIRMATION_REQUIRED",
            "message": "A person must confirm this call: the caller lacks 'confirm:wipe'.",
            "category": "permission",
            "recoverable": True,
            "retryable": False,
        }

    confirmed = Caller("alice", permissions=frozenset({"confirm:wipe"}))
    await policies.check(call(spec, confirmed))


@pytest.mark.parametrize("effect", [e for e in Effect if e is not Effect.DESTRUCTIVE])
async def test_what_needs_nobody_runs_for_everybody(effect: Effect) -> None:
    await compile_policies([]).check(call(tool("count", effect), Caller()))


async def test_the_safe_policy_hides_nothing() -> None:
    assert compile_policies([SafePolicy()]).shows(Caller(), tool("wipe", Effect.DESTRUCTIVE))


@pytest.mark.spec("carmy/1 4.5")
async def test_a_caller_without_the_tools_permission_neither_runs_nor_sees_it() -> None:
    policies = compile_policies([RequireToolPermission()])
    caller = Caller("alice", permissions=frozenset({"tool:count"}))

    await policies.check(call(tool("count"), caller))
    refusal = await refusal_of(policies, call(tool("wipe"), caller))

    assert refusal.as_dict() == {
        "code": "FORBIDDEN",
        "message": "The caller lacks 'tool:wipe'.",
        "category": "permission",
        "recoverable": False,
        "retryable": False,
    }
    assert policies.shows(caller, tool("count"))
    assert not policies.shows(caller, tool("wipe"))


@pytest.mark.spec("carmy/1 7.18")
async def test_the_third_call_of_a_window_is_told_how_long_to_wait() -> None:
    clock = Clock()
    limit = RateLimit(2, per_seconds=60, clock=clock)
    await admit(limit)
    clock.now = 10.5
    await admit(limit)
    clock.now = 20

    with pytest.raises(AgentError) as caught:
        await admit(limit)

    assert caught.value.as_dict() == {
        "code": "RATE_LIMITED",
        "message": "Only 2 calls per 60 seconds are allowed.",
        "category": "capacity",
        "recoverable": True,
        "retryable": True,
        "retry_after": 40,
    }
    await admit(limit, call(caller=BOB))


async def test_waiting_as_long_as_told_is_enough() -> None:
    clock = Clock(1000.1)
    limit = RateLimit(2, per_seconds=60, clock=clock)
    await admit(limit)
    clock.now += 30.3
    await admit(limit)

    assert await wait_told_by(limit) == 30
    clock.now += 30
    await admit(limit)


@pytest.mark.parametrize(("now", "seconds"), [(0, 60), (0.1, 60), (59.0, 1), (59.9, 1)])
async def test_the_wait_is_told_in_whole_seconds(now: float, seconds: int) -> None:
    clock = Clock()
    limit = RateLimit(1, per_seconds=60, clock=clock)
    await admit(limit)

    clock.now = now

    assert await wait_told_by(limit) == seconds


async def test_a_refused_call_spends_nothing() -> None:
    clock = Clock()
    limit = RateLimit(1, per_seconds=60, clock=clock)
    await admit(limit)
    for now in range(60):
        clock.now = now
        await wait_told_by(limit)

    clock.now = 60

    await admit(limit)


async def test_checking_a_call_spends_nothing() -> None:
    policies = compile_policies([RateLimit(1, per_seconds=60)])

    for _ in range(3):
        await policies.check(call())

    await policies.admit(call())


async def test_no_window_of_any_position_holds_more_than_the_limit() -> None:
    clock = Clock()
    limit = RateLimit(2, per_seconds=10, clock=clock)
    admitted: list[float] = []
    for now in (0, 9, 9.5, 10, 10.5, 18.9, 19, 20, 28, 29, 29.5):
        clock.now = now
        try:
            await admit(limit)
        except AgentError:
            continue
        admitted.append(now)

    assert admitted == [0, 9, 10, 19, 20, 29]


async def test_callers_have_quotas_of_their_own() -> None:
    limit = RateLimit(1, per_seconds=60)
    callers = [
        Caller("alice", "chat-1"),
        Caller("alice", "chat-2"),
        Caller("bob", "chat-1"),
        Caller("alice"),
        Caller(None, "alice"),
        Caller(),
    ]

    for caller in callers:
        await admit(limit, call(caller=caller))

    for caller in callers:
        await wait_told_by(limit, call(caller=caller))


async def test_callers_that_say_nothing_of_themselves_share_one_quota() -> None:
    limit = RateLimit(1, per_seconds=60)
    await admit(limit, call(caller=Caller(permissions=frozenset({"one"}))))

    await wait_told_by(limit, call(caller=Caller(permissions=frozenset({"other"}))))


async def test_a_quota_counts_all_tools_together_unless_told_otherwise() -> None:
    together = RateLimit(1, per_seconds=60)
    await admit(together, call(tool("one")))
    await wait_told_by(together, call(tool("other")))

    each = RateLimit(1, per_seconds=60, per_tool=True)
    await admit(each, call(tool("one")))
    await admit(each, call(tool("other")))
    await wait_told_by(each, call(tool("one")))


def test_callers_that_have_been_idle_for_a_window_are_forgotten() -> None:
    clock = Clock()
    quota = MemoryQuota(1, 60, clock)
    for number in range(1000):
        quota.spend((f"old-{number}",))
    clock.now = 60

    for number in range(1000):
        quota.spend((f"new-{number}",))

    assert quota.key_count == 1000


async def test_counting_leaves_no_thread_and_works_in_any_loop() -> None:
    limit = RateLimit(2, per_seconds=60)
    before = set(threading.enumerate())

    await admit(limit)
    thread = threading.Thread(target=anyio.run, args=(admit, limit))
    thread.start()
    thread.join(5)
    await wait_told_by(limit)

    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("limit", "per_seconds"), [(0, 60), (-1, 60), (2, 0)])
def test_a_quota_of_nothing_stops_the_start(limit: int, per_seconds: int) -> None:
    with pytest.raises(ConfigurationError, match="rate limit"):
        RateLimit(limit, per_seconds=per_seconds)


@pytest.mark.parametrize("make", [MemoryStorage, AsyncMemoryStorage], ids=["plain", "async"])
async def test_a_storage_of_limits_counts_the_same(make: Callable[[], Storage]) -> None:
    limit = RateLimit(2, per_seconds=60, storage=make())
    await admit(limit)
    await admit(limit)

    wait = await wait_told_by(limit)

    assert wait is not None
    assert 55 <= wait <= 60
    await admit(limit, call(caller=BOB))


async def test_quotas_in_one_storage_meet_only_under_one_namespace() -> None:
    storage = AsyncMemoryStorage()
    one = RateLimit(1, per_seconds=60, storage=storage)
    same = RateLimit(1, per_seconds=60, storage=storage)
    other = RateLimit(1, per_seconds=60, storage=storage, namespace="other")
    await admit(one)

    await wait_told_by(same)
    await admit(other)


async def test_callers_whose_names_hold_separators_never_meet_in_a_storage() -> None:
    limit = RateLimit(1, per_seconds=60, storage=AsyncMemoryStorage())

    for principal in ("a", "a/=b", "a/b", "-", "=", None):
        for session in ("c", "b/=c", "b/c", "-", None):
            await admit(limit, call(caller=Caller(principal, session)))


async def test_a_storage_is_named_by_its_url() -> None:
    limit = RateLimit(1, per_seconds=60, storage="async+memory://")
    await admit(limit)

    await wait_told_by(limit)


class WithoutWindows(Storage):
    """Counts, and cannot do more."""

    STORAGE_SCHEME = None

    @property
    def base_exceptions(self) -> type[Exception]:
        return Exception

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return amount

    def get(self, key: str) -> int:
        return 0

    def get_expiry(self, key: str) -> float:
        return 0

    def check(self) -> bool:
        return True

    def reset(self) -> int | None:
        return None

    def clear(self, key: str) -> None: ...


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        (WithoutWindows(), "WithoutWindows has no moving windows"),
        (object(), "'object' is not a storage"),
        ("nowhere://carmy:hunter2@db", "scheme"),
    ],
)
def test_a_storage_that_does_not_fit_stops_the_start(storage: Storage, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        RateLimit(1, per_seconds=60, storage=storage)

    assert "hunter2" not in str(caught.value)


def test_only_a_shared_quota_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fastapi_carmy.shared_quotas", raising=False)
    monkeypatch.setitem(sys.modules, "limits", None)

    RateLimit(1, per_seconds=60)
    with pytest.raises(ImportError, match=r'pip install "fastapi-carmy\[ratelimit\]"'):
        RateLimit(1, per_seconds=60, storage="async+redis://localhost")
