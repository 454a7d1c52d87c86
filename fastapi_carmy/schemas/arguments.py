"""A tool's arguments: one pydantic validator over the whole call, and their schema.

The validator reads the envelope from its bytes in one go, in JSON mode, where a strict
`date` is still a string. A `TypedDict` takes any name; a model would refuse `model_config`,
warn about `json`, and drop `_x`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, Literal, NotRequired, Required, cast

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, from_json
from typing_extensions import TypedDict

from fastapi_carmy.errors import ToolError
from fastapi_carmy.schemas.exactness import has_plain_fields
from fastapi_carmy.schemas.failures import SCHEMA_FAILURES, schema_error
from fastapi_carmy.schemas.json_schema import schema_of
from fastapi_carmy.schemas.values import holds_not_a_number
from fastapi_carmy.tool import Envelope, Input

__all__ = ("Argument", "build_input")

_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)
_MAY_BE_INFINITE = re.compile(rb"[nN][aA][nN]|[iI][nN][fF]|\\u|[0-9](?:[eE]\+?[0-9]{2}|[0-9]{299})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a tool, its own or one that a dependency takes."""

    name: str
    """The parameter's name; also the argument's, unless an alias says otherwise."""
    key: str
    """Its key among the validated arguments."""
    annotation: Any
    default: object = Parameter.empty
    """A value, or a marker such as `Query(5)`."""
    description: str | None = None
    """What the docstring says; a description in the annotation wins."""

    @property
    def field(self) -> FieldInfo:
        """Annotation, markers and default as pydantic sees them together."""
        if self.default is Parameter.empty:
            return FieldInfo.from_annotation(self._type)

        # A second `Field` makes pydantic 2.11 merge into a new object; alone, the annotation's
        # own one would take the default, and every other use of that annotation with it.
        own: Any = Annotated[self._type, Field()]
        return FieldInfo.from_annotated_attribute(own, self.default)

    @property
    def wire_names(self) -> tuple[str, ...]:
        """The keys it is sent under; the schema shows the first."""
        field = self.field
        alias = field.validation_alias or field.alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias or self.name]
        names = (choice.path[0] if isinstance(choice, AliasPath) else choice for choice in choices)
        return tuple(name for name in names if isinstance(name, str))

    def typed(self, *extra: object) -> Any:
        """Return the type of its `TypedDict` field, with more metadata."""
        field = self.field
        parts: list[object] = [self._type]

        if isinstance(self.default, FieldInfo):
            parts.append(self.default)
        elif self.default is not Parameter.empty:
            parts.append(Field(default=self.default))

        if self.description and not field.description:
            parts.append(Field(description=self.description))

        if self.key != self.name and not (field.validation_alias or field.alias):
            parts.append(Field(alias=self.name))

        parts.extend(extra)
        annotated: Any = parts[0] if len(parts) == 1 else Annotated[tuple(parts)]
        return Required[annotated] if field.is_required() else NotRequired[annotated]

    @property
    def _type(self) -> Any:
        return Any if self.annotation is Parameter.empty else self.annotation


def build_input(
    tool: str, arguments: Sequence[Argument], *, whole: Argument | None = None
) -> tuple[Input, dict[str, object]]:
    """Return what validates the calls of one tool, and the schema of its arguments.

    Args:
        tool: The tool's name.
        arguments: Its arguments, in the order of the schema.
        whole: The one argument whose model is the arguments object; then there are no others.

    Raises:
        ToolError: If a type has no schema, or a default does not fit.
    """
    try:
        if whole is not None:
            return _build_whole(tool, whole)

        for argument in arguments:
            _check_default(tool, argument)

        shape = _object(f"{tool}_arguments", arguments)
        adapter = TypeAdapter[Any](shape)
        schema = schema_of(adapter, "validation")
        validate = _envelope(tool, shape)

        if _may_hold_numbers(schema.get("$defs")):
            # Models have their own configuration, and by default take what JSON lacks.
            names = {argument.key: argument.wire_names[0] for argument in arguments}
            validate = _FiniteInput(validate, names).validate_json

        return Input(validate, has_plain_fields(adapter)), _as_object(schema)
    except ToolError:
        raise
    except SCHEMA_FAILURES as error:
        raise _explained(tool, [*arguments, *([whole] if whole else [])], error) from error


def _object(name: str, arguments: Sequence[Argument], *extra: object) -> Any:
    fields = {argument.key: argument.typed(*extra) for argument in arguments}
    return _closed(name, fields)


def _envelope(tool: str, arguments: Any) -> Callable[[bytes], Envelope]:
    fields = {
        "tool": Required[Literal[tool]],
        # Left out means empty: what is missing is then told by its own name.
        "arguments": NotRequired[Annotated[arguments, Field(default={}, validate_default=True)]],
        "request_id": NotRequired[Any],
    }
    validate: Callable[[bytes], Envelope] = TypeAdapter(
        _closed(f"{tool}_call", fields)
    ).validator.validate_json
    return validate


def _closed(name: str, fields: dict[str, Any]) -> Any:
    """Return a `TypedDict` that takes no other keys."""
    # Its fields are known only now, which no checker can follow.
    make: Any = TypedDict
    return with_config(_CONFIG)(make(name, fields))


def _as_object(schema: dict[str, object]) -> dict[str, object]:
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema


# ---- the `Arguments` marker


def _build_whole(tool: str, whole: Argument) -> tuple[Input, dict[str, object]]:
    model = whole.field.annotation

    if not isinstance(model, type) or not issubclass(model, BaseModel) or _is_root_model(model):
        raise ToolError(
            tool, "only a pydantic model can be the whole `Arguments` object", parameter=whole.name
        )

    if whole.default is not Parameter.empty:
        raise ToolError(
            tool,
            "the `Arguments` model can't have a default; give its fields defaults",
            parameter=whole.name,
        )

    key = whole.key
    annotation: Any = whole.annotation
    shape: Any = Annotated[annotation, AfterValidator(lambda value: {key: value})]
    schema = _as_object(schema_of(TypeAdapter(model), "validation"))
    validate = _envelope(tool, shape)

    if _may_hold_numbers(schema):
        validate = _FiniteInput(validate, {}).validate_json

    if model.model_config.get("extra") in ("allow", "forbid"):
        schema.setdefault("additionalProperties", True)
        return Input(validate), schema

    closed = _ClosedInput(validate, model)
    return Input(closed.validate_json), {**schema, "additionalProperties": False}


def _is_root_model(model: type[BaseModel]) -> bool:
    return getattr(model, "__pydantic_root_model__", False)


class _ClosedInput:
    """Refuses arguments that a model would silently ignore.

    The model's configuration stays as it is: a stricter subclass would be another
    class to the tool.
    """

    __slots__ = ("_names", "_validate")

    def __init__(self, validate: Callable[[bytes], Envelope], model: type[BaseModel]) -> None:
        self._validate = validate
        self._names = frozenset(_accepted_names(model))

    def validate_json(self, body: bytes) -> Envelope:
        """See `Input.validate_json`."""
        call = self._validate(body)
        arguments = from_json(body).get("arguments", {})
        unknown = [key for key in arguments if key not in self._names]

        if unknown:
            errors: list[InitErrorDetails] = [
                {"type": "extra_forbidden", "loc": ("arguments", key), "input": arguments[key]}
                for key in unknown
            ]
            raise ValidationError.from_exception_data("arguments", errors)

        return call


class _FiniteInput:
    """Refuses numbers that JSON has not, in models that would take them.

    `"NaN"` and `"1e999"` are texts to JSON, and so is an integer of 400 digits a number;
    as a `float` they are none.
    """

    __slots__ = ("_names", "_validate")

    def __init__(self, validate: Callable[[bytes], Envelope], names: Mapping[str, str]) -> None:
        self._validate = validate
        self._names = names

    def validate_json(self, body: bytes) -> Envelope:
        """See `Input.validate_json`."""
        call = self._validate(body)

        if _MAY_BE_INFINITE.search(body) is not None:
            arguments = call["arguments"]
            errors: list[InitErrorDetails] = [
                {"type": "finite_number", "loc": self._place_of(key), "input": None}
                for key, value in arguments.items()
                if holds_not_a_number(value)
            ]

            if errors:
                raise ValidationError.from_exception_data("arguments", errors)

        return call

    def _place_of(self, key: str) -> tuple[str, ...]:
        return ("arguments", self._names[key]) if key in self._names else ("arguments",)


def _may_hold_numbers(schema: object) -> bool:
    if isinstance(schema, dict):
        keywords = cast("dict[str, object]", schema)
        return keywords.get("type") == "number" or any(map(_may_hold_numbers, keywords.values()))

    return isinstance(schema, list) and any(map(_may_hold_numbers, cast("list[object]", schema)))


def _accepted_names(model: type[BaseModel]) -> list[str]:
    config = model.model_config
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    names: list[str] = []

    for name, field in model.model_fields.items():
        argument = Argument(name=name, key=name, annotation=Any, default=field)
        names.extend(argument.wire_names)

        if by_name:
            names.append(name)

    return names


# ---- defaults, and what is wrong with a type


def _check_default(tool: str, argument: Argument) -> None:
    field = argument.field

    # A factory may have effects, and no schema shows its value.
    if field.is_required() or field.default_factory is not None:
        return

    one = TypeAdapter[Any](_object("default", [argument], Field(validate_default=True)))

    try:
        one.validate_python({})
    except Exception as error:
        # Validators of users raise what they like.
        mend = (
            "annotate it as `… | None`" if field.default is None else "give one that its type takes"
        )
        raise ToolError(
            tool, f"its default does not fit its own type; {mend}", parameter=argument.name
        ) from error

    if holds_not_a_number(field.default):
        raise ToolError(
            tool, "JSON can't hold its default; use `None` instead", parameter=argument.name
        )


def _explained(tool: str, arguments: Sequence[Argument], error: Exception) -> ToolError:
    """Find the argument at fault, by describing each alone."""
    for argument in arguments:
        try:
            schema_of(TypeAdapter(_object("argument", [argument])), "validation")
        except SCHEMA_FAILURES as own:
            return schema_error(tool, own, parameter=argument.name)

    return schema_error(tool, error, parameter=None)
