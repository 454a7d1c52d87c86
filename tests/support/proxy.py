"""A reverse proxy that strips a prefix, as an ASGI application of its own."""

from collections.abc import AsyncIterator

import httpx2
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

__all__ = ("StrippingProxy",)

_PER_CONNECTION = frozenset(("connection", "content-length", "host", "transfer-encoding"))


class StrippingProxy:
    """Passes `/prefix/path` on as `/path`, and answers anything else with 404."""

    def __init__(self, upstream: str, prefix: str) -> None:
        self._upstream = upstream
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        request = Request(scope, receive)
        raw_path = scope["raw_path"].decode()
        if not raw_path.startswith(f"{self._prefix}/"):
            await Response(status_code=404)(scope, receive, send)
            return

        async with httpx2.AsyncClient(timeout=5) as client:
            passed_on = client.build_request(
                request.method,
                self._upstream + raw_path.removeprefix(self._prefix),
                headers=_passed_on(request.headers.items()),
                content=await request.body(),
            )
            response = await client.send(passed_on, stream=True)

            async def chunks() -> AsyncIterator[bytes]:
                async for chunk in response.aiter_raw():
                    yield chunk

            headers = _passed_on(response.headers.items())
            answer = StreamingResponse(chunks(), response.status_code, headers)
            await answer(scope, receive, send)
            await response.aclose()


def _passed_on(headers: object) -> dict[str, str]:
    pairs: dict[str, str] = dict(headers)  # type: ignore[call-overload]
    return {name: value for name, value in pairs.items() if name.lower() not in _PER_CONNECTION}
