"""INSTANCES as the provisioner writes it: every change is a compare-and-set of a pure decision."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from schemas.enums import FORGOTTEN, InstanceState
from schemas.instance_records import InstanceRecord
from schemas.node_records import node_key
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.stream_specs import DAY_SECONDS
from schemas.topology import INSTANCES, POOLS
from services.bus.port import Bus
from services.bus.record_bucket import RecordBucket
from services.primitives.errors import Conflict, UnreadableRecord
from services.provisioner.instances.instance_decisions import instance_of
from services.provisioner.provider_client.provider import Instance

log = logging.getLogger(__name__)

TERMINATED_TTL_SECONDS: Final = 7 * DAY_SECONDS
"""How long a terminated instance can be queried and prevents a late launch."""

HOLDERS_SECONDS: Final = 30.0
"""How old the index by ID may be: whose ID is given to a second instance has it for longer."""

Change = Callable[[InstanceRecord | None], InstanceRecord | None]
"""Decides what to write, given the current record; None writes nothing."""


class InstanceStore:
    """Reads and writes the records of instances."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._records = RecordBucket(bus, INSTANCES, InstanceRecord, _ttl_seconds)
        self._fleet_records = RecordBucket(bus, POOLS, FleetRecord)
        self._holders: dict[str, str] = {}
        """Provider ID -> key of the record that had it."""
        self._holders_read_at = float("-inf")
        self._reading_holders = asyncio.Lock()

    async def fleet(self) -> str:
        """The fleet's ID, by which its instances are recognised; empty where it is lost."""
        record = (await self._fleet_records.read(FLEET_KEY)).record
        return record.id if record is not None else ""

    async def get(self, key: str) -> InstanceRecord | None:
        """The record, if there is one."""
        return (await self._records.read(key)).record

    async def all(self, pool: str = "", names: Collection[str] = ()) -> dict[str, InstanceRecord]:
        """Return every readable record, or those of these `names`, by key."""
        found = await self.all_keys(pool)
        return {
            key: record
            for key, record in found.items()
            if record is not None and (not names or key.rpartition(".")[2] in names)
        }

    async def all_keys(self, pool: str = "") -> dict[str, InstanceRecord | None]:
        """Every record by key; None where it cannot be read."""
        found: dict[str, InstanceRecord | None] = {}
        for each in await self._bus.entries(INSTANCES, f"{pool}.>" if pool else ">"):
            try:
                found[each.key] = self._records.decode(each)
            except UnreadableRecord as error:
                log.error("%s", error)  # noqa: TRY400 - the text is the whole story
                found[each.key] = None
        return found

    async def joined(self, provider: str) -> list[Instance]:
        """Return the machines of a provider that joined and have not left: its records say so."""
        found = await self.all()
        return [
            instance_of(each)
            for each in found.values()
            if each.provider == provider and each.state == "running"
        ]

    async def other_holder(self, key: str, record: InstanceRecord) -> str:
        """Return the key of another record that has this one's instance; empty: none has."""
        now = asyncio.get_running_loop().time
        async with self._reading_holders:
            if now() - self._holders_read_at > HOLDERS_SECONDS:
                self._holders_read_at = now()
                found = await self.all()
                self._holders = {each.provider_id: name for name, each in found.items()}
        other = self._holders.setdefault(record.provider_id, key)
        if other == key or not record.provider_id:
            return ""
        held = await self.get(other)
        mine = held is None or held.state == "terminated" or held.provider_id != record.provider_id
        if mine or held is None or held.provider != record.provider:
            return ""
        return other

    async def create(self, record: InstanceRecord) -> bool:
        """Write the record of an intention; False if there is a record already."""
        try:
            await self._records.write(node_key(record.pool, record.instance), record, 0)
        except Conflict:
            return False
        return True

    async def change(self, key: str, decide: Change) -> InstanceRecord | None:
        """Write the result of `decide`, and return the current record."""
        return (await self._records.change(key, decide)).record

    async def amend(
        self, key: str, decide: Callable[[InstanceRecord], InstanceRecord], *states: InstanceState
    ) -> InstanceRecord | None:
        """Change a record that is there, and in one of `states` if any is named."""
        return await self.change(
            key, lambda e: decide(e) if e and (not states or e.state in states) else None
        )


def _ttl_seconds(record: InstanceRecord) -> int:
    ended = record.state == "terminated" and record.error != FORGOTTEN
    return TERMINATED_TTL_SECONDS if ended else 0
