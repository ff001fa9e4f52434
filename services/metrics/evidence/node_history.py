"""A node's history: its records and stored messages, and its outages. Pure."""

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
class NodeHistory:
    """What the buckets and streams hold about a node now."""

    pool: str
    node: str
    record: NodeRecord | None = None
    health: HealthRecord | None = None
    instance: InstanceRecord | None = None
    samples: tuple[n.Telemetry, ...] = ()
    stored: tuple[Stored, ...] = ()
    """Its events, its pool's events about it, and the entries of its sagas."""

    def messages(self) -> list[tuple[Stored, Message]]:
        """The readable messages, in the order of their storing."""
        ordered = sorted(self.stored, key=lambda one: one.time)
        found = ((each, decode_stored(each)) for each in ordered)
        return [(each, message) for each, message in found if isinstance(message, Message)]

    def outages(self) -> tuple[Outage, ...]:
        """Every outage of the node, in order."""
        return outages(
            (each.time, message)
            for each, message in self.messages()
            if isinstance(message, n.NodeEvent) and message.node == self.node
        )

    def last_outage(self) -> Outage | None:
        """The newest outage, ended or not."""
        return next(reversed(self.outages()), None)

    def open_outage(self) -> Outage | None:
        """The newest outage, if it has not ended."""
        last = self.last_outage()
        return last if last and last.ended_at is None else None
