"""A thousand nodes fail at once: the time until the last cordon and the last replacement.

nats-server and the services are real processes; nodes are instances of the `fake` provider with
scripted agents, and the notifier is `noop`. This process publishes the faults together; the times
are those at which the server stored the entries of the saga logs.
"""

import asyncio
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.scripted_fleet import POOL, ScriptedFleet, running_fleet
from schemas import subjects
from schemas.messages import encode
from schemas.node_events import FACTS, Fault
from schemas.node_records import NodeRecord
from schemas.topology import EVENTS, SAGAS
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored

NODES: Final = 1_000
CONCURRENT: Final = 200
"""Sagas of the second figure."""
POLL_SECONDS: Final = 0.25
WAVE_SECONDS_MAX: Final = 300.0
XID: Final = 79
BUDGET: Final = {"max_unavailable": "100%", "max_replacements": "unlimited"}
HEALTH: Final = {"incident": {"hold": "0s"}}
DEVIATIONS: Final = {
    "pool and fleet budget": (
        "max_unavailable 100%, max_replacements unlimited; shipped: 20% and 50% an hour of a pool, "
        "25% and 50% of the fleet, which would keep most of the wave waiting"
    ),
    "health.incident.hold": "0s; shipped: 15m, for which the breaker would stop the wave",
}


async def publish_fault(bus: NatsBus, node: NodeRecord) -> None:
    """Publish XID 79 of a node, as its agent would."""
    fault = Fault(
        id=f"{node.node}.kmsg.1",
        time=datetime.now(UTC),
        pool=POOL,
        node=node.node,
        kind="xid",
        system="DCGM_HEALTH_WATCH_PCIE",
        gpu_index=3,
        gpu_uuid=f"GPU-{node.node}-3",
        code=XID,
        message="GPU has fallen off the bus.",
        metrics={"xid_code": XID},
        boot_id=node.boot_id,
        sequence=1,
    )
    subject = subjects.node_event(POOL, node.node, FACTS[Fault])
    await bus.publish(subject, encode(fault), msg_id=fault.id)


async def _entries(bus: NatsBus, step: str, status: str, after: int) -> list[Stored]:
    return await bus.read(SAGAS.name, subjects.saga_step_wildcard(step, status), after=after)


async def wave(
    fleet: ScriptedFleet, count: int, within_seconds: float = WAVE_SECONDS_MAX
) -> dict[str, Any]:
    """Break so many nodes at once; seconds until the last entry of each kind was stored."""
    bus = fleet.bus
    chosen = list((await fleet.active_nodes()).values())[:count]
    after = await bus.last_sequence(SAGAS.name)
    events_before = await bus.last_sequence(EVENTS.name)
    start = time.time()
    await asyncio.gather(*(publish_fault(bus, node) for node in chosen))
    published = time.time() - start
    replaced = subjects.pool_event_wildcard("node-replaced")
    async with asyncio.timeout(within_seconds):
        while len(await bus.read(EVENTS.name, replaced, after=events_before)) < count:  # noqa: ASYNC110 - events are counted
            await asyncio.sleep(POLL_SECONDS)
    figures: dict[str, Any] = {"nodes": len(chosen), "published_seconds": round(published, 2)}
    for name, step, status in (
        ("last_saga", "saga", "started"),
        ("last_cordon", "cordon", "succeeded"),
        ("last_drain", "drain", "succeeded"),
        ("last_replacement_started", "provision", "started"),
        ("last_done", "saga", "done"),
    ):
        stored = await _entries(bus, step, status, after)
        last = max(each.time.timestamp() for each in stored) - start
        figures[f"{name}_seconds"] = round(last, 2)
    return figures


async def measure(nodes: int = NODES, concurrent: int = CONCURRENT) -> dict[str, Any]:
    """Measure both waves on one fleet, the smaller first."""
    pool = {"min_nodes": nodes, "max_nodes": nodes, "health": HEALTH, "budget": BUDGET}
    with tempfile.TemporaryDirectory(prefix="wave-", ignore_cleanup_errors=True) as place:
        async with running_fleet(Path(place), pool, budget=BUDGET) as fleet:
            filled = await fleet.wait_for_nodes(nodes)
            small = await wave(fleet, concurrent)
            await fleet.wait_for_nodes(nodes)
            large = await wave(fleet, nodes)
    return {
        "wave_fill_seconds": round(filled, 1),
        **{f"wave_{concurrent}_{name}": value for name, value in small.items()},
        **{f"wave_{name}": value for name, value in large.items()},
    }
