"""A node's story: what is stored about it, and its times out of service. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from schemas import node_events as n
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import Message
from schemas.node_records import NodeRecord
from schemas.stored_messages import decode_stored
from services.bus.port import Stored
from services.metrics.evidence.outages import Outage, outages


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the buckets and the streams hold of a node now."""

    pool: str
    node: str
    record: NodeRecord | None = None
    health: HealthRecord | None = None
    instance: InstanceRecord | None = None
    samples: tuple[n.Telemetry, ...] = ()
    story: tuple[Stored, ...] = ()
    """Its events, its pool's about it, and the entries of its sagas."""


def in_order(story: Iterable[Stored]) -> list[tuple[Stored, Message]]:
    """What can be read of a story, by the moment of storing."""
    found = ((each, decode_stored(each)) for each in sorted(story, key=lambda one: one.time))
    return [(each, message) for each, message in found if isinstance(message, Message)]


def own_outages(known: Known) -> tuple[Outage, ...]:
    """Every time out of service that the story tells of."""
    return outages(
        (each.time, message)
        for each, message in in_order(known.story)
        if isinstance(message, n.NodeEvent) and message.node == known.node
    )


def last_outage(known: Known, *, open_only: bool = False) -> Outage | None:
    """The last of them; `open_only`: only if it has not ended."""
    found = own_outages(known)
    if not found or (open_only and found[-1].ended_at is not None):
        return None
    return found[-1]
