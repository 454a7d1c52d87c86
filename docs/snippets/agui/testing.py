from ag_ui.core import RunFinishedEvent

from docs.snippets.tutorial.agents import PRICES, Cart, clerk
from fastapi_carmy.agui.testing import assert_events, collect, run_input


async def test_the_clerk_asks_before_it_buys() -> None:
    events = await collect(clerk, run_input("A pot, please."), values={"prices": PRICES})

    assert_events(events, ["RUN_STARTED", "RUN_FINISHED"])
    last = events[-1]
    assert isinstance(last, RunFinishedEvent)
    assert last.outcome is not None
    assert last.outcome.type == "interrupt"


async def test_the_clerk_buys_what_was_confirmed() -> None:
    asked = run_input(
        "A pot, please.",
        resume=[{"interruptId": "buy-pot", "status": "resolved", "payload": True}],
    )

    events = await collect(clerk, asked, state=Cart, values={"prices": PRICES})

    assert_events(
        events,
        [
            "RUN_STARTED",
            {"type": "STEP_STARTED", "stepName": "booking"},
            {"type": "STATE_SNAPSHOT", "snapshot": {"items": ["pot"], "total_cents": 3400}},
            "STEP_FINISHED",
            "TEXT_MESSAGE_START",
            {"type": "TEXT_MESSAGE_CONTENT", "delta": "One pot is in your cart."},
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ],
    )
