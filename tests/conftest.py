"""What every test needs: one event loop, reproducible examples, real servers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings
from starlette.types import ASGIApp

from tests.support.servers import serve_app

settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def serve() -> Iterator[Callable[[ASGIApp], str]]:
    """Serve an application on a real uvicorn until the test ends; answers its base URL."""
    with ExitStack() as servers:
        yield lambda app: servers.enter_context(serve_app(app))
