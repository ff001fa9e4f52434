"""Stores evidence of unhealthy nodes, and publishes `repaired` when an outage has ended.

A verdict, a loss or the start of a saga that takes a node out of service makes a capture: samples
and records that soon expire. The end of the outage makes the bundle, once, and then the event
`repaired`. The bundle is written first and the event published second, both under names derived
from the saga, so that a crash between the two, or a second replica, changes nothing further.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

import msgspec

from schemas import evidence_bundles as e
from schemas import node_events as n
from schemas import pool_events as p
from schemas.enums import REMEDIES
from schemas.event_subjects import event_subject
from schemas.messages import Message, encode
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, EVIDENCE, METRICS_EVIDENCE
from services.bus.port import Bus, Stored
from services.metrics.evidence import evidence_content, outages, stored_evidence
from services.metrics.evidence.outages import NodeHistory
from services.primitives.clock import Clock
from services.primitives.errors import Conflict, UnreadableRecord
from services.runtime.consumer_loop import Consumer, Received
from services.runtime.tracing import current_headers

log = logging.getLogger(__name__)

REST_FACTOR: Final = 3.0
"""After each event the collector rests this many times as long as it worked: in a wave the machine
is needed for replacements first, and samples stay in their stream for minutes."""
REST_SECONDS_MAX: Final = 1.0


class EvidenceCollector:
    """Makes captures and bundles."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._pools = stored_evidence.PoolLog(bus)
        self._lock = asyncio.Lock()

    def consumer(self) -> Consumer:
        """The consumer of the events that begin and end outages."""
        return Consumer(
            durable=METRICS_EVIDENCE,
            decode=decode_stored,
            handle=self.handle,
            key=lambda s: s.subject,
        )

    async def handle(self, received: Received[Message]) -> None:
        """Capture, mark as recovered or bundle, as the event requires."""
        message = received.message
        node = str(getattr(message, "old_node", "") or getattr(message, "node", ""))
        begins, recovers, ends = may_begin(message), may_recover(message), may_end(message)
        if not node or not (begins or recovers or ends):
            return
        pool = str(getattr(message, "pool", ""))
        async with self._lock:
            started = self._clock.monotonic()
            if ends:
                await self._end(pool, node, message, received.stored)
            else:
                await self._capture(pool, node, message, recovers=recovers)
            worked = self._clock.monotonic() - started
            await self._clock.sleep(min(REST_FACTOR * worked, REST_SECONDS_MAX))

    async def _history(self, pool: str, node: str, message: Message) -> NodeHistory:
        sagas = [str(getattr(message, "saga", ""))]
        return await stored_evidence.read_history(self._bus, self._pools, pool, node, sagas)

    async def _capture(self, pool: str, node: str, message: Message, *, recovers: bool) -> None:
        """Write or renew a node's capture, or mark it as recovered."""
        old, revision = await stored_evidence.stored_capture(self._bus, pool, node)
        if recovers and old is None:
            return
        history = await self._history(pool, node, message)
        made: e.EvidenceCapture | None
        if recovers and old is not None:
            made = evidence_content.recovered_capture(history, old)
        elif history.record is None or history.record.state == "terminated":
            return  # its heartbeats stopped because it was terminated
        else:
            made = evidence_content.capture(history, old, self._clock.now())
        if made is not None:
            await self._put_capture(made, revision)

    async def _put_capture(self, capture: e.EvidenceCapture, revision: int) -> None:
        await self._bus.put_object(
            EVIDENCE,
            e.capture_name(capture.pool, capture.node),
            encode(capture),
            metadata=evidence_content.capture_metadata(capture),
            revision=revision,
        )

    async def _end(self, pool: str, node: str, message: Message, stored: Stored) -> None:
        """Store the bundle of the outage that an event ended, and publish `repaired`."""
        history = await self._history(pool, node, message)
        ending = outages.outage_ending(history, message, stored.time)
        if ending is None:
            if isinstance(message, p.SagaFailed | p.SagaCancelled):
                # A healthy node whose replacement was cancelled: there is nothing to wait for.
                await self._capture(pool, node, message, recovers=True)
            return
        capture, revision = await stored_evidence.stored_capture(self._bus, pool, node)
        bundle = evidence_content.bundle(history, capture, ending)
        name = ""
        if outages.is_stored(ending):
            name = e.bundle_name(pool, node, ending.saga or message.id)
            bundle = await self._store(name, bundle)
        await self._publish_repaired(message, bundle, name)
        if capture is not None and capture.outcome == "open" and history.open_outage() is None:
            ended = msgspec.structs.replace(capture, outcome=bundle.outcome)
            await self._put_capture(ended, revision)

    async def _store(self, name: str, bundle: e.EvidenceBundle) -> e.EvidenceBundle:
        """Write a bundle unless it exists; return the stored one."""
        metadata = evidence_content.bundle_metadata(bundle)
        try:
            await self._bus.put_object(
                EVIDENCE, name, encode(bundle), metadata=metadata, revision=0
            )
        except Conflict:
            with suppress(UnreadableRecord):  # what came of the outage is known all the same
                return await stored_evidence.stored_bundle(self._bus, name) or bundle
            return bundle
        log.info("evidence stored", extra={"object": name})
        return bundle

    async def _publish_repaired(
        self, message: Message, bundle: e.EvidenceBundle, name: str
    ) -> None:
        """Publish `repaired` exactly once, however late a redelivery repeats this."""
        outcome = bundle.outcome
        assert outcome != "open"
        assert outcome != "recovered"
        assert bundle.restored_at is not None
        event = n.Repaired(
            id=f"repaired-{bundle.saga or message.id}",
            time=self._clock.now(),
            cause=message.id,
            pool=bundle.pool,
            node=bundle.node,
            saga=bundle.saga,
            outcome=outcome,
            new_node=bundle.new_node,
            fault_signature=bundle.fault_signature,
            unhealthy_at=bundle.unhealthy_at,
            restored_at=bundle.restored_at,
            gpu_count=bundle.gpu_count,
            lost_gpu_hours=bundle.lost_gpu_hours,
            evidence=name,
        )
        subject = event_subject(event)
        published = await self._bus.read(EVENTS.name, subject)
        if any(getattr(decode_stored(each), "id", "") == event.id for each in published):
            return
        await self._bus.append(
            subject,
            encode(event),
            tree=subject,
            expected=published[-1].sequence if published else 0,
            headers=current_headers(),
        )


def may_begin(message: Message) -> bool:
    """Return whether an event may begin an outage, or work on the node."""
    match message:
        case n.Verdict(status=status, action=action):
            return status == "unhealthy" or (status == "degraded" and action != "none")
        case n.Lost():
            return True
        case p.SagaOpened(kind=kind):
            return kind in REMEDIES
        case _:
            return False


def may_recover(message: Message) -> bool:
    """Return whether an event may mean that a node recovered without a remediation."""
    return isinstance(message, n.Returned) or (
        isinstance(message, n.Verdict) and message.status == "healthy"
    )


def may_end(message: Message) -> bool:
    """Return whether an event may end an outage."""
    return isinstance(
        message, p.NodeReplaced | n.Uncordoned | n.Terminated | p.SagaFailed | p.SagaCancelled
    )
