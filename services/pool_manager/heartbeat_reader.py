"""Reads heartbeats from the server, right before anything is done about a node for its silence.

That a node is lost is what the health-monitor published; it may have published it while it, or the
bus, lagged behind.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from schemas.messages import decoder
from schemas.node_records import HeartbeatRecord, node_key
from schemas.topology import HEARTBEATS
from services.bus.bucket_mirror import readable_record
from services.bus.port import Bus

READS_AT_ONCE: Final = 64

_beats: Final = decoder(HeartbeatRecord)


class HeartbeatReader:
    """Reads whether nodes beat."""

    def __init__(self, bus: Bus) -> None:
        """Read on `bus`."""
        self._bus = bus
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    async def beating(self, pool: str, nodes: Collection[str]) -> frozenset[str]:
        """Those of the nodes whose heartbeat has not expired; BusError where that is not known."""
        found = await asyncio.gather(*(self._beats(pool, node) for node in nodes))
        return frozenset(node for node, beats in zip(nodes, found, strict=True) if beats)

    async def _beats(self, pool: str, node: str) -> bool:
        async with self._reads:
            return await self._bus.get(HEARTBEATS, node_key(pool, node)) is not None

    async def last(self, pool: str, node: str) -> HeartbeatRecord | None:
        """A node's last heartbeat, if it has not expired."""
        async with self._reads:
            return readable_record(await self._bus.get(HEARTBEATS, node_key(pool, node)), _beats)
