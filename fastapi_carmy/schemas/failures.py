"""Types that pydantic can't describe, as start-up errors."""

from typing import Final

from pydantic import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import SchemaError

from fastapi_carmy.errors import ToolError

__all__ = ("SCHEMA_FAILURES", "UnresolvedAnnotationError", "schema_error")

SCHEMA_FAILURES: Final = (
    PydanticUserError,
    SchemaError,
    TypeError,
    ValueError,
    NameError,
    # A type may need a package that is not installed.
    ImportError,
)
"""What pydantic raises for a type that it can't describe."""


class UnresolvedAnnotationError(ToolError):
    """An annotation names something that does not exist yet; it may when the application starts."""


def schema_error(tool: str, error: Exception, *, parameter: str | None) -> ToolError:
    """Return the start-up error for a type that pydantic can't describe."""
    undefined = isinstance(error, PydanticUndefinedAnnotation) or (
        isinstance(error, PydanticUserError) and error.code == "class-not-fully-defined"
    )

    if undefined:
        return UnresolvedAnnotationError(
            tool, "its annotation names something that isn't defined", parameter=parameter
        )

    reason = str(error).partition("\n")[0]
    return ToolError(
        tool,
        f"its type or default has no JSON schema ({reason}); use types that pydantic can"
        " validate, or let a dependency provide the value",
        parameter=parameter,
    )
