"""Disconnects nodes that flood the bus, and readmits them on an operator's order.

A disconnected node's key is revoked (`credentials_revoker`), and gets no credentials. Its record
says so first: so the silence that follows is known to be ours, and the node is not replaced for it.
"""

import logging
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.fleet_queries import CurrentFailure
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_disconnections import DisconnectAnswer, DisconnectRequest, ReadmitRequest
from schemas.node_events import BusAccess
from schemas.node_records import node_key
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.primitives.clock import Clock
from services.provisioner.instances.instance_store import InstanceStore
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

DISCONNECTED_MAX: Final = 5
"""At once: a defect of all agents, or of what requests this, silences no more nodes."""
REASON_CHARS_MAX: Final = 500
DISCONNECT: Final = "disconnect-node"
READMIT: Final = "readmit"


def why_not_disconnected(record: InstanceRecord | None, others: int, *, can_revoke: bool) -> str:
    """Why a node stays connected; empty: it is to be disconnected. Pure.

    `others`: how many nodes are disconnected already.
    """
    if not can_revoke:
        return "the provisioner cannot revoke credentials (nats.revocation_file is not set)"
    if record is None or record.state != "running":
        return "the provisioner has no running instance of that name"
    if not record.agent_key:
        return "its credentials were not issued by the provisioner"
    if others >= DISCONNECTED_MAX:
        return f"{others} other nodes are disconnected, the most at once: readmit or replace them"
    return ""


def readmitted(record: InstanceRecord, now: datetime) -> InstanceRecord:
    """The record of a node whose credentials are accepted again. Pure."""
    if record.state == "terminated":
        raise ValueError(f"the instance of {record.instance} is terminated")
    if record.disconnected_at is None:
        raise ValueError(
            f"{record.instance} is not disconnected: `navarch status` names the nodes that are"
        )
    return replace(record, disconnected_at=None, disconnected_reason="", readmitted_at=now)


def disconnected_failure(record: InstanceRecord) -> CurrentFailure:
    """What is reported of a disconnected node, for as long as it is."""
    node = record.instance
    return CurrentFailure(
        failure="node-disconnected",
        about=f"node {node}",
        reason=(
            f"{record.disconnected_reason}; its credentials are refused since "
            f"{record.disconnected_at:%Y-%m-%d %H:%M:%S} UTC. Its work goes on, its faults are not "
            "seen, and it is not replaced for its silence"
        ),
        remedy=(
            f"find out what sent them (`navarch events --node {node}`, the agent's log); then "
            f"`navarch readmit {node}`, or `navarch replace {node}` where its credentials may have "
            "been copied"
        ),
    )


class NodeDisconnector:
    """Answers both requests."""

    def __init__(self, bus: Bus, clock: Clock, store: InstanceStore, *, can_revoke: bool) -> None:
        self._bus = bus
        self._clock = clock
        self._store = store
        self._can_revoke = can_revoke

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Subject -> endpoint."""
        return {
            subjects.query(DISCONNECT): self._disconnect,
            subjects.order_wildcard(READMIT): self._readmit,
        }

    async def _disconnect(self, data: bytes, _: Headers) -> bytes:
        request = msgspec.json.decode(data, type=DisconnectRequest)
        key, now, refused = node_key(request.pool, request.node), self._clock.now(), ""
        others = await self._count_others(key)

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            nonlocal refused
            refused = ""
            if record is not None and record.disconnected_at is not None:
                return record
            refused = why_not_disconnected(record, others, can_revoke=self._can_revoke)
            if refused or record is None:
                return None
            reason = request.reason[:REASON_CHARS_MAX]
            return replace(record, disconnected_at=now, disconnected_reason=reason)

        record = await self._store.change(key, decide)
        if refused or record is None or record.disconnected_at is None:
            return encode(DisconnectAnswer(disconnected=False, reason=refused))
        log.warning("node disconnected", extra={"node": request.node, "reason": request.reason})
        event = BusAccess(
            id=f"disconnected-{request.node}-{record.disconnected_at.isoformat()}",
            time=record.disconnected_at,
            pool=record.pool,
            node=record.instance,
            refused=True,
            reason=record.disconnected_reason,
        )
        await publish_event(self._bus, event)
        return encode(DisconnectAnswer(disconnected=True))

    async def _count_others(self, key: str) -> int:
        records = await self._store.all() if self._can_revoke else {}
        return sum(
            each.disconnected_at is not None and each.state != "terminated"
            for name, each in records.items()
            if name != key
        )

    async def _readmit(self, data: bytes, headers: Headers) -> bytes:
        request = msgspec.json.decode(data, type=ReadmitRequest)
        now = self._clock.now()

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            if record is None:
                raise ValueError(f"the provisioner has no instance {request.node}")
            return readmitted(record, now)

        record = await self._store.change(node_key(request.pool, request.node), decide)
        assert record is not None
        event = BusAccess(
            id=f"readmitted-{request.node}-{now.isoformat()}",
            time=now,
            pool=record.pool,
            node=record.instance,
            refused=False,
            by=requester(headers, request.by),
        )
        await publish_event(self._bus, event)
        return encode(event)
