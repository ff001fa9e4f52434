"""A notifier's alerts over a memory bus: events go in, channels keep what they are sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from schemas.alert_records import Alert, OpenAlertRecord
from schemas.event_subjects import Event, event_subject
from schemas.messages import encode
from schemas.settings import AlertRoute
from schemas.topology import EVENTS
from services.bus.leases import Lease
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.port import Bus
from services.bus.topology_setup import set_up
from services.notifier.alerts.alert_channel import AlertChannel, AlertDelivery, ChannelRefusalError
from services.notifier.alerts.alert_intake import AlertIntake
from services.notifier.alerts.alert_sender import AlertSender, RoutedChannel
from services.notifier.alerts.open_alerts import OpenAlerts
from services.primitives.clock import Clock
from services.primitives.errors import Retry
from services.runtime.consumer_loop import Received
from services.runtime.failure_register import FailureRegister
from services.simulator.engine.virtual_time import VirtualClock


class RecordingChannel:
    """An alert channel that keeps what it is sent."""

    name = "recording"
    repeat_seconds = 0.0

    def __init__(self, *, repeat_seconds: float = 0.0) -> None:
        self.repeat_seconds = repeat_seconds
        self.alerts: list[Alert] = []
        self.receipts: list[str] = []
        self.tries = 0
        self.down = False
        self.stalls = False
        self.refuses = ""

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        self.tries += 1
        if self.stalls:
            await asyncio.sleep(3600)
        if self.down:
            raise RuntimeError("502 Bad Gateway")
        if self.refuses:
            raise ChannelRefusalError(self.refuses)
        self.alerts.append(alert)
        self.receipts.append(receipt)
        return AlertDelivery(receipt or f"receipt-{len(self.alerts)}")

    async def close(self) -> None:
        pass

    @property
    def sent(self) -> list[tuple[str, bool]]:
        return [(each.key, each.resolved) for each in self.alerts]


@dataclass(slots=True)
class AlertDesk:
    """Holds one replica's intake and sender of alerts."""

    bus: Bus
    clock: Clock
    channels: list[RoutedChannel]
    intake: AlertIntake
    failures: FailureRegister
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def start(self, replica: str = "r1") -> None:
        """Contend for the lease and send."""
        lease = Lease(self.bus, self.clock, "notifier.leader", replica)
        sender = AlertSender(self.channels, self.bus, self.clock, lease, self.failures)
        self.tasks.append(asyncio.create_task(sender.run()))

    async def kill(self) -> None:
        """End the sender where it is."""
        for each in self.tasks:
            each.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()

    async def publish(self, *events: Event) -> list[Received[Any]]:
        """Store events, as their services do; the messages that the notifier receives."""
        found = []
        for event in events:
            subject = event_subject(event)
            sequence = await self.bus.publish(subject, encode(event), msg_id=event.id)
            (stored,) = await self.bus.read_batch(EVENTS.name, subject, after=sequence - 1, count=1)
            found.append(Received(event, stored))
        return found

    async def handle(self, *received: Received[Any]) -> None:
        """Handle messages until they are settled, as their redeliveries would."""
        for each in received:
            for deliveries in range(1, 4):
                again = Received(each.message, each.stored, deliveries=deliveries)
                try:
                    await self.intake.handle(again)
                    break
                except Retry:
                    continue
            else:
                raise AssertionError("held for ever")

    async def occur(self, *events: Event) -> None:
        """Publish events and handle them in order."""
        for event in events:
            await self.handle(*await self.publish(event))

    async def records(self) -> list[OpenAlertRecord]:
        """The open alerts."""
        return await OpenAlerts(self.bus).all()


@asynccontextmanager
async def alert_desk(*channels: AlertChannel | RoutedChannel) -> AsyncIterator[AlertDesk]:
    """A desk in virtual time; a channel without a route is sent everything."""
    clock = VirtualClock()
    server = MemoryServer(clock)
    bus = MemoryBus(server, PerfectLink())
    await set_up(bus, clock, replicas=1)
    routed = [
        each
        if isinstance(each, RoutedChannel)
        else RoutedChannel(route=AlertRoute(name=f"channel-{number}"), channel=each)
        for number, each in enumerate(channels)
    ]
    failures = FailureRegister(CollectorRegistry())
    desk = AlertDesk(bus, clock, routed, AlertIntake(bus), failures)
    desk.start()
    try:
        yield desk
    finally:
        await desk.kill()
        server.close()
