"""How an agent's route is documented in the host's OpenAPI."""

from collections.abc import Sequence
from typing import Any, Final, cast

from ag_ui.core import AgentCapabilities, RunAgentInput

from fastapi_carmy.agui.negotiation import EVENT_STREAM

__all__ = ("capabilities_responses", "run_operation", "run_responses")

_REFUSAL: Final = {
    "title": "Refusal",
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
}
_MEANING: Final = {
    400: "The body is not a RunAgentInput",
    406: "The client does not take an event stream",
    413: "The body is too large",
    415: "The body does not say that it is JSON",
}


def run_operation() -> dict[str, Any]:
    """Return the request body of an agent's route."""
    schema = _inlined(RunAgentInput.model_json_schema(by_alias=True))

    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": schema,
                    "example": {
                        "threadId": "thread-1",
                        "runId": "run-1",
                        "messages": [{"id": "user-1", "role": "user", "content": "Hello!"}],
                    },
                }
            },
        }
    }


def run_responses() -> dict[int | str, dict[str, Any]]:
    """Return the responses of an agent's route, by status."""
    responses: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The run's events, one `data:` line each",
            "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
        }
    }
    responses |= {status: _refusal(meaning) for status, meaning in _MEANING.items()}
    responses["default"] = _refusal("A refusal by a guard or a dependency of the host")

    return responses


def capabilities_responses() -> dict[int | str, dict[str, Any]]:
    """Return the responses of the route that tells an agent's capabilities."""
    schema = _inlined(AgentCapabilities.model_json_schema(by_alias=True))

    return {
        200: {
            "description": "What the agent can do",
            "content": {"application/json": {"schema": schema}},
        },
        "default": _refusal("A refusal by a guard of the host"),
    }


def _refusal(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _REFUSAL}}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` with each `$ref` replaced by what it names; none refers to itself."""
    named: dict[str, Any] = schema.get("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, list):
            return [inline(item) for item in cast("Sequence[Any]", value)]

        if not isinstance(value, dict):
            return value

        members = cast("dict[str, Any]", value)
        reference = members.get("$ref")

        if isinstance(reference, str):
            rest = {key: item for key, item in members.items() if key != "$ref"}
            return {**inline(named[reference.removeprefix("#/$defs/")]), **rest}

        # A mapping of discriminator values points into the definitions as well.
        return {
            key: inline(item)
            for key, item in members.items()
            if key not in ("$defs", "discriminator")
        }

    made: dict[str, Any] = inline(schema)

    return made
