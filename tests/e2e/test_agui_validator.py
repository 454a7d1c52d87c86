"""An independent validator finds nothing in our streams."""

from typing import Any

import pytest

from fastapi_carmy.agui.testing import collect, run_input
from tests.support.agui import broken, cautious, chatty, chunks, stateful, verbose

validator = pytest.importorskip(
    "ag_ui_validate.pytest_plugin", reason="The group `frameworks` is not installed."
)

# Made for the SDK before 1.0, it takes these for faults: an id that is opened again, an
# empty delta, arguments that are no JSON, a result in parts.
OTHER_IN_1_0 = {"AGUI104": "off", "AGUI105": "off", "AGUI204": "off", "AGUI504": "off"}


@pytest.mark.spec("ag-ui N.157")
@pytest.mark.parametrize("agent", [chatty, verbose, cautious, broken, chunks, stateful])
async def test_a_stream_is_valid(agent: Any) -> None:
    events = await collect(agent, run_input("hi"))

    told = [event.model_dump(mode="json", by_alias=True) for event in events]
    validator.assert_valid_agui(told, severity_overrides=OTHER_IN_1_0)
