from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from fastapi_carmy import AgentRouter

agent = AgentRouter(server="shop")


@agent.tool(effect="read")
async def list_products() -> list[str]:
    """Return the SKU of each product."""
    return ["TEA-001", "POT-001"]


app = FastAPI()
app.include_router(agent)
app.add_middleware(
    CORSMiddleware,
    allow_origins=["https://chat.example"],
    allow_methods=["GET", "POST"],
    allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-None-Match"],
    expose_headers=["Carmy-Replayed", "ETag", "Retry-After"],
)
