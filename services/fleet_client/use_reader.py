"""Reads how much nodes are used: their stored samples."""

from datetime import datetime, timedelta
from typing import Final

from schemas import subjects
from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.topology import NODES, TELEMETRY
from services.bus.port import Bus, Stored
from services.fleet_client.fleet_use import (
    FleetUse,
    GpuReadings,
    UtilizationHistory,
    readings_of,
    sampled_nodes,
    utilization_points,
)
from services.fleet_client.stored_events import stored_batches

SAMPLE_SECONDS: Final = 35.0
"""Agents send a sample every fifteen seconds: so old ones are read at the start."""

nodes_decoder: Final = decoder(NodeRecord)


def telemetry_filter(pool: str) -> str:
    """Return the subjects under which a pool's samples are stored; empty: every pool's."""
    return subjects.telemetry_of(pool) if pool else subjects.TELEMETRY


async def read_use(bus: Bus, pool: str, now: datetime) -> tuple[FleetUse, int]:
    """Every node with its newest sample, and the sequence after which new ones follow."""
    use = FleetUse()
    last = await bus.last_sequence(TELEMETRY.name)
    for entry in await bus.entries(NODES, f"{pool or '*'}.*"):
        use.take_node(entry.key, nodes_decoder.decode(entry.value))
    start = now - timedelta(seconds=SAMPLE_SECONDS)
    async for batch in stored_batches(bus, TELEMETRY.name, [telemetry_filter(pool)], start):
        for stored in batch:
            use.take_sample(stored)
        if batch[-1].sequence >= last:
            return use, batch[-1].sequence
    return use, last


async def node_samples(bus: Bus, pool: str, node: str) -> list[GpuReadings]:
    """A node's stored samples, oldest first: 120 at most, of the last fifteen minutes."""
    return list(readings_of(await bus.read(TELEMETRY.name, subjects.telemetry(pool, node))))


async def read_utilization(bus: Bus, pool: str) -> UtilizationHistory:
    """Return how much the GPUs of a pool's nodes in service were used lately."""
    found = [nodes_decoder.decode(each.value) for each in await bus.entries(NODES, f"{pool}.*")]
    active = [each.node for each in found if each.state == "active"]
    chosen = sampled_nodes(active)
    samples: list[Stored] = []
    if filters := [subjects.telemetry(pool, each) for each in chosen]:
        async for batch in stored_batches(bus, TELEMETRY.name, filters, 0):
            samples += batch
    return UtilizationHistory(
        pool=pool,
        nodes=len(active),
        sampled=len(chosen),
        points=utilization_points(readings_of(samples)),
    )
