"""Performs what the core decided: publishes verdicts, losses and returns, and sets timers.

Every message's id comes from its cause, so that performing twice is performing once.
"""

import hashlib
import logging
from typing import Final, assert_never

from prometheus_client import CollectorRegistry, Counter

from schemas import metric_catalogue
from schemas.health_records import HealthRecord
from schemas.messages import encode
from schemas.node_events import Fault, Lost, NodeEvent, Returned
from schemas.node_records import node_key
from schemas.saga_log_entries import TimerDue
from services.bus.port import Bus
from services.health_monitor.rules import node_health
from services.health_monitor.rules.health_outbox import WatchEvent
from services.health_monitor.rules.level_faults import is_over
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

TIMER_OWNER: Final = "health-monitor"


class HealthInstruments:
    """What the health-monitor measures."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.judged = Counter(
            *metric_catalogue.FAULTS_JUDGED.declared,
            registry=registry,
        )
        self.verdicts = Counter(*metric_catalogue.VERDICTS.declared, registry=registry)
        self.raised = Counter(
            *metric_catalogue.CONDITIONS_RAISED.declared,
            registry=registry,
        )
        self.silences = Counter(
            *metric_catalogue.SILENCES.declared,
            registry=registry,
        )
        self.levels = Counter(
            *metric_catalogue.LEVELS.declared,
            registry=registry,
        )
        self.samples = Counter(
            *metric_catalogue.SAMPLES_JUDGED.declared,
            registry=registry,
        )
        self.policy_loads = Counter(
            *metric_catalogue.POLICY_LOADS.declared,
            registry=registry,
        )


class Performer:
    """Carries effects to the bus."""

    def __init__(self, bus: Bus, instruments: HealthInstruments) -> None:
        self._bus = bus
        self._instruments = instruments

    async def perform(self, record: HealthRecord, effect: node_health.Effect) -> None:
        """Perform one effect about the node of `record`."""
        match effect:
            case node_health.PublishVerdict(verdict=verdict):
                await publish_event(self._bus, verdict)
                self._instruments.verdicts.labels(verdict.status).inc()
                level = logging.WARNING if verdict.status == "unhealthy" else logging.INFO
                log.log(level, "node %s", verdict.status, extra=_about(verdict, verdict.reason))
            case node_health.ReviewAt(at=at):
                key = hashlib.sha256(node_key(record.pool, record.node).encode()).hexdigest()[:32]
                due = TimerDue(id=f"review-{key}", time=at, pool=record.pool, node=record.node)
                await self._bus.schedule(TIMER_OWNER, key, at, encode(due))
            case _:
                assert_never(effect)

    async def publish(self, event: WatchEvent) -> None:
        """Publish what a watch decided."""
        await publish_event(self._bus, event)
        match event:
            case Lost():
                self._instruments.silences.labels("lost").inc()
                log.warning("node lost", extra=_about(event, "its heartbeat ran out"))
            case Returned():
                self._instruments.silences.labels("returned").inc()
                log.info("node returned", extra=_about(event, "its heartbeats returned"))
            case Fault():
                self._instruments.levels.labels(event.subcode, _edge(event)).inc()
                log.info("level %s", _edge(event), extra=_about(event, event.message))
            case _:
                assert_never(event)


def _edge(fault: Fault) -> str:
    return "over" if is_over(fault) else "begun"


def _about(event: NodeEvent, reason: str) -> dict[str, str]:
    return {"pool": event.pool, "node": event.node, "id": event.id, "reason": reason}
