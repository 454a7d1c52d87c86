"""The limit: an ASGI function that reads the body and sends fixed bytes."""

from starlette.types import Receive, Scope, Send

ANSWER = b'{"sku":"A-1","quantity":2,"total":5.0}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer every request alike."""
    if scope["type"] != "http":
        return

    while (await receive()).get("more_body"):
        pass

    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})
