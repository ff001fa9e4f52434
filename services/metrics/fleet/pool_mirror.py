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
        self._records: dict[str, PoolRecord] = {}
        self._unread: dict[str, bytes | None] = {}
        """Key -> its newest record; None: it was removed."""

    def read(self) -> dict[str, PoolRecord]:
        """By key; decoded now: a pool that grows has its record written many times a second."""
        unread, self._unread = self._unread, {}
        for key, value in unread.items():
            if value is None:
                self._records.pop(key, None)
                continue
            try:
                self._records[key] = _pool.decode(value)
            except msgspec.DecodeError as error:
                log.warning("unreadable pool", extra={"key": key, "error": str(error)})
        return self._records

    async def run(self) -> None:
        """Follow POOLS until cancelled."""
        async for entry in self._bus.watch(POOLS, pool_key("*")):
            self._unread[entry.key] = None if entry.removed else entry.value
