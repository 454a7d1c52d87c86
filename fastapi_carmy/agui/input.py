"""The body of a request → the run's input.

What 1.0 does not know is stripped and logged, so that newer and older clients are
served; what it knows and is wrong is refused, told by path and reason. No value of the
body is ever repeated, in an answer or in a log.

Source: AG-UI 1.0, the rules for what a server receives.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from ag_ui import core
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from fastapi_carmy.agui.errors import RefusedRequestError

__all__ = ("decode", "invalid_input")

_logger = logging.getLogger("fastapi_carmy.agui")

_WHITESPACE = b" \t\r\n\f\v"
_PREFIX = "The body is not a valid AG-UI RunAgentInput"
_MOST_LOGGED = 10

_MESSAGES: Final[Mapping[str, type[BaseModel]]] = {
    "developer": core.DeveloperMessage,
    "system": core.SystemMessage,
    "assistant": core.AssistantMessage,
    "user": core.UserMessage,
    "tool": core.ToolMessage,
    "activity": core.ActivityMessage,
    "reasoning": core.ReasoningMessage,
}
_PARTS: Final[Mapping[str, type[BaseModel]]] = {
    "text": core.TextPart,
    "image": core.ImagePart,
    "audio": core.AudioPart,
    "video": core.VideoPart,
    "document": core.DocumentPart,
}
_SOURCES: Final[Mapping[str, type[BaseModel]]] = {
    "data": core.DataSource,
    "url": core.UrlSource,
    "file": core.FileSource,
}


def _fields(model: type[BaseModel]) -> dict[str, bool]:
    """Return each name of a model's fields → whether `null` there means absent."""
    names: dict[str, bool] = {}

    for name, field in model.model_fields.items():
        is_optional = not field.is_required() and field.default is None
        names[name] = names[field.alias or name] = is_optional

    return names


_PLAIN: Final[tuple[type[BaseModel], ...]] = (
    core.RunAgentInput,
    core.Tool,
    core.Context,
    core.ResumeEntry,
    core.ToolCall,
    core.FunctionCall,
)
_FIELDS: Final[Mapping[type[BaseModel], Mapping[str, bool]]] = {
    model: _fields(model)
    for models in (_PLAIN, _MESSAGES.values(), _PARTS.values(), _SOURCES.values())
    for model in models
}


def decode(body: bytes) -> core.RunAgentInput:
    """Return the run's input.

    Raises:
        RefusedRequestError: If `body` is not a `RunAgentInput` (400, `INVALID_INPUT`).
    """
    if not body.strip(_WHITESPACE):
        raise invalid_input("The body is empty; an AG-UI RunAgentInput was expected.")

    try:
        document: object = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid_input(f"{_PREFIX}: {error}.") from None

    members = _members_of(document)

    if members is None:
        raise invalid_input(f"{_PREFIX}: it is not a JSON object.")

    stripper = _Stripper()
    known = stripper.strip_input(members)
    stripper.log()

    try:
        run_input = core.RunAgentInput.model_validate(known)
    except ValidationError as error:
        raise invalid_input(f"{_PREFIX}: {_told(error, known)}.") from None

    _note_version(run_input.protocol_version)

    return run_input


def invalid_input(message: str) -> RefusedRequestError:
    """Return the refusal of a body."""
    return RefusedRequestError(400, "INVALID_INPUT", message)


def _note_version(version: str | None) -> None:
    if version is not None and version != core.PROTOCOL_VERSION:
        _logger.warning("A client speaks another AG-UI version than %s.", core.PROTOCOL_VERSION)


# Telling an error.


def _told(error: ValidationError, document: object) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    outer = first["loc"][:-1]

    # A union tells why each of its kinds did not fit; the deepest one was meant.
    for other in errors[1:]:
        if other["loc"][: len(outer)] == outer and len(other["loc"]) > len(first["loc"]):
            first = other

    return f"{_path(first, document)}: {_reason(first)}"


def _reason(error: ErrorDetails) -> str:
    # These two repeat the value.
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return "The member that tells its kind is missing or not a string"

    return error["msg"]


def _path(error: ErrorDetails, document: object) -> str:
    """Return where an error is, as in JavaScript: the union tags of pydantic are left out."""
    path, here = "", document
    last = len(error["loc"]) - 1

    for index, part in enumerate(error["loc"]):
        if isinstance(part, int):
            place, here = _item(here, part)
            path += f"[{place}]"
            continue

        members = _members_of(here)

        if members is not None and (part in members or index == last):
            path += f".{part}" if path else part
            here = members.get(part)

    return path or "body"


def _item(items: object, index: int) -> tuple[int, object]:
    """Return where an item of a list was before stripping, and the item."""
    if isinstance(items, _Kept):
        return items.places[index], items[index]

    return index, cast("list[object]", items)[index] if isinstance(items, list) else None


def _members_of(value: object) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


# Stripping.


class _Kept(list[object]):
    """What is left of a list, and where it was."""

    __slots__ = ("places",)

    def __init__(self) -> None:
        super().__init__()
        self.places: list[int] = []


class _Stripper:
    """Brings a document to what 1.0 knows, noting what it takes away."""

    def __init__(self) -> None:
        self._stripped: list[str] = []

    def log(self) -> None:
        """Say what was taken away: the places only."""
        if self._stripped:
            _logger.warning(
                "AG-UI input: %d unknown members, roles or content parts were left out: %s",
                len(self._stripped),
                ", ".join(self._stripped[:_MOST_LOGGED]),
            )

    def strip_input(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the input without what 1.0 does not know."""
        known = self._members(document, core.RunAgentInput, "")
        _each(known, "messages", lambda value: self._list(value, "messages", self._message))
        _each(known, "tools", lambda value: self._list(value, "tools", self._as(core.Tool)))
        _each(known, "context", lambda value: self._list(value, "context", self._as(core.Context)))
        _each(
            known, "resume", lambda value: self._list(value, "resume", self._as(core.ResumeEntry))
        )

        return known

    def _message(self, value: object, path: str) -> object:
        message = self._of_kind(value, "role", _MESSAGES, path)
        known = _members_of(message)

        if known is not None:
            calls, content = f"{path}.toolCalls", f"{path}.content"

            for name in ("toolCalls", "tool_calls"):
                _each(known, name, lambda value: self._list(value, calls, self._call))

            if known.get("role") in ("user", "tool"):
                _each(known, "content", lambda value: self._list(value, content, self._part))

        return message

    def _call(self, value: object, path: str) -> object:
        call = self._as(core.ToolCall)(value, path)
        known = _members_of(call)

        if known is not None:
            function = self._as(core.FunctionCall)
            _each(known, "function", lambda value: function(value, f"{path}.function"))

        return call

    def _part(self, value: object, path: str) -> object:
        part = self._of_kind(_from_binary(value), "type", _PARTS, path)
        known = _members_of(part)

        if known is not None:
            place = f"{path}.source"
            _each(known, "source", lambda value: self._of_kind(value, "type", _SOURCES, place))

            # A part whose source is of a kind that 1.0 does not know is such a part itself.
            if known.get("source") is _NOTHING:
                return _NOTHING

        return part

    def _list(self, value: object, path: str, strip: Callable[[object, str], object]) -> object:
        if not isinstance(value, list):
            return value

        kept = _Kept()

        for index, item in enumerate(cast("list[object]", value)):
            stripped = strip(item, f"{path}[{index}]")

            if stripped is not _NOTHING:
                kept.append(stripped)
                kept.places.append(index)

        return kept

    def _as(self, model: type[BaseModel]) -> Callable[[object, str], object]:
        def strip(value: object, path: str) -> object:
            members = _members_of(value)

            return value if members is None else self._members(members, model, path)

        return strip

    def _of_kind(
        self, value: object, tag: str, models: Mapping[str, type[BaseModel]], path: str
    ) -> object:
        members = _members_of(value)
        kind = None if members is None else members.get(tag)

        if members is None or not isinstance(kind, str):
            return value

        if kind not in models:
            self._stripped.append(path)
            return _NOTHING

        return self._members(members, models[kind], path)

    def _members(
        self, members: dict[str, Any], model: type[BaseModel], path: str
    ) -> dict[str, Any]:
        known: dict[str, Any] = {}
        optional = _FIELDS[model]

        for name, value in members.items():
            if name not in optional:
                # The name is the client's text, so only the place is told.
                self._stripped.append(path or "body")
            elif value is not None or not optional[name]:
                known[name] = value

        return known


class _Nothing:
    """Stands for a value that was taken away; no JSON value is it."""


_NOTHING = _Nothing()


def _each(members: dict[str, Any], name: str, strip: Callable[[object], object]) -> None:
    if name in members:
        members[name] = strip(members[name])


def _from_binary(value: object) -> object:
    """Return a part of the kind `binary`, which 1.0 dropped, in today's form."""
    part = _members_of(value)

    if part is None:
        return value

    mime = part.get("mimeType", part.get("mime_type"))

    if part.get("type") != "binary" or not isinstance(mime, str):
        return part

    for name, kind in (("data", "data"), ("url", "url"), ("id", "file")):
        if part.get(name):
            source = {"type": kind, "value": part[name], "mimeType": mime}
            break
    else:
        return part

    family = mime.partition("/")[0].lower()
    converted: dict[str, Any] = {
        "type": family if family in ("image", "audio", "video") else "document",
        "source": source,
    }

    if part.get("filename"):
        converted["metadata"] = {"filename": part["filename"]}

    return converted
