"""What the server tells of itself: documents that are serialised once, hashed and tagged."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fastapi_carmy.errors import ConfigurationError, ToolError
from fastapi_carmy.tool import Tool, ToolSpec

__all__ = ("Catalog", "Document", "DuplicateToolError", "check_name", "discovery")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class DuplicateToolError(ToolError):
    """Two tools of one router have the same name."""

    def __init__(self, tool: str) -> None:
        """Name the tool."""
        super().__init__(tool, "a tool with this name exists already; give one of them a `name=`.")


@dataclass(frozen=True, slots=True)
class Document:
    """A body and its tag, made once and served as they are."""

    body: bytes
    digest: str
    """SHA-256 of `body`, lowercase hex; the ETag without its quotes."""

    @classmethod
    def of(cls, body: bytes) -> "Document":
        """Tag `body`."""
        return cls(body, hashlib.sha256(body).hexdigest())

    @property
    def etag(self) -> str:
        """The strong entity tag, quotes included."""
        return f'"{self.digest}"'

    def matches(self, if_none_match: str) -> bool:
        """Tell whether the client's copy is this one.

        Args:
            if_none_match: The header's value: `*`, or a comma list of tags; `W/` is dropped.

        Source: RFC 9110, 13.1.2; carmy/1, section 1.3.
        """
        tags = (tag.strip() for tag in if_none_match.split(","))
        return any(tag == "*" or tag.removeprefix("W/") == self.etag for tag in tags)


class Catalog:
    """The tools of one router, sorted by name, and the document that lists them.

    The same tools give the same bytes in every process.

    Attributes:
        tools: Tool name → tool.
        document: The catalog of every tool.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        """List `tools`.

        Raises:
            ToolError: If two have the same name, or one can't be written as JSON.
        """
        self.tools: dict[str, Tool] = {}
        self._entries: dict[str, bytes] = {}

        for tool in sorted(tools, key=lambda tool: tool.spec.name):
            if tool.spec.name in self.tools:
                raise DuplicateToolError(tool.spec.name)

            self.tools[tool.spec.name] = tool
            self._entries[tool.spec.name] = _entry(tool.spec)

        self.document = Document.of(_listing(self._entries.values()))

    @property
    def version(self) -> str:
        """What `tools_version` says: the document's digest."""
        return self.document.digest

    def only(self, names: Iterable[str]) -> Document:
        """Return the catalog of these tools alone."""
        wanted = frozenset(names)

        if wanted >= self._entries.keys():
            return self.document

        return Document.of(
            _listing(entry for name, entry in self._entries.items() if name in wanted)
        )


def check_name(name: str) -> None:
    """Refuse a name that carmy/1 does not allow.

    Raises:
        ToolError: If it is not 1 to 128 of ASCII letters, digits, `_`, `-`, `.`.
    """
    if _NAME.fullmatch(name) is None:
        raise ToolError(
            name, "a name is 1 to 128 of ASCII letters, digits, `_`, `-` and `.`; give `name=`."
        )


def discovery(
    *,
    server: str,
    capabilities: Iterable[str],
    tools_url: str,
    execute_url: str,
    tools_version: str,
) -> Document:
    """Return the discovery document. Source: carmy/1, section 1.1."""
    return Document.of(
        _canonical(
            {
                "protocol": "carmy/1",
                "server": server,
                "capabilities": list(capabilities),
                "tools_url": tools_url,
                "execute_url": execute_url,
                "tools_version": tools_version,
            }
        )
    )


def _entry(spec: ToolSpec) -> bytes:
    fields = {
        "name": spec.name,
        "description": spec.description,
        "input_schema": spec.input_schema,
        "output_schema": spec.output_schema,
        "effect": spec.effect.value,
        "idempotent": spec.idempotent,
        "parallel_safe": spec.parallel_safe,
        "confirmation": spec.confirmation,
    }

    try:
        return _canonical(fields)
    except (TypeError, ValueError) as error:
        raise ToolError(
            spec.name,
            "its description and schemas must be plain JSON in UTF-8; look for a default or an "
            "example that is not, such as an infinity or a lone surrogate.",
        ) from error


def _listing(entries: Iterable[bytes]) -> bytes:
    return b'{"tools":[%b]}' % b",".join(entries)


def _canonical(value: Mapping[str, object]) -> bytes:
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise ConfigurationError("A schema refers to itself without end.") from error

    return text.encode()
