from typing import Annotated

from fastapi import Depends, FastAPI
from pydantic import BaseModel

from fastapi_carmy import AgentRouter
from fastapi_carmy.agui import RunContext, RunOutcome

PRICES = {"tea": 790, "pot": 3400}


class Cart(BaseModel):
    items: list[str] = []
    total_cents: int = 0


async def get_prices() -> dict[str, int]:
    return PRICES


router = AgentRouter(server="shop")


@router.agui("/chat", state=Cart)
async def clerk(
    run: RunContext[Cart], prices: Annotated[dict[str, int], Depends(get_prices)]
) -> RunOutcome | None:
    wanted = next((item for item in prices if item in (run.last_user_text or "")), None)

    if wanted is None:
        await run.say(f"We have {', '.join(prices)}.")
        return None

    question = f"buy-{wanted}"
    answer = run.resume_for(question)

    if answer is None:
        return run.interrupt(id=question, reason="confirmation", message=f"Buy the {wanted}?")

    if answer.payload is not True:
        await run.say("Another time, then.")
        return None

    async with run.step("booking"):
        run.state.items.append(wanted)
        run.state.total_cents += prices[wanted]
        await run.publish_state()

    await run.say(f"One {wanted} is in your cart.")
    return None


app = FastAPI()
app.include_router(router)
