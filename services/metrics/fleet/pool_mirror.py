"""The pools' records, as POOLS has them: the bucket also has records of other types."""

import logging
from typing import Final

import msgspec

from schemas.messages import decoder
from schemas.pool_records import PoolRecord, pool_key
from schemas.topology import POOLS
from services.bus.port import Bus

log = logging.getLogger(__name__)

_pool: Final = decoder(PoolRecord)


class PoolMirror:
    """Keeps each pool's newest record that can be read."""

    def __init__(self, bus: Bus) -> None:
        """Read from `bus`, once `run` runs."""
        self._bus = bus
        self.records: dict[str, PoolRecord] = {}
        """By key."""

    async def run(self) -> None:
        """Follow POOLS until cancelled."""
        async for entry in self._bus.watch(POOLS, pool_key("*")):
            if entry.removed:
                self.records.pop(entry.key, None)
                continue
            try:
                self.records[entry.key] = _pool.decode(entry.value)
            except msgspec.DecodeError as error:
                log.warning("unreadable pool", extra={"key": entry.key, "error": str(error)})
