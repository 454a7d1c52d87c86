"""The two documents: discovery and the catalog. Source: carmy/1, sections 1.1 to 1.3."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from fastapi_carmy.caller import Caller
from fastapi_carmy.catalog import Document, discovery
from fastapi_carmy.errors import AgentError
from fastapi_carmy.http.responses import Answer, document_answer, send_error
from fastapi_carmy.injection import Guards, HttpOpened, headers_read
from fastapi_carmy.service import Service

__all__ = ("DISCOVERY_PATH", "EXECUTE_PATH", "TOOLS_PATH", "CatalogEndpoint", "DiscoveryEndpoint")

DISCOVERY_PATH = "/.well-known/agent"
TOOLS_PATH = "/agent/tools"
EXECUTE_PATH = "/agent/execute"

_MAX_PLACES = 64
_SAFE_IN_PATHS = "/:@!$&'()*+,;=~"


class _DocumentEndpoint:
    """Serves a document behind the route's guards."""

    methods = ("GET", "HEAD")
    is_agent = False

    def __init__(
        self,
        owner: object,
        service: Callable[[object], Service],
        *,
        per_caller: bool = False,
    ) -> None:
        """Serve from `service`.

        Args:
            owner: The router.
            service: Application → what is served; made when it is first needed.
            per_caller: Whether each caller has a catalog of its own.
        """
        self.owner = owner
        self._service = service
        self._per_caller = per_caller

    async def respond(self, scope: Scope, receive: Receive, guards: Guards) -> Answer:
        """See `Endpoint.respond`."""
        opened = HttpOpened(scope, receive, guards)

        try:
            caller = await opened.router_guards()
            document = self._document(scope, self._catalog(scope, caller or Caller()))
        except BaseException as error:
            await opened.aclose(error)
            raise

        await opened.aclose(None)
        return document_answer(
            document,
            if_none_match=_if_none_match(scope),
            vary=", ".join(headers_read(guards.dependant)) if self._per_caller else "",
        )

    async def refuse(self, send: Send, error: AgentError) -> None:
        """See `Endpoint.refuse`."""
        await send_error(send, error)

    def _document(self, scope: Scope, catalog: Document) -> Document:
        raise NotImplementedError

    def _catalog(self, scope: Scope, caller: Caller) -> Document:
        service = self._service(scope.get("app"))

        if not self._per_caller:
            return service.catalog.document

        policies = service.runtime.settings.policies
        return service.catalog.only(
            name
            for name, tool in service.catalog.tools.items()
            if policies.shows(caller, tool.spec)
        )


class CatalogEndpoint(_DocumentEndpoint):
    """`GET /agent/tools`."""

    def _document(
        self,
        scope: Scope,  # noqa: ARG002 - this document is the same wherever it is reached
        catalog: Document,
    ) -> Document:
        return catalog


class DiscoveryEndpoint(_DocumentEndpoint):
    """`GET /.well-known/agent`, serialised once for each place it is reached at."""

    def __init__(
        self,
        owner: object,
        service: Callable[[object], Service],
        *,
        server: str,
        capabilities: Callable[[], Sequence[str]],
        prefix: str | None = None,
        per_caller: bool = False,
    ) -> None:
        """Describe the server.

        Args:
            owner: The router.
            service: Application → what is served.
            server: The server's name.
            capabilities: What is switched on, in the order of the contract.
            prefix: Where the other paths are, when they are no siblings of this one.
            per_caller: Whether each caller has a catalog of its own.
        """
        super().__init__(owner, service, per_caller=per_caller)
        self._server = server
        self._capabilities = capabilities
        self._prefix = prefix
        # Bounded: a path may hold parameters, which are the client's to choose.
        self._places: OrderedDict[tuple[str, ...], Document] = OrderedDict()

    def _document(self, scope: Scope, catalog: Document) -> Document:
        base = _base(scope) + (self._prefix or "")
        capabilities = self._capabilities()
        place = (base, catalog.digest, *capabilities)
        document = self._places.get(place)

        if document is None:
            document = discovery(
                server=self._server,
                capabilities=capabilities,
                tools_url=base + TOOLS_PATH,
                execute_url=base + EXECUTE_PATH,
                tools_version=catalog.digest,
            )
            self._places[place] = document

            if len(self._places) > _MAX_PLACES:
                self._places.popitem(last=False)

        return document


def _base(scope: Scope) -> str:
    """Return the public path that our paths start with, as the client sees it.

    `root_path` is added unless the path holds it already: a proxy that strips a prefix
    leaves it out, a mount does not.
    """
    root: str = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]

    if root and path != root and not path.startswith(f"{root}/"):
        path = root + path

    return quote(path.removesuffix("/").removesuffix(DISCOVERY_PATH), safe=_SAFE_IN_PATHS)


def _if_none_match(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == b"if-none-match"]
    return b",".join(values).decode("latin-1") if values else None
