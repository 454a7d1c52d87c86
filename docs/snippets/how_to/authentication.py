from typing import Annotated

from fastapi import FastAPI, HTTPException, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from fastapi_carmy import AgentRouter, Caller

TOKENS = {
    "agent-token": Caller(principal="shop-agent"),
    "anna-token": Caller(principal="anna", permissions=frozenset({"confirm:delete_all"})),
}

Credentials = Annotated[HTTPAuthorizationCredentials, Security(HTTPBearer())]


async def get_caller(credentials: Credentials) -> Caller:
    caller = TOKENS.get(credentials.credentials)
    if caller is None:
        raise HTTPException(401, "Unknown token.", headers={"WWW-Authenticate": "Bearer"})
    return caller


agent = AgentRouter(server="shop", caller=get_caller)


@agent.tool(effect="read")
async def who_am_i(caller: Caller) -> str | None:
    """Return the caller's own name."""
    return caller.principal


@agent.tool(effect="destructive")
async def delete_all() -> str:
    """Delete everything."""
    return "deleted"


app = FastAPI()
app.include_router(agent)
