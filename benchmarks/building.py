"""How long a catalog of 1,000 tools takes to build, and what a tool keeps in memory.

    python -m benchmarks.building

Prints JSON: `seconds` of processor time, and `bytes_per_tool`.
"""

import gc
import json
import time
import tracemalloc

from benchmarks.contenders.carmy_plain import create_order
from fastapi_carmy import AgentRouter

TOOLS = 1_000


def build() -> AgentRouter:
    """Register the tools, and build the catalog."""
    agent = AgentRouter()

    for place in range(TOOLS):
        agent.add_tool(create_order, effect="write", name=f"tool_{place}")

    assert agent.tools_version
    agent._build()  # noqa: SLF001 - what the lifespan does
    return agent


def main() -> None:
    """Measure, and print JSON."""
    build()
    gc.collect()
    started = time.process_time()
    kept = [build()]
    seconds = time.process_time() - started

    tracemalloc.start()
    kept.append(build())
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    print(json.dumps({"seconds": seconds, "bytes_per_tool": held / TOOLS, "kept": len(kept)}))


if __name__ == "__main__":
    main()
