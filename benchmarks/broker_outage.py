"""`python -m benchmarks.broker_outage`: the broker is away for two minutes while 500 agents run.

nats-server, health-monitor, pool-manager, provisioner and notifier are real processes with shipped
settings (heartbeats each 10 s that live 30 s, lost after five minutes). The agents are scripted in
one process, and their instances exist at the `fake` provider by name only. One node dies at the
provider while the broker is away. Afterwards that node must be replaced, and no other.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.scripted_fleet import (
    HEARTBEAT_SECONDS,
    POLL_SECONDS,
    SETTLED_SECONDS_MAX,
    ScriptedFleet,
    remove_instance,
    running_fleet,
)
from schemas import subjects
from schemas.node_events import FACTS, Lost
from schemas.pool_events import NodeReplaced, pool_codec
from schemas.topology import EVENTS, SAGAS
from services.bus.nats.nats_bus import NatsBus

AFTER_SECONDS: Final = 60.0
"""How long the fleet is watched after the replacement, for replacements of other nodes."""


async def _started_replacements(bus: NatsBus) -> list[str]:
    stored = await bus.read(SAGAS.name, subjects.saga_step_wildcard("saga", "started"))
    started = [json.loads(each.data) for each in stored]
    return [str(each["params"]["node"]) for each in started if each["kind"] == "replace"]


async def _replaced_nodes(bus: NatsBus) -> list[str]:
    stored = await bus.read(EVENTS.name, subjects.pool_event_wildcard("node-replaced"))
    events = (pool_codec.decode(each.data) for each in stored)
    return [each.old_node for each in events if isinstance(each, NodeReplaced)]


async def measure(
    nodes: int, seconds: float, directory: Path, say: Any = print, lost_after: str = "5m"
) -> dict[str, Any]:
    """Stop the broker for so long; the result says which nodes were replaced, and when."""
    pool = {"min_nodes": nodes, "max_nodes": nodes, "health": {"lost_after": lost_after}}
    async with running_fleet(directory, pool, ping_seconds=2) as fleet:
        say(f"{nodes} nodes in service after {await fleet.wait_for_nodes(nodes):.1f} s")
        return await _outage(fleet, nodes, seconds, say)


async def _outage(fleet: ScriptedFleet, nodes: int, seconds: float, say: Any) -> dict[str, Any]:
    bus = fleet.bus
    await asyncio.sleep(HEARTBEAT_SECONDS)  # every agent has sent one
    await fleet.server.kill()
    dead = min(fleet.agents.instances())
    say(f"the broker is away for {seconds:g} s; {dead} dies meanwhile")
    await asyncio.sleep(seconds / 2)
    remove_instance(fleet.provider, dead)
    await asyncio.sleep(seconds / 2)
    back = time.monotonic()
    await fleet.server.start()
    async with asyncio.timeout(SETTLED_SECONDS_MAX):
        while not bus.connected or dead not in await _replaced_nodes(bus):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
    replaced = time.monotonic() - back
    say(f"{dead} was replaced {replaced:.1f} s after the broker's return")
    await fleet.wait_for_nodes(nodes)
    await asyncio.sleep(AFTER_SECONDS)
    started = await _started_replacements(bus)
    lost = await bus.read(EVENTS.name, subjects.node_event_wildcard(FACTS[Lost]))
    return {
        "outage_seconds": seconds,
        "outage_nodes": nodes,
        "outage_lost": len(lost),
        "outage_replaced_dead": int(dead in started),
        "outage_replaced_living": len([each for each in started if each != dead]),
        "outage_dead_replaced_after_seconds": round(replaced, 1),
    }


def main() -> int:
    """Exit with 0 if the dead node was replaced and no other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_outage", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=120, help="without a broker")
    parser.add_argument("--lost-after", default="5m", help="the pool's setting (default: 5m)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outage-", ignore_cleanup_errors=True) as place:
        figures = uvloop.run(
            measure(
                arguments.nodes,
                arguments.seconds,
                Path(place),
                lost_after=arguments.lost_after,
            )
        )
    print(json.dumps(figures))
    return (
        0 if (figures["outage_replaced_dead"], figures["outage_replaced_living"]) == (1, 0) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
