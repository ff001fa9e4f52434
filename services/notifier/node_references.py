"""Reads how a workload system may know a node: a reference made of what the records say."""

import asyncio
from datetime import datetime

from schemas.enums import TAKING
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.topology import HEALTH, INSTANCES, NODES
from services.bus.bucket_mirror import readable_record
from services.bus.port import Bus, Entry
from services.notifier.workload.workload_notifier import GpuReference, NodeReference

decode_node = decoder(NodeRecord)
_instances = decoder(InstanceRecord)
_health = decoder(HealthRecord)

Entries = tuple[Entry | None, Entry | None, Entry | None]
"""What NODES, INSTANCES and HEALTH have of a node."""


async def read_reference(bus: Bus, pool: str, node: str) -> NodeReference:
    """Everything a workload system may know the node by; records may be gone or unreadable."""
    entries = await read_entries(bus, pool, node)
    return reference_of(pool, node, readable_record(entries[0], decode_node), entries)


async def read_entries(bus: Bus, pool: str, node: str) -> Entries:
    """Read what the three buckets have of a node, at once."""
    key = node_key(pool, node)
    return await asyncio.gather(bus.get(NODES, key), bus.get(INSTANCES, key), bus.get(HEALTH, key))


def reference_of(
    pool: str, node: str, record: NodeRecord | None, entries: Entries
) -> NodeReference:
    """Make a node's reference of its record and its entries. Pure."""
    instance: InstanceRecord | None = readable_record(entries[1], _instances)
    health: HealthRecord | None = readable_record(entries[2], _health)
    return node_reference(pool, node, record, instance, health)


async def read_node(bus: Bus, pool: str, node: str) -> NodeRecord | None:
    """The record of a node; None: it is gone, or unreadable."""
    record: NodeRecord | None = readable_record(
        await bus.get(NODES, node_key(pool, node)), decode_node
    )
    return record


async def read_gpus(
    bus: Bus, pool: str, node: str, gpus: tuple[int, ...] | None = None
) -> tuple[GpuReference, ...]:
    """Return these GPUs, or those recorded as cordoned, with the UUIDs that the agent reported."""
    return gpus_of(await read_node(bus, pool, node), gpus)


def gpus_of(record: NodeRecord | None, gpus: tuple[int, ...] | None) -> tuple[GpuReference, ...]:
    """Name GPUs, None for those recorded as cordoned, by index and reported UUID. Pure."""
    uuids = {each.index: each.uuid for each in record.gpus} if record is not None else {}
    if gpus is None:
        gpus = record.cordoned_gpus if record is not None else ()
    return tuple(GpuReference(index=each, uuid=uuids.get(each, "")) for each in gpus)


def node_reference(
    pool: str,
    node: str,
    record: NodeRecord | None,
    instance: InstanceRecord | None,
    health: HealthRecord | None = None,
) -> NodeReference:
    """The reference that these records make. Pure."""
    launch = (record and record.launch) or (instance and instance.launch)
    return NodeReference(
        pool=pool,
        node=node,
        hostname=record.hostname if record else "",
        address=(record and record.address) or (instance and instance.address) or "",
        provider=instance.provider if instance else "",
        provider_id=instance.provider_id if instance else "",
        labels=launch.labels if launch else {},
        lost=record.lost if record else False,
        gone=record.provider_state == "gone" if record else False,
        taken_at=taken_at(record) if record else None,
        faulty_gpus=tuple(each.index for each in health.gpus) if health else (),
    )


def taken_at(record: NodeRecord) -> datetime | None:
    """When the cloud takes a node first, by the notices in force. Pure."""
    notices = record.notices.values()
    taking = (each.deadline for each in notices if each.effect in TAKING and not each.withdrawn)
    return min((each for each in taking if each is not None), default=None)
