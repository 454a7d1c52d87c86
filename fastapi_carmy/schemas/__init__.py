"""What crosses the wire: arguments in, results out, their JSON Schemas, and what is wrong."""

from fastapi_carmy.schemas.arguments import Argument, build_input
from fastapi_carmy.schemas.failures import (
    SCHEMA_FAILURES,
    UnresolvedAnnotationError,
    schema_error,
)
from fastapi_carmy.schemas.output import JsonOutput, build_output
from fastapi_carmy.schemas.problems import argument_errors, describe_error, path_of

__all__ = (
    "SCHEMA_FAILURES",
    "Argument",
    "JsonOutput",
    "UnresolvedAnnotationError",
    "argument_errors",
    "build_input",
    "build_output",
    "describe_error",
    "path_of",
    "schema_error",
)
