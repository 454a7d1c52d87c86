"""The state that an agent shares with its client: read, changed, published."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast, get_origin

import jsonpatch
from ag_ui.core import BaseEvent, StateDeltaEvent, StateSnapshotEvent
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from fastapi_carmy.agui.encode import json_document
from fastapi_carmy.agui.errors import InvalidStateError

__all__ = ("StatePublisher", "StateType")

S = TypeVar("S")


class StateType(Generic[S]):
    """The type of an agent's state; without one, any JSON value will do."""

    __slots__ = ("_adapter", "_make")

    def __init__(self, type_: Any = None) -> None:
        """Prepare to read and write states.

        Args:
            type_: A pydantic model, dataclass, `TypedDict`, or whatever pydantic knows.
        """
        self._adapter: TypeAdapter[S] | None = None if type_ is None else TypeAdapter(type_)
        self._make: Callable[[], S] | None = _maker(type_)

    def read(self, state: object) -> S:
        """Return the client's state in the agent's type.

        `None` and `{}` stand for the default.

        Raises:
            InvalidStateError: If it does not fit.
        """
        adapter = self._adapter

        if adapter is None:
            return {} if state is None else state  # type: ignore[return-value]

        try:
            return adapter.validate_json(to_json({} if state is None else state))
        except ValidationError as error:
            if self._make is not None and (state is None or state == {}):
                return self._default(self._make)

            raise InvalidStateError(_reason(error)) from None

    def _default(self, make: Callable[[], S]) -> S:
        try:
            return make()
        except (ValidationError, TypeError):
            raise InvalidStateError("The agent's state has no default.") from None

    def dump(self, state: S) -> bytes:
        """Return `state` as JSON.

        Raises:
            EventEncodingError: If JSON can't hold it.
        """
        return json_document(state, "The state", partial(self._dump_by_type, state))

    def _dump_by_type(self, state: S) -> bytes:
        if self._adapter is None:
            return to_json(state, inf_nan_mode="null")

        return self._adapter.dump_json(state, by_alias=True, warnings=False)


def _maker(type_: Any) -> Callable[[], Any] | None:
    made_by = get_origin(type_) or type_

    return made_by if isinstance(made_by, type) else None


def _reason(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_context=False, include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])

    return f"The state does not fit the agent's: state{path}: {first['msg']}."


class StatePublisher(Generic[S]):
    """What the client was last told of the state.

    The first publication of a run is a snapshot; later ones are the smaller of a
    snapshot and a JSON Patch, and nothing when nothing changed.

    Source: RFC 6902.
    """

    __slots__ = ("_document", "_text", "_type")

    def __init__(self, type_: StateType[S]) -> None:
        self._type = type_
        self._text: bytes | None = None
        self._document: object = None

    def reset(self) -> None:
        """Let the next publication be a snapshot, whatever was told before."""
        self._text = None

    def publish(self, state: S) -> BaseEvent | None:
        """Return the event that brings the client up to date, if one is needed.

        Raises:
            EventEncodingError: If JSON can't hold the state.
        """
        text = self._type.dump(state)

        if text == self._text:
            return None

        document: object = from_json(text)
        event = self._event(document, text)
        self._text, self._document = text, document

        return event

    def _event(self, document: object, text: bytes) -> BaseEvent | None:
        if self._text is None:
            return StateSnapshotEvent(snapshot=document)

        patch = _patch(self._document, document)

        if patch is None:
            return StateSnapshotEvent(snapshot=document)

        if not patch:
            return None

        if len(to_json(patch)) < len(text):
            return StateDeltaEvent(delta=patch)

        return StateSnapshotEvent(snapshot=document)


def _patch(before: object, after: object) -> list[Any] | None:
    """Return the operations that turn one document into the other; `None` if there are none."""
    try:
        patch = jsonpatch.make_patch(before, after)
        applied = patch.apply(before)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError, ValueError):
        return None

    # Compared as text, for which `1` and `true` differ.
    if to_json(_sorted(applied)) != to_json(_sorted(after)):
        return None

    operations: list[Any] = patch.patch

    return operations


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {key: _sorted(members[key]) for key in sorted(members)}

    if isinstance(value, list):
        return [_sorted(item) for item in cast("Sequence[Any]", value)]

    return value
