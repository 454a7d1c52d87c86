"""The plain endpoint in a router that is included, as an `AgentRouter` always is."""

from fastapi import APIRouter, FastAPI

from benchmarks.contenders.fastapi_plain import create_order

router = APIRouter()
router.add_api_route("/orders", create_order, methods=["POST"])

app = FastAPI()
app.include_router(router)
