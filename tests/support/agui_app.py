"""An application with all sample agents, for servers in a process of their own."""

from fastapi import FastAPI

from tests.support.agui import (
    Waiting,
    app_with,
    broken,
    cautious,
    chatty,
    chunks,
    stateful,
    verbose,
)

__all__ = ("app",)

app: FastAPI = app_with(
    {
        "/chatty": chatty,
        "/verbose": verbose,
        "/cautious": cautious,
        "/broken": broken,
        "/chunks": chunks,
        "/stateful": stateful,
        "/waiting": Waiting(),
    }
)
