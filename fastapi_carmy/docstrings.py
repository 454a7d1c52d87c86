"""Docstrings as documentation for an agent: what a tool does, and what its arguments are."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from docstring_parser import Docstring, DocstringStyle, ParseError, parse
from docstring_parser.google import GoogleParser, Section, SectionType

__all__ = ("Documentation", "read_docstring")

_ARGUMENT_TITLES = ("Args", "Arguments", "Parameters", "Params", "Keyword Args")
_OTHER_TITLES = ("Returns", "Yields", "Raises", "Attributes", "Example", "Examples")

# Only argument lists are taken apart: a free-form `Raises:` is nobody's mistake.
_OTHER_SECTIONS = [Section(title, "other", SectionType.SINGULAR) for title in _OTHER_TITLES]
_ARGUMENT_SECTIONS = [Section(title, "param", SectionType.MULTIPLE) for title in _ARGUMENT_TITLES]
_PROSE_SECTIONS = [Section(title, "other", SectionType.SINGULAR) for title in _ARGUMENT_TITLES]


@dataclass(frozen=True, slots=True)
class Documentation:
    """What a docstring says."""

    description: str = ""
    """The text without its sections."""

    arguments: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Argument → its description."""


def read_docstring(text: str | None) -> Documentation:
    """Read a Google-style docstring; NumPy's and reST's styles work as well.

    The result does not depend on the docstring's indentation, which Python 3.13
    strips while compiling and earlier versions keep.
    """
    if not text:
        return Documentation()

    text = inspect.cleandoc(text)
    parsed = _parse_google(text)

    if not parsed.meta:
        parsed = _parse_other_styles(text) or parsed

    return Documentation(
        description=_description(parsed),
        arguments={
            param.arg_name.lstrip("*"): param.description.strip()
            for param in parsed.params
            if param.description
        },
    )


def _parse_google(text: str) -> Docstring:
    try:
        return GoogleParser([*_ARGUMENT_SECTIONS, *_OTHER_SECTIONS]).parse(text)
    except ParseError:
        # A list of arguments that is prose: it describes none of them.
        return GoogleParser([*_PROSE_SECTIONS, *_OTHER_SECTIONS]).parse(text)


def _parse_other_styles(text: str) -> Docstring | None:
    for style in (DocstringStyle.NUMPYDOC, DocstringStyle.REST):
        try:
            parsed = parse(text, style)
        except ParseError:
            continue

        if parsed.params:
            return parsed

    return None


def _description(parsed: Docstring) -> str:
    parts = [part for part in (parsed.short_description, parsed.long_description) if part]
    separator = "\n\n" if parsed.blank_after_short_description else "\n"
    return separator.join(parts).strip()
