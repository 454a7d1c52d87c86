"""Who asks: bearer tokens from the database, for REST endpoints and for agents."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import HTTPException, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from example_shop.catalog import token_hash
from example_shop.database import CurrentSession
from example_shop.models import AccessToken
from fastapi_carmy import Caller

__all__ = ("User", "get_caller", "get_user", "may_order", "may_restock")

bearer = HTTPBearer(description="One of the seeded tokens, such as `agent-token`.")


@dataclass(frozen=True)
class User:
    """The holder of a token."""

    principal: str
    permissions: frozenset[str]


async def get_user(
    needed: SecurityScopes,
    credentials: Annotated[HTTPAuthorizationCredentials, Security(bearer)],
    session: CurrentSession,
) -> User:
    """Return the holder of the request's token, if it may do what is needed."""
    token = await session.get(AccessToken, token_hash(credentials.credentials))
    if token is None:
        raise HTTPException(401, "Unknown token.", headers={"WWW-Authenticate": "Bearer"})

    user = User(token.principal, frozenset(token.permissions))
    if missing := sorted(set(needed.scopes) - user.permissions):
        raise HTTPException(403, f"This token lacks the permission: {', '.join(missing)}.")

    return user


may_order = Security(get_user, scopes=["orders"])
may_restock = Security(get_user, scopes=["stock"])


async def get_caller(user: Annotated[User, Security(get_user)]) -> Caller:
    """Tell the agent router who calls."""
    return Caller(principal=user.principal, permissions=user.permissions)
