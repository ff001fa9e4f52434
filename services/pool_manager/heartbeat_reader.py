"""Reads heartbeats from the server, right before anything is done about a node for its silence.

That a node is lost is what the health-monitor published; it may have published it while it, or the
bus, lagged behind.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import Final

from schemas.messages import decoder
from schemas.node_records import HeartbeatRecord, node_key
from schemas.topology import HEARTBEATS
from services.bus.bucket_mirror import readable, readable_record
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError

READS_AT_ONCE: Final = 64
AGE_SECONDS_MAX: Final = 5.0
"""A long list has many pages, which are read once."""

_beats: Final = decoder(HeartbeatRecord)


class HeartbeatReader:
    """Reads whether nodes beat."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    async def beating(self, pool: str, nodes: Collection[str]) -> frozenset[str]:
        """Return the nodes whose heartbeat has not expired; BusError where that is not known."""
        found = await asyncio.gather(*(self._beats(pool, node) for node in nodes))
        return frozenset(node for node, beats in zip(nodes, found, strict=True) if beats)

    async def _beats(self, pool: str, node: str) -> bool:
        async with self._reads:
            return await self._bus.get(HEARTBEATS, node_key(pool, node)) is not None

    async def last(self, pool: str, node: str) -> HeartbeatRecord | None:
        """A node's last heartbeat, if it has not expired."""
        async with self._reads:
            return readable_record(await self._bus.get(HEARTBEATS, node_key(pool, node)), _beats)


class HeartbeatTimes:
    """When agents last reported, for operators: what cannot be read is not known."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._reader = HeartbeatReader(bus)
        self._reading = asyncio.Lock()
        self._times: dict[str, datetime] = {}
        self._read_at = -inf

    async def of(self, pool: str, node: str) -> datetime | None:
        """Return the time of a node's last heartbeat, read now; None: it has none, or not known."""
        with suppress(BusError):
            beat = await self._reader.last(pool, node)
            return beat.time if beat is not None else None
        return None

    async def all(self) -> Mapping[str, datetime]:
        """Return the times of all nodes by their records' keys, at most AGE_SECONDS_MAX old."""
        async with self._reading:
            if self._clock.monotonic() - self._read_at > AGE_SECONDS_MAX:
                with suppress(BusError):
                    entries = await self._bus.entries(HEARTBEATS)
                    self._times = {at.key: each.time for at, each in readable(entries, _beats)}
                    self._read_at = self._clock.monotonic()
            return self._times
