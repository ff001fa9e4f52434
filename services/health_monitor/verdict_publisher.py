"""Performs what the core decided: verdicts, losses, returns, timers; for many nodes in order.

Every message's id comes from its cause, so that performing twice is performing once.
"""

import asyncio
import hashlib
import logging
import zlib
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

from prometheus_client import CollectorRegistry, Counter

from schemas import metric_catalogue
from schemas.health_records import HealthRecord
from schemas.messages import encode
from schemas.node_events import Fault, Lost, NodeEvent, Returned
from schemas.node_records import node_key
from schemas.saga_log_entries import TimerDue
from services.bus.leases import Lease
from services.bus.port import Bus
from services.health_monitor.rules import node_health
from services.health_monitor.rules.health_state import WatchEvent
from services.health_monitor.rules.level_faults import is_over
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Retry, UnreadableRecord
from services.runtime.event_publisher import publish_event

RETRY_SECONDS: Final = 0.5
WORKERS: Final = 32
"""Nodes processed concurrently; the jobs of one node stay in order."""
WAITING_MAX: Final = 2_000
"""Jobs that wait at one worker before the watch itself waits."""

LATER_SECONDS: Final = 30.0
"""Before a job is tried again whose record cannot be read, or that raised."""
LATER_MAX: Final = 10_000

NodeJob = Callable[[], Awaitable[None]]
log = logging.getLogger(__name__)

TIMER_OWNER: Final = "health-monitor"


class NodeWorkers:
    """Workers that report on nodes while the lease is held, as tasks of the watch's group.

    Heartbeat watch and level watch follow the whole fleet, and both change the records of single
    nodes.
    """

    def __init__(self, clock: Clock, lease: Lease) -> None:
        """Work while `lease` is held."""
        self._clock = clock
        self._lease = lease
        self._queues = [asyncio.Queue[tuple[str, NodeJob]](WAITING_MAX) for _ in range(WORKERS)]
        self._later: dict[str, NodeJob] = {}

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start the workers."""
        for queue in self._queues:
            group.create_task(self._work(queue))
        group.create_task(self._retry())

    async def put(self, node: str, job: NodeJob) -> None:
        """Queue a job of a node, after those that wait already."""
        await self._queues[zlib.crc32(node.encode()) % WORKERS].put((node, job))

    async def _work(self, queue: "asyncio.Queue[tuple[str, NodeJob]]") -> None:
        while True:
            node, job = await queue.get()
            while self._lease.held:
                try:
                    await job()
                except UnreadableRecord as error:
                    log.error("%s", error)  # noqa: TRY400 - the text is the whole story
                    self._put_off(node, job)
                except (BusError, Retry) as error:
                    log.info("not reported yet", extra={"key": node, "reason": str(error)})
                    await self._clock.sleep(RETRY_SECONDS)
                    continue
                except Exception:
                    log.exception("%s cannot be reported on; other nodes are", node)
                    self._put_off(node, job)
                break

    def _put_off(self, node: str, job: NodeJob) -> None:
        """Try a node's newest job again later, while the others of its worker go on."""
        if node in self._later or len(self._later) < LATER_MAX:
            self._later[node] = job

    async def _retry(self) -> None:
        while True:
            await self._clock.sleep(LATER_SECONDS)
            later, self._later = self._later, {}
            for node, job in later.items():
                await self.put(node, job)


class HealthInstruments:
    """Holds the metrics of the health-monitor."""

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

    async def report(self, fault: Fault) -> None:
        """Publish the fault of a drill."""
        await publish_event(self._bus, fault)
        log.info("drill", extra=_about(fault, fault.message))

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
