"""An endpoint that returns a response which was made before; as long as our catalog."""

from fastapi import FastAPI, Response

from benchmarks.contenders.carmy_plain import agent

app = FastAPI()
document = b"x" * len(agent._catalog().document.body)  # noqa: SLF001 - only its length counts


@app.get("/document")
async def get_document() -> Response:
    """Return the document."""
    return Response(document, media_type="application/json")
