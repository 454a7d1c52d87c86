"""How the three routes are documented in the host's OpenAPI."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from fastapi_carmy.errors import STATUS, ErrorCategory
from fastapi_carmy.http.samples import sample
from fastapi_carmy.tool import ToolSpec

if TYPE_CHECKING:
    from _collections_abc import dict_items

__all__ = (
    "AgentFailure",
    "LazyOperation",
    "document_responses",
    "execute_operation",
    "execute_responses",
)

_Schema = dict[str, object]

_ERROR: Final[_Schema] = {
    "title": "AgentError",
    "type": "object",
    "required": ["code", "message", "category", "recoverable", "retryable"],
    "properties": {
        "code": {"type": "string", "examples": ["INVALID_ARGUMENTS"]},
        "message": {"type": "string"},
        "category": {"enum": [category.value for category in ErrorCategory]},
        "recoverable": {"type": "boolean"},
        "retryable": {"type": "boolean"},
        "retry_after": {"type": "integer", "description": "Whole seconds."},
        "suggested_action": {"type": "string", "description": "Name of a tool that helps."},
        "details": {},
    },
}
_NEXT_ACTION: Final[_Schema] = {
    "type": "object",
    "required": ["tool", "reason"],
    "properties": {
        "tool": {"type": "string"},
        "arguments": {"type": "object"},
        "reason": {"type": "string"},
        "after_ms": {"type": "integer"},
    },
}
_AGENT: Final[_Schema] = {
    "type": "object",
    "required": ["cacheable", "next_actions"],
    "properties": {
        "cacheable": {"type": "boolean"},
        "next_actions": {"type": "array", "items": _NEXT_ACTION},
    },
}
_FAILURE: Final[_Schema] = {
    "title": "Failure",
    "type": "object",
    "required": ["error"],
    "properties": {
        "execution_id": {"type": "string"},
        "status": {"enum": ["failed", "cancelled", "timed_out"]},
        "error": _ERROR,
        "_agent": _AGENT,
    },
}


class AgentFailure(BaseModel):
    """A refusal, or an execution that failed."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls,
        core_schema: CoreSchema,
        handler: GetJsonSchemaHandler,
    ) -> dict[str, Any]:
        """Return the schema; as a model it stands once in the host's document."""
        return _FAILURE


_REQUEST_ID: Final[_Schema] = {
    "type": ["string", "null"],
    "minLength": 1,
    "maxLength": 256,
    "description": "Names this call: made again, it is answered and not run twice.",
}
_MEANING: Final[Mapping[int, str]] = {
    400: "The request, or its arguments, are not valid",
    401: "The caller is not known",
    403: "The caller may not do this, or a person must confirm it",
    404: "There is no such tool, or no such thing",
    405: "The path does not answer this method",
    408: "The execution was cancelled",
    409: "The request_id is taken, or the state does not allow this",
    413: "The body is too large",
    500: "The tool failed unexpectedly",
    503: "Too much to do now; try again later",
    504: "The tool did not finish in time",
}


class LazyOperation(dict[str, object]):
    """Part of an operation, made when the OpenAPI document is.

    Tools are added after their route, and the document may be asked for before any
    lifespan has run.
    """

    def __init__(self, make: Callable[[], _Schema]) -> None:
        """Make the part by `make`, each time it is read."""
        # FastAPI passes over an empty one.
        super().__init__({"x-protocol": "carmy/1"})
        self._make = make

    def items(self) -> "dict_items[str, object]":
        """Return the made part; the one way in which FastAPI reads it."""
        return {**self, **self._make()}.items()


def document_responses() -> dict[int | str, dict[str, object]]:
    """Return the responses of a document's route, by status."""
    return {
        200: {
            "description": "The document",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        304: {"description": "The client's copy is still the right one"},
        "default": _failure("A refusal"),
    }


def execute_responses(*, has_caller: bool) -> dict[int | str, dict[str, object]]:
    """Return the responses of the execute route that no tool changes, by status."""
    statuses = sorted({*STATUS.values(), 413, *((401,) if has_caller else ())})
    responses: dict[int | str, dict[str, object]] = {
        status: _failure(_MEANING[status]) for status in statuses
    }
    responses["default"] = _failure("A refusal by a guard of the host")
    return responses


def execute_operation(tools: Sequence[ToolSpec]) -> _Schema:
    """Return the request body and the success of the execute route, one schema a tool."""
    calls = [_call(tool) for tool in tools]
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"oneOf": calls} if calls else {"not": {}},
                    "examples": {tool.name: _example_of(tool) for tool in tools},
                }
            },
        },
        "responses": {
            "200": {
                "description": "The tool's answer, or the events of its execution",
                "content": {
                    "application/json": {"schema": _success(tools)},
                    "text/event-stream": {"schema": {"type": "string"}},
                },
            }
        },
    }


def _failure(description: str) -> dict[str, object]:
    return {"description": description, "model": AgentFailure}


def _call(tool: ToolSpec) -> _Schema:
    arguments = _without_references(tool.input_schema)
    required = ["tool", "arguments"] if arguments.get("required") else ["tool"]
    return {
        "title": tool.name,
        "description": tool.description,
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": {
            "tool": {"const": tool.name},
            "arguments": arguments,
            "request_id": _REQUEST_ID,
        },
    }


def _success(tools: Iterable[ToolSpec]) -> _Schema:
    outputs: list[_Schema] = []

    for tool in tools:
        output = _without_references(tool.output_schema)

        if output not in outputs:
            outputs.append(output)

    return {
        "title": "Success",
        "type": "object",
        "required": ["execution_id", "status", "data", "_agent"],
        "properties": {
            "execution_id": {"type": "string"},
            "status": {"const": "completed"},
            "data": {"anyOf": outputs} if outputs else {},
            "_agent": _AGENT,
        },
    }


def _example_of(tool: ToolSpec) -> _Schema:
    call: _Schema = {
        "tool": tool.name,
        "arguments": sample(_without_references(tool.input_schema)),
    }

    if not tool.is_repeatable:
        call["request_id"] = f"{tool.name}-1"

    return {"summary": tool.description.partition("\n")[0], "value": call}


def _without_references(schema: Mapping[str, object]) -> _Schema:
    """Return `schema` with each `$ref` replaced by what it names.

    Inside an OpenAPI document a tool's own `#/$defs/…` would point elsewhere. A schema that
    refers to itself is cut there: OpenAPI says less than the catalog, and nothing wrong.
    """
    named = _mapping(schema.get("$defs")) or {}
    return _resolved_mapping(
        {key: value for key, value in schema.items() if key != "$defs"}, named, ()
    )


def _mapping(value: object) -> Mapping[str, object] | None:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else None


def _sequence(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else ()


def _resolved(value: object, named: Mapping[str, object], inside: tuple[str, ...]) -> object:
    mapping = _mapping(value)

    if mapping is not None:
        return _resolved_mapping(mapping, named, inside)

    if isinstance(value, list):
        return [_resolved(item, named, inside) for item in _sequence(cast("object", value))]

    return value


def _resolved_mapping(
    value: Mapping[str, object], named: Mapping[str, object], inside: tuple[str, ...]
) -> _Schema:
    reference = value.get("$ref")

    if not isinstance(reference, str):
        # A mapping of discriminator values points into the definitions as well.
        return {
            key: _resolved(item, named, inside)
            for key, item in value.items()
            if key != "discriminator"
        }

    name = reference.removeprefix("#/$defs/")
    target = _mapping(named.get(name))

    if name in inside or target is None:
        return {}

    beside = {key: item for key, item in value.items() if key != "$ref"}
    return {**_resolved_mapping(target, named, (*inside, name)), **beside}
