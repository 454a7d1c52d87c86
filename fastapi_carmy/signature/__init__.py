"""A function's signature, as a tool reads it."""

from fastapi_carmy.signature.annotations import name_of
from fastapi_carmy.signature.calling import calling_by_name, kind_of, read_returns
from fastapi_carmy.signature.parameters import (
    Arguments,
    ReadParameter,
    Role,
    read_parameters,
    refuse_bare,
)

__all__ = (
    "Arguments",
    "ReadParameter",
    "Role",
    "calling_by_name",
    "kind_of",
    "name_of",
    "read_parameters",
    "read_returns",
    "refuse_bare",
)
