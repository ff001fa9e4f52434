"""Keeps evidence of sick nodes, and tells what their fault signature has cost once it has ended.

A verdict, a loss or the beginning of a saga that takes a node out makes a capture: samples and
records that soon expire. The end of the outage makes the bundle, once, and then the event
`repaired`. The bundle is written first and the event published second, both under names derived
from the saga, so that a crash between the two, or a second replica, changes nothing more.
"""

import asyncio
import logging
from typing import Final

from schemas import evidence_bundles as e
from schemas import node_events as n
from schemas import pool_events as p
from schemas.enums import REMEDIES
from schemas.event_subjects import event_subject
from schemas.messages import Message, encode
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, EVIDENCE, METRICS_EVIDENCE
from services.bus.port import Bus, Stored
from services.metrics.evidence import (
    evidence_content,
    node_history,
    outage_endings,
    stored_evidence,
)
from services.primitives.clock import Clock
from services.primitives.errors import Conflict
from services.runtime.consumer_loop import Consumer, Received
from services.runtime.tracing import current_headers

log = logging.getLogger(__name__)

REST: Final = 3.0
"""After each piece of work so many times its length nothing is done: a wave of sick nodes needs the
machine for their replacement first, and samples stay in their stream for minutes."""
REST_SECONDS_MAX: Final = 1.0

"""Sagas that change what could be asked of a node."""


class Collector:
    """Makes captures and bundles."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Read from and write to `bus`."""
        self._bus = bus
        self._clock = clock
        self._pools = stored_evidence.PoolLog(bus)
        self._turn = asyncio.Lock()

    def consumer(self) -> Consumer:
        """The consumer that drives it."""
        return Consumer(
            durable=METRICS_EVIDENCE,
            decode=decode_stored,
            handle=self.handle,
            key=lambda s: s.subject,
        )

    async def handle(self, received: Received[Message]) -> None:
        """Take in one fact."""
        message, stored = received.message, received.stored
        pool, node = stored_evidence.pool_of(message), stored_evidence.node_of(message)
        if not node:
            return
        if not (begins(message) or ends(message) or recovers(message)):
            return
        async with self._turn:
            began = self._clock.monotonic()
            if begins(message):
                await self._capture(pool, node, message)
            elif recovers(message):
                await self._recovered(pool, node, message)
            else:
                await self._end(pool, node, message, stored)
            took = self._clock.monotonic() - began
            await self._clock.sleep(min(REST * took, REST_SECONDS_MAX))

    async def _known(self, pool: str, node: str, message: Message) -> node_history.Known:
        sagas = [str(getattr(message, "saga", ""))]
        return await stored_evidence.known(self._bus, self._pools, pool, node, sagas)

    async def _capture(self, pool: str, node: str, message: Message) -> None:
        known = await self._known(pool, node, message)
        if known.record is None or known.record.state == "terminated":
            # The last word of a heart that stopped because the node was taken away.
            return
        old, revision = await stored_evidence.stored_capture(self._bus, pool, node)
        made = evidence_content.capture(known, old, self._clock.now())
        await self._bus.put_object(
            EVIDENCE,
            e.capture_name(pool, node),
            encode(made),
            metadata=evidence_content.capture_labels(made),
            revision=revision,
        )

    async def _recovered(self, pool: str, node: str, message: Message) -> None:
        kept, revision = await stored_evidence.stored_capture(self._bus, pool, node)
        if kept is None:
            return
        made = evidence_content.recovered(await self._known(pool, node, message), kept)
        if made is None:
            return
        await self._bus.put_object(
            EVIDENCE,
            e.capture_name(pool, node),
            encode(made),
            metadata=evidence_content.capture_labels(made),
            revision=revision,
        )

    async def _end(self, pool: str, node: str, message: Message, stored: Stored) -> None:
        known = await self._known(pool, node, message)
        found = outage_endings.ending(known, message, stored.time)
        if found is None or found.outcome == "open":
            return
        kept, _ = await stored_evidence.stored_capture(self._bus, pool, node)
        made = evidence_content.bundle(known, kept, found)
        name = ""
        if outage_endings.keeps(found):
            name = e.bundle_name(pool, node, found.saga or message.id)
            made = await self._keep(name, made)
        await self._tell(message, made, name)

    async def _keep(self, name: str, made: e.EvidenceBundle) -> e.EvidenceBundle:
        """Write a bundle unless it stands; return the one that stands."""
        try:
            await self._bus.put_object(
                EVIDENCE, name, encode(made), metadata=evidence_content.labels(made), revision=0
            )
        except Conflict:
            stands = await stored_evidence.stored_bundle(self._bus, name)
            return stands or made
        log.info("evidence kept", extra={"object": name})
        return made

    async def _tell(self, message: Message, made: e.EvidenceBundle, name: str) -> None:
        """Publish `repaired` exactly once, however much later this is done again."""
        outcome = made.outcome
        assert outcome != "open"
        assert outcome != "recovered"
        assert made.restored_at is not None
        event = n.Repaired(
            id=f"repaired-{made.saga or message.id}",
            time=self._clock.now(),
            cause=message.id,
            pool=made.pool,
            node=made.node,
            saga=made.saga,
            outcome=outcome,
            new_node=made.new_node,
            fault_signature=made.fault_signature,
            unhealthy_at=made.unhealthy_at,
            restored_at=made.restored_at,
            gpu_count=made.gpu_count,
            lost_gpu_hours=made.lost_gpu_hours,
            evidence=name,
        )
        subject = event_subject(event)
        told = await self._bus.read(EVENTS.name, subject)
        if any(getattr(decode_stored(each), "id", "") == event.id for each in told):
            return
        await self._bus.append(
            subject,
            encode(event),
            tree=subject,
            expected=told[-1].sequence if told else 0,
            headers=current_headers(),
        )


def begins(message: Message) -> bool:
    """Whether a fact may be the beginning of a fault signature, or of work on the node."""
    match message:
        case n.Verdict(status=status, action=action):
            return status == "unhealthy" or (status == "degraded" and action != "none")
        case n.Lost():
            return True
        case p.SagaOpened(kind=kind):
            return kind in REMEDIES
        case _:
            return False


def recovers(message: Message) -> bool:
    """Whether a fact may say that a node is well again by itself."""
    return isinstance(message, n.Returned) or (
        isinstance(message, n.Verdict) and message.status == "healthy"
    )


def ends(message: Message) -> bool:
    """Whether a fact may be the end of a fault signature."""
    return isinstance(
        message, p.NodeReplaced | n.Uncordoned | n.Terminated | p.SagaFailed | p.SagaCancelled
    )
