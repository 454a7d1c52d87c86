"""A Starlette route that reads and writes with orjson, and validates nothing."""

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.contenders.orders import PRICE


async def create_order(request: Request) -> Response:
    """Place an order."""
    order = orjson.loads(await request.body())
    order["total"] = order["quantity"] * PRICE
    return Response(orjson.dumps(order), media_type="application/json")


app = Starlette(routes=[Route("/orders", create_order, methods=["POST"])])
