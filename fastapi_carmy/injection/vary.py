"""Which request headers a route's dependencies read. Source: RFC 9110, section 12.5.5."""

from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.openapi.models import APIKey, APIKeyIn
from fastapi.security.base import SecurityBase

__all__ = ("headers_read",)

_USUAL = ("Authorization", "Cookie")
"""What a dependency may read that takes the request itself."""


def headers_read(dependant: Dependant) -> tuple[str, ...]:
    """Return the headers that a dependant and all below it read, in alphabetical order."""
    return tuple(sorted({name.title() for name in _names(dependant)}))


def _names(dependant: Dependant) -> Iterator[str]:
    for field in dependant.header_params:
        yield field.alias

    if dependant.cookie_params:
        yield "Cookie"

    if isinstance(dependant.call, SecurityBase):
        yield from _names_of_scheme(dependant.call)
    elif dependant.request_param_name or dependant.http_connection_param_name:
        yield from _USUAL

    for inner in dependant.dependencies:
        yield from _names(inner)


def _names_of_scheme(scheme: SecurityBase) -> Iterator[str]:
    model = scheme.model

    if not isinstance(model, APIKey):
        yield "Authorization"
    elif model.in_ is APIKeyIn.cookie:
        yield "Cookie"
    elif model.in_ is APIKeyIn.header:
        yield model.name
