"""Instances that become nodes without a launch.

Orphans are of this fleet, their store is lost, and an operator adopts or terminates them. Others
are made, and removed, by an auto-scaling group or the like: they are adopted, retired at once.
"""

import logging
from functools import partial
from typing import Final

import msgspec

from schemas import subjects
from schemas.enums import FORGOTTEN, NOT_LISTED
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.topology import NODES
from services.bus.bucket_mirror import readable_record
from services.bus.port import Bus
from services.bus.protocol.endpoint_replies import reply_data
from services.primitives.clock import Clock
from services.provisioner.instances.instance_decisions import (
    ADOPTED,
    ERROR_CHARS_MAX,
    mark_terminated,
    record_from_tags,
    settle,
)
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Instance
from services.provisioner.removal.removal_orders import orphan_remedy
from services.provisioner.removal.remover import Remover
from services.provisioner.removal.sweep_actions import LEFT, SweepAction

log = logging.getLogger(__name__)

ADOPT_NODE: Final = "adopt-node"
RETIRE_NODE: Final = "retire-node"
ADOPT_SECONDS_MAX: Final = 10.0

_node: Final = decoder(NodeRecord)


class Orphans:
    """Records orphans, and adopts them on command."""

    def __init__(self, bus: Bus, clock: Clock, store: InstanceStore, remover: Remover) -> None:
        self._bus = bus
        self._clock = clock
        self._store = store
        self._remover = remover

    async def keep_departed(self, action: SweepAction) -> None:
        """Leave an instance to operators whose node is gone, if both are as the sweep saw them."""
        record = await self._store.get(action.key)
        node = readable_record(await self._bus.get(NODES, action.key), _node)
        if record is None or record.state != "running" or node is None:
            return
        if node.state == "terminated" and record.provider_id == action.instance.provider_id:
            await self.keep_launched(record, action.provider, action.instance, action.why)

    async def keep(self, action: SweepAction) -> None:
        """Record an orphan once, and publish it each day; nothing else happens to it."""
        instance, known = action.instance, await self._store.get(action.key)
        orphan = known
        if orphan is None:
            log.warning("orphan", extra={"instance": action.key, "reason": action.why})
            found = record_from_tags(action.provider, instance, self._clock.now())
            why = f"{action.why}; {orphan_remedy(instance.name)}"
            orphan = orphaned_record(found, instance, why)
        if orphan.state == "orphaned":
            await self._remover.publish_orphan(orphan)
        if known is None:
            await self._store.create(orphan)

    async def keep_launched(
        self, record: InstanceRecord, provider: str, instance: Instance, why: str
    ) -> None:
        """Record as an orphan what a launch has made that is undone, and may be in service."""
        why = f"{why}; {orphan_remedy(instance.name)}"
        launched = msgspec.structs.replace(record, provider=provider)
        await self._remover.publish_orphan(orphaned_record(launched, instance, why))

        def orphaned(found: InstanceRecord | None) -> InstanceRecord:
            if found is not None and found.state not in ("intended", "running"):
                return found
            return orphaned_record(found or launched, instance, why)

        await self._store.change(node_key(record.pool, record.instance), orphaned)

    async def adopt(self, action: SweepAction) -> None:
        """Have the pool-manager record its node, then record the instance as running.

        In this order a crash in between leaves an orphan that can be adopted again.
        """

        def running(record: InstanceRecord | None) -> InstanceRecord | None:
            if record is None or record.state != "orphaned":
                return record
            intended = msgspec.structs.replace(record, state="intended", saga=ADOPTED)
            return settle(intended, action.instance, self._clock.now(), record.provider).record

        record = running(await self._store.get(action.key))
        if record is None or record.state != "running":
            return
        await self._request(ADOPT_NODE, record)
        await self._store.change(action.key, running)

    async def adopt_joined(self, key: str, provider: str, instance: Instance) -> None:
        """Have the pool-manager record the node of an instance that others made, then record it."""
        now = self._clock.now()
        made = msgspec.structs.replace(record_from_tags(provider, instance, now), saga=ADOPTED)
        record = settle(made, instance, now, provider).record
        await self._request(ADOPT_NODE, record)

        def adopted(found: InstanceRecord | None) -> InstanceRecord:
            return record if found is None or found.state == "terminated" else found

        await self._store.change(key, adopted)

    async def retire_joined(self, key: str, why: str, mark: str = NOT_LISTED) -> None:
        """Have the pool-manager retire the node of an instance that others removed.

        `mark`: FORGOTTEN where an operator wants that no sweep adopts it again. A sweep goes on
        with a process that is killed in between.
        """

        def marked(record: InstanceRecord) -> InstanceRecord:
            kept = record.error == FORGOTTEN
            return record if kept else msgspec.structs.replace(record, error=mark)

        # First, as a saga about the node may have to end before: it is the machine of no step then.
        record = await self._store.amend(key, marked, "running")
        if record is None or record.state != "running":
            return
        await self._request(RETIRE_NODE, record)
        log.info("instance retired", extra={"instance": key, "reason": why})
        error = FORGOTTEN if record.error == FORGOTTEN else LEFT
        retired = partial(mark_terminated, now=self._clock.now(), error=error)
        await self._store.amend(key, retired, "running")

    async def keep_joined(self, key: str) -> None:
        """Undo the mark of an instance whose node was not retired."""
        unmarked = partial(msgspec.structs.replace, error="")
        await self._store.amend(key, unmarked, "running")

    async def _request(self, what: str, record: InstanceRecord) -> None:
        reply = await self._bus.request(
            subjects.query(what), encode(record), timeout_seconds=ADOPT_SECONDS_MAX
        )
        reply_data(reply)


def orphaned_record(found: InstanceRecord, instance: Instance, error: str) -> InstanceRecord:
    """Return the record of an instance whose store is lost."""
    return msgspec.structs.replace(
        found,
        state="orphaned",
        provider_id=instance.provider_id,
        region=instance.region,
        zone=instance.zone,
        address=instance.address,
        host=instance.host,
        error=error[:ERROR_CHARS_MAX],
        dollars_per_hour=instance.dollars_per_hour,
    )
