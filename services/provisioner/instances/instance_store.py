"""INSTANCES as the provisioner writes it: every change is a compare-and-set decided by the core.

Whatever asks for a change reads the record again on each conflict, so that of two replicas the
later one always decides on what the earlier one wrote.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_records import node_key
from schemas.topology import DAY_SECONDS, INSTANCES
from services.bus.port import Bus
from services.primitives.errors import Conflict, Reject, Retry

CONFLICTS_MAX: Final = 20
TERMINATED_TTL_SECONDS: Final = 7 * DAY_SECONDS
"""How long a finished instance can still be asked about, and keeps a late launch from happening."""

_decoder: "msgspec.json.Decoder[Any]" = decoder(InstanceRecord)

Change = Callable[[InstanceRecord | None], InstanceRecord | None]
"""Decides what to write, given what stands; None writes nothing."""


class InstanceStore:
    """The records of instances."""

    def __init__(self, bus: Bus) -> None:
        """Write to the bucket INSTANCES of this bus."""
        self._bus = bus

    async def get(self, key: str) -> InstanceRecord | None:
        """The record, if there is one."""
        record, _ = await self._read(key)
        return record

    async def all(self, pool: str = "", names: Collection[str] = ()) -> dict[str, InstanceRecord]:
        """Every readable record, or those of these `names`, by key."""
        entries = await self._bus.entries(INSTANCES, f"{pool}.>" if pool else ">")
        return {
            each.key: _decode(each.key, each.value)
            for each in entries
            if not names or each.key.rpartition(".")[2] in names
        }

    async def create(self, record: InstanceRecord) -> bool:
        """Write the record of an intention; False where one stands already."""
        try:
            await self._write(record, 0)
        except Conflict:
            return False
        return True

    async def change(self, key: str, decide: Change) -> InstanceRecord | None:
        """Write what `decide` makes of the record, and return what stands then."""
        for _ in range(CONFLICTS_MAX):
            record, revision = await self._read(key)
            changed = decide(record)
            if changed is None or changed == record:
                return record
            try:
                await self._write(changed, revision)
            except Conflict:
                continue
            return changed
        raise Retry(f"the record {key} changes too often")

    async def _read(self, key: str) -> tuple[InstanceRecord | None, int]:
        entry = await self._bus.get(INSTANCES, key)
        return (None, 0) if entry is None else (_decode(key, entry.value), entry.revision)

    async def _write(self, record: InstanceRecord, revision: int) -> None:
        key = node_key(record.pool, record.instance)
        ttl = TERMINATED_TTL_SECONDS if record.state == "terminated" else 0
        if revision == 0:
            await self._bus.create(INSTANCES, key, encode(record), ttl_seconds=ttl)
        else:
            await self._bus.update(INSTANCES, key, encode(record), revision, ttl_seconds=ttl)


def _decode(key: str, value: bytes) -> InstanceRecord:
    try:
        record: InstanceRecord = _decoder.decode(value)
    except msgspec.DecodeError as error:
        raise Reject(f"the record {key} in {INSTANCES.name} cannot be read: {error}") from error
    return record
