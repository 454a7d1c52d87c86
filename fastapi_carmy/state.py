"""What is known of one execution while it lives: what it was given, and how far it has come."""

from collections.abc import Callable
from enum import IntEnum

from fastapi_carmy.caller import Caller
from fastapi_carmy.cancellation import Cancellation
from fastapi_carmy.context import AgentContext
from fastapi_carmy.envelope import Call
from fastapi_carmy.errors import AgentError
from fastapi_carmy.events import Event
from fastapi_carmy.policies import PolicyCall
from fastapi_carmy.reservation import Reservation
from fastapi_carmy.result import NextAction
from fastapi_carmy.seams import Home, Opened
from fastapi_carmy.stores.base import Key
from fastapi_carmy.threads import ThreadCall
from fastapi_carmy.turns import Turn

__all__ = ("ExecutionState", "Phase")


class Phase(IntEnum):
    """How far an execution has come; decides what its end means."""

    WAITING = 0
    OPENING = 1
    RUNNING = 2
    """The tool's own code has begun."""
    RETURNED = 3
    """The point of no return: neither a hang-up nor the deadline counts any more."""


_WAITING = Phase.WAITING


class ExecutionState:
    """One call on its way through the pipeline.

    What most calls never need is made when somebody asks for it.
    """

    __slots__ = (
        "_asked",
        "_caller",
        "admitted",
        "call",
        "cancellation",
        "home",
        "id",
        "is_left_behind",
        "made_context",
        "opened",
        "outlived",
        "phase",
        "report",
        "reservation",
        "settings",
        "started",
        "thread",
        "tool_started",
        "turn",
    )

    call: Call
    """The decoded request, once it is run."""
    started: float
    """When it was run, by `time.monotonic`."""

    def __init__(
        self,
        home: Home,
        opened: Opened,
        cancellation: Cancellation,
        report: Callable[[Event], None] | None,
    ) -> None:
        """Nothing runs yet.

        Args:
            home: Where it lives.
            opened: The call's dependencies.
            cancellation: The call's signal.
            report: Takes the execution's events, or `None` when nobody watches.
        """
        self.id = next(home.ids)
        self.settings = home.settings
        self.home = home
        self.opened = opened
        self.cancellation = cancellation
        self.report = report
        self.phase = _WAITING
        self.turn: Turn | None = None
        """The tool's turn, while it has it."""
        self.tool_started: float | None = None
        """When the tool was about to run, by `time.monotonic`, if somebody watches."""
        self.thread: ThreadCall | None = None
        """The thread that runs the tool, while it does."""
        self.reservation: Reservation | None = None
        """The hold on the call's `request_id`, once there is one."""
        self.admitted: PolicyCall | None = None
        """What policies have spent something for, as long as they may take it back."""
        self.outlived: AgentError | None = None
        """The answer that was given while the tool's thread went on."""
        self.is_left_behind = False
        """Whether the process waits for it no more."""
        self.made_context: AgentContext | None = None
        """The execution as the tool sees it, if anybody has asked for it."""
        self._asked: PolicyCall | None = None
        self._caller: Caller | None = None

    @property
    def caller(self) -> Caller:
        """Who calls; an anonymous one when the host named nobody."""
        if self._caller is None:
            self._caller = self.opened.caller or Caller()

        return self._caller

    @property
    def key(self) -> Key:
        """What the call's `request_id` is kept under; only for one that is valid."""
        caller = self.opened.caller
        principal, session = (None, None) if caller is None else (caller.principal, caller.session)
        return Key(principal, session, str(self.call.request_id))

    @property
    def request_id(self) -> str | None:
        """The caller's key for this call, if it sent a text."""
        sent = self.call.request_id
        return sent if isinstance(sent, str) else None

    @property
    def asked(self) -> PolicyCall:
        """The call as policies see it; only for a tool that exists."""
        if self._asked is None:
            tool, arguments = self.call.tool, self.call.arguments_as_sent
            assert tool is not None
            self._asked = PolicyCall(tool.spec, self.caller, self.request_id, arguments)

        return self._asked

    def context(self) -> AgentContext:
        """Return the execution as the tool sees it; call it in the execution's thread."""
        if self.made_context is None:
            self.made_context = AgentContext(
                execution_id=self.id,
                tool=self.call.tool_name,
                request_id=self.request_id,
                caller=self.caller,
                cancellation=self.cancellation,
                report=self.report,
            )

        return self.made_context

    def suggestions(self) -> tuple[NextAction, ...]:
        """Return what the tool suggested to do next."""
        return () if self.made_context is None else self.made_context.suggestions
