"""An alert about a store that takes no writes ends, also if the notifier that began it is gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from schemas.settings import AlertRoute
from schemas.topology import ALERTS, LEASES
from services.bus.leases import Lease
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.notifier.alerts.alert_sender import AlertSender, RoutedChannel
from services.notifier.alerts.open_alerts import OpenAlerts
from services.notifier.alerts.store_alerts import LEFT_SECONDS, LOOK_SECONDS, StoreAlerts
from services.runtime.failure_register import FailureRegister, unwritable
from services.simulator.engine import virtual_time
from services.simulator.engine.virtual_time import VirtualClock
from tests.notifier.alert_desk import RecordingChannel

SOON_SECONDS = 3 * LOOK_SECONDS
STREAMS = ("KV_POOLS", f"KV_{ALERTS.name}", f"KV_{LEASES.name}")


@dataclass
class Notifier:
    """Runs what of a notifier sends alerts; each start is another process."""

    server: MemoryServer
    channel: RecordingChannel
    clock: VirtualClock
    failures: FailureRegister = field(default_factory=lambda: FailureRegister(CollectorRegistry()))
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    starts: int = 0

    @property
    def bus(self) -> MemoryBus:
        """Return a new connection to the server."""
        return MemoryBus(self.server, PerfectLink())

    def start(self) -> None:
        """Start a process that knows of no failure."""
        self.starts += 1
        self.failures = FailureRegister(CollectorRegistry())
        channels = [RoutedChannel(route=AlertRoute(name="recording"), channel=self.channel)]
        lease = Lease(self.bus, self.clock, "notifier.leader", f"r{self.starts}")
        works = (
            StoreAlerts(channels, self.bus, self.clock, self.failures).run,
            AlertSender(channels, self.bus, self.clock, lease, self.failures).run,
        )
        self.tasks = [asyncio.ensure_future(each()) for each in works]

    async def kill(self) -> None:
        """End the process where it is."""
        for each in self.tasks:
            each.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def fail(self, stream: str) -> None:
        """Have the server refuse what is written to a stream, and this process know it."""
        self.server.refusing[stream] = 1
        self.failures.update("store", [unwritable((stream, "no answer in 5 s"))])

    def recover(self, stream: str) -> None:
        """Have it take writes."""
        del self.server.refusing[stream]
        self.failures.update("store", [])


@asynccontextmanager
async def notifying(*, repeat_seconds: float = 0.0) -> AsyncIterator[Notifier]:
    """A notifier that runs."""
    clock = VirtualClock()
    server = MemoryServer(clock)
    found = Notifier(server, RecordingChannel(repeat_seconds=repeat_seconds), clock)
    await set_up(found.bus, clock, replicas=1)
    found.start()
    await asyncio.sleep(LOOK_SECONDS)
    yield found
    await found.kill()
    server.close()


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("killed", ["", "while it fails", "before its end"])
def test_an_alert_has_one_beginning_and_one_end(stream: str, killed: str) -> None:
    """No record is left, whichever stream fails.

    This holds whether or not the notifier lives to see the end.
    """

    async def run() -> None:
        async with notifying() as notifier:
            notifier.fail(stream)
            await asyncio.sleep(SOON_SECONDS)
            if killed:
                await notifier.kill()
            if killed == "while it fails":
                notifier.start()
                await asyncio.sleep(SOON_SECONDS)
                notifier.fail(stream)
                await asyncio.sleep(SOON_SECONDS)
            notifier.recover(stream)
            if killed == "before its end":
                notifier.start()
            await asyncio.sleep(LEFT_SECONDS + SOON_SECONDS)
            found = [(each.resolved, each.title) for each in notifier.channel.alerts]
            began, ended = f"stream {stream}: not writable", f"stream {stream}: writable again"
            # An alert that ALERTS and LEASES cannot take may be sent twice, under one key.
            assert found[-1] == (True, ended)
            assert {*found[:-1]} == {(False, began)}
            assert len(found) <= (3 if killed == "while it fails" else 2)
            assert len({each.key for each in notifier.channel.alerts}) == 1
            assert await OpenAlerts(notifier.bus).all() == []
            assert await notifier.bus.entries(LEASES, "notifier.alert.*") == []

    virtual_time.run(run)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_channel_that_forgets_is_sent_it_again(stream: str) -> None:
    """An Alertmanager ends an alert that is not repeated."""

    async def run() -> None:
        async with notifying(repeat_seconds=60.0) as notifier:
            notifier.fail(stream)
            await asyncio.sleep(SOON_SECONDS + 3 * 60.0)
            assert 3 <= len(notifier.channel.alerts) <= 5
            notifier.recover(stream)
            await asyncio.sleep(SOON_SECONDS)
            assert notifier.channel.alerts[-1].resolved

    virtual_time.run(run)


def test_a_channel_that_is_down_gets_no_end_without_a_beginning() -> None:
    """An alert that is over when the channel returns concerns its readers no more."""

    async def run() -> None:
        async with notifying() as notifier:
            notifier.channel.down = True
            notifier.fail(f"KV_{ALERTS.name}")
            await asyncio.sleep(SOON_SECONDS)
            notifier.recover(f"KV_{ALERTS.name}")
            await asyncio.sleep(2 * LOOK_SECONDS)
            notifier.channel.down = False
            await asyncio.sleep(LEFT_SECONDS + SOON_SECONDS)
            assert notifier.channel.alerts == []
            assert await OpenAlerts(notifier.bus).all() == []

    virtual_time.run(run)
