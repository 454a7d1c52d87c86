"""What an agent says it can do.

AG-UI 1.0 defines the shape and no way to ask; `GET {path}/capabilities` is what other
servers answer on.
"""

from ag_ui.core import (
    AgentCapabilities,
    HumanInTheLoopCapabilities,
    IdentityCapabilities,
    StateCapabilities,
    ToolsCapabilities,
    TransportCapabilities,
)

__all__ = ("derived_capabilities",)


def derived_capabilities(name: str, description: str | None = None) -> AgentCapabilities:
    """Return what holds for every agent that is served here.

    Args:
        name: The agent's name.
        description: What it is for.
    """
    return AgentCapabilities(
        identity=IdentityCapabilities(name=name, description=description or None),
        transport=TransportCapabilities(
            streaming=True,
            websocket=False,
            http_binary=False,
            push_notifications=False,
            resumable=False,
        ),
        tools=ToolsCapabilities(supported=True, client_provided=True),
        state=StateCapabilities(snapshots=True, deltas=True),
        human_in_the_loop=HumanInTheLoopCapabilities(supported=True, interrupts=True),
    )
