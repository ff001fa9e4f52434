"""A health-monitor on a real server, and helpers that publish to it and read from it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.messages import decoder, encode
from schemas.node_events import FACTS, Fault, NodeEvent, Registered, Verdict, node_codec
from schemas.node_records import HeartbeatRecord, node_key
from schemas.settings import Settings
from schemas.topology import EVENTS, HEALTH, HEARTBEATS
from services.bus.nats.nats_bus import NatsBus
from services.health_monitor.service import build
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process import Context
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from tests.support.settling import arriving, settled

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
SOON_SECONDS = 60.0

records = decoder(HealthRecord)


def make_fault(identity: str = "fault-1", *, node: str = "training-7", **fields: Any) -> Fault:
    """A fault in pool `training`; XID 79 on GPU 3 unless the fields say otherwise."""
    values = {"kind": "xid", "code": 79, "gpu_index": 3, "message": "a line", "time": NOW} | fields
    return Fault(id=identity, pool="training", node=node, **values)


@dataclass
class Monitor:
    """Runs one replica of the service."""

    context: Context
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Build the service and start its loops."""
        service = await build(self.context)
        loops = [
            ConsumerLoop(
                self.context.bus,
                consumer,
                self.context.clock,
                self.context.instruments,
                self.context.tracing,
            ).run
            for consumer in service.consumers
        ]
        self.tasks = [asyncio.ensure_future(each()) for each in (*service.tasks, *loops)]

    async def stop(self) -> None:
        """Cancel its tasks."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@dataclass
class World:
    """The bus as agents and readers use it."""

    bus: NatsBus

    async def publish(self, event: NodeEvent) -> int:
        """Publish an event as its source would."""
        subject = subjects.node_event(event.pool, event.node, FACTS[type(event)])
        sequence = await self.bus.publish(subject, encode(event), msg_id=event.id)
        await arriving(self.bus)
        return sequence

    async def register(self, node: str, boot: str = "boot-1") -> None:
        """Publish a node's registration."""
        await self.publish(
            Registered(
                id=f"registered-{node}-{boot}",
                time=NOW,
                pool="training",
                node=node,
                instance=node,
                boot_id=boot,
            )
        )

    async def beat(
        self, node: str, ttl_seconds: int, credentials_until: datetime | None = None
    ) -> None:
        """Write one heartbeat of a node."""
        beat = HeartbeatRecord(
            pool="training", node=node, time=NOW, credentials_until=credentials_until
        )
        await self.bus.put(
            HEARTBEATS, node_key("training", node), encode(beat), ttl_seconds=ttl_seconds
        )

    async def events(self, kind: type[NodeEvent] = Verdict, node: str = "*") -> list[Any]:
        """Return every stored node event of one type."""
        wanted = f"{subjects.ROOT}.node.training.{node}.event.{FACTS[kind]}"
        return [node_codec.decode(each.data) for each in await self.bus.read(EVENTS.name, wanted)]

    async def health(self, node: str) -> HealthRecord | None:
        """Return a node's health record."""
        entry = await self.bus.get(HEALTH, node_key("training", node))
        return records.decode(entry.value) if entry else None

    async def until(self, true: Callable[[], Awaitable[bool]], seconds: float = SOON_SECONDS):
        """Wait until the condition holds."""
        async with asyncio.timeout(seconds):
            while not await true():
                await asyncio.sleep(0.01)

    async def settled(self, durable: str = "health-events") -> None:
        """Wait until everything stored so far is processed."""
        await settled(self.bus, EVENTS.name, durable, SOON_SECONDS)


@pytest.fixture
def world(bus: NatsBus) -> World:
    """The bus as agents and readers use it."""
    return World(bus)


@pytest.fixture
async def start(bus: NatsBus) -> AsyncIterator[Callable[..., Awaitable[Monitor]]]:
    """A function that starts replicas; they are stopped after the test."""
    started: list[Monitor] = []

    async def start_replica(
        settings: Settings | None = None, settings_file: Path | None = None
    ) -> Monitor:
        context = Context(
            name="health-monitor",
            replica=f"replica-{len(started)}",
            bus=bus,
            clock=SystemClock(),
            settings=settings or Settings(),
            settings_file=settings_file,
            instruments=Instruments(),
            tracing=Tracing("health-monitor"),
        )
        monitor = Monitor(context)
        await monitor.start()
        started.append(monitor)
        return monitor

    yield start_replica
    for monitor in started:
        with suppress(asyncio.CancelledError):
            await monitor.stop()


@pytest.fixture
def fault() -> Callable[..., Fault]:
    """The function that makes faults."""
    return make_fault
