"""The catalog is the same bytes in every process. Source: carmy/1, section 1.2."""

import os
import subprocess
import sys

import pytest

from tests.support.servers import ROOT

PROGRAM = """
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from fastapi_carmy import AgentRouter


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Item(BaseModel):
    sku: Annotated[str, Field(pattern="^[A-Z]+$", examples=["TEA"])]
    size: Size | None = None
    parts: "list[Item]" = []


class Order(BaseModel):
    items: list[Item]
    how: Literal["mail", "post"] = "post"
    price: Decimal
    tags: frozenset[str] = frozenset({"a", "b", "c", "d"})


async def order(order: Order, when: datetime | None = None, *, by: UUID) -> Order:
    '''Place an order.

    Args:
        order: What to order.
        when: The time.
    '''
    return order


async def find(text: str, sizes: set[Size] = {Size.LARGE, Size.SMALL}) -> dict[str, Item]:
    '''Find items.'''
    return {}


def names(*parts: str) -> list[str]:
    return list(parts)


agent = AgentRouter()
tools = [(order, "write"), (find, "read"), (find, "none")]
REVERSE
for number, (function, effect) in enumerate(tools):
    agent.add_tool(function, effect=effect, name=f"{function.__name__}.{effect}")
print(agent.tools_version)
"""


@pytest.mark.spec("carmy/1 1.2")
def test_the_version_is_the_same_in_every_process_whatever_its_hash_seed_and_order() -> None:
    versions: list[str] = []

    for number in range(5):
        # Python imports and registers in another order in every second process.
        lines = PROGRAM.replace("REVERSE", "tools.reverse()" if number % 2 else "")
        first = "import fastapi_carmy.router, pydantic\n" if number % 2 else "import fastapi\n"
        # The tests' own program.
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", first + lines],
            env={**os.environ, "PYTHONHASHSEED": str(number * 1_000), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        versions.append(done.stdout.strip())

    assert len(versions[0]) == 64
    assert set(versions) == {versions[0]}
