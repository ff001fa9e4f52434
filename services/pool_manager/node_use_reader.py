"""Reads how nodes are used and what they cost, right before some of them are chosen to leave."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_records import node_key
from schemas.topology import INSTANCES
from services.bus.bucket_mirror import readable_record
from services.bus.port import Bus
from services.pool_manager.heartbeat_reader import READS_AT_ONCE, HeartbeatReader
from services.pool_manager.planner.pool_snapshot import NodeUse

_instances: Final = decoder(InstanceRecord)


class NodeUseReader:
    """Reads heartbeats and instances."""

    def __init__(self, bus: Bus, heartbeats: HeartbeatReader) -> None:
        """Read on `bus`."""
        self._bus = bus
        self._heartbeats = heartbeats
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    async def read(self, pool: str, nodes: Collection[str]) -> Mapping[str, NodeUse]:
        """The use of each; BusError where the bus does not answer."""
        found = await asyncio.gather(*(self._read(pool, node) for node in nodes))
        return dict(zip(nodes, found, strict=True))

    async def _read(self, pool: str, node: str) -> NodeUse:
        beat = await self._heartbeats.last(pool, node)
        async with self._reads:
            entry = await self._bus.get(INSTANCES, node_key(pool, node))
        instance = readable_record(entry, _instances)
        return NodeUse(
            gpus=beat.gpu_use if beat else None,
            dollars_per_hour=instance.dollars_per_hour if instance else 0.0,
            offering=instance.offering if instance else None,
        )
