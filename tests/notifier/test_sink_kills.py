"""A sink's replica is killed between any two calls, or stalls: nothing is lost, order is kept."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas.event_sink_settings import EventSinkSpec
from schemas.settings import Settings
from schemas.topology import sink_durable
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up, set_up_from_now
from services.notifier.cloud_events import CloudEvent
from services.notifier.event_sinks.event_filter import filters_of
from services.notifier.event_sinks.sink_delivery import EventSink
from services.simulator.engine.virtual_time import VirtualClock, run
from tests.crash.replica_process import Replica
from tests.notifier.sink_site import SinkReplica, event_receiver, publish, verdict

NODES = ("n1", "n2", "n3")
EVENTS_SENT = 12
SPEC = EventSinkSpec(type="subject")
NEVER = 10**9


class MortalLink(PerfectLink):
    """The connection of a process that is killed at its n-th call, or stalls there for a while."""

    def __init__(self, calls: int, stalls_seconds: float = 0.0) -> None:
        self.left = calls
        self.stalls_seconds = stalls_seconds
        self.died: Callable[[], None] = lambda: None
        self.at_end = 0
        self._dead = False

    @property
    def up(self) -> bool:
        return not self._dead

    async def step(self) -> None:
        """Make one of the link's calls, before or after its effect."""
        self._count()
        if self._dead:
            await asyncio.Event().wait()
        if self.left == -1 and self.stalls_seconds:
            await asyncio.sleep(self.stalls_seconds)

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0 and not self.stalls_seconds and not self._dead:
            self._dead = True
            self.died()

    async def there(self, call: str, about: str) -> None:
        await self.step()
        await super().there(call, about)

    async def back(self, call: str, about: str) -> None:
        await self.step()
        await super().back(call, about)

    def settles(self, word: str, about: str) -> bool:
        self._count()
        return not self._dead and super().settles(word, about)


@dataclass(slots=True)
class RecordingTarget:
    """Keeps what it is sent, if its process lives that long."""

    link: MortalLink | None
    taken: list[str]
    events_max: int
    bytes_max: int = 1_000_000

    async def send(self, events: Sequence[CloudEvent]) -> None:
        if self.link is not None:
            await self.link.step()
        await asyncio.sleep(0.3)
        self.taken += [each.id for each in events]
        if self.link is not None:
            await self.link.step()

    async def close(self) -> None:
        pass


async def deliver_through(link: MortalLink, events_max: int) -> list[str]:
    """Two replicas, the first over this link; what the receiver was sent, once all is settled."""
    clock = VirtualClock()
    server = MemoryServer(clock)
    bus, mortal = MemoryBus(server, PerfectLink()), MemoryBus(server, link)
    link.died = mortal.disconnected
    await set_up(bus, clock, replicas=1)
    taken: list[str] = []
    durable = sink_durable("audit", filters_of(SPEC))
    await set_up_from_now(bus, durable, 1)
    replicas = []
    for name, each, way in (("r1", mortal, link), ("r2", bus, None)):
        target = RecordingTarget(way, taken, events_max)
        sink = EventSink(name="audit", spec=SPEC, durable=durable, target=target)
        replica = SinkReplica(each, clock, Settings(fleet="tests"), name, lease_clock=clock)
        replica.start([sink])
        replicas.append(replica)
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    for number in range(EVENTS_SENT):
        await publish(bus, verdict(number, node=NODES[number % 3]))
        await asyncio.sleep(0.7 if number % 4 == 3 else 0.0)
    async with asyncio.timeout(300):
        while await waiting(bus):
            await asyncio.sleep(0.5)
    link.at_end = NEVER - link.left
    for replica in replicas:
        await replica.stop()
    server.close()
    return taken


async def waiting(bus: MemoryBus) -> int:
    """Return how many events wait for the sink."""
    info = await bus.admin("CONSUMER.INFO.EVENTS.sink-audit", {})
    return int(info["num_pending"]) + int(info["num_ack_pending"])


def calls_of(events_max: int) -> int:
    """Return how many calls a process makes until everything is delivered."""
    counting = MortalLink(NEVER)
    assert_whole_and_in_order(run(lambda: deliver_through(counting, events_max)), EVENTS_SENT, 0)
    return counting.at_end


def assert_whole_and_in_order(taken: Sequence[str], sent: int, repeated_max: int) -> None:
    """Each event was taken; of each node in order, as far as repetitions are left out."""
    first = list(dict.fromkeys(taken))
    assert len(first) == sent
    assert len(taken) - sent <= repeated_max
    for node in NODES:
        of_node = [int(each.rsplit("-", 1)[1]) for each in first if f"-{node}-" in each]
        assert of_node == sorted(of_node)


@pytest.mark.parametrize("events_max", [1, 3])
def test_killed_at_any_call_each_event_is_delivered_in_order(events_max: int) -> None:
    """Each call in turn is the last, before and after its effect; at most one is repeated."""
    calls = calls_of(events_max)
    assert calls > 50
    for each in range(calls):
        link = MortalLink(each)
        taken = run(lambda link=link: deliver_through(link, events_max))
        assert not link.up
        assert_whole_and_in_order(taken, EVENTS_SENT, repeated_max=events_max)


@pytest.mark.parametrize("events_max", [1, 3])
def test_stalled_for_half_a_minute_at_any_call_nothing_is_lost(events_max: int) -> None:
    """Another replica goes on; what the stalled one had begun may come once more."""
    for each in range(0, calls_of(events_max), 2):
        link = MortalLink(each, stalls_seconds=30.0)
        taken = run(lambda link=link: deliver_through(link, events_max))
        assert_whole_and_in_order(taken, EVENTS_SENT, repeated_max=2 * events_max)


CONFIG = """
nats: {{url: "{bus}"}}
event_sinks:
  audit: {{type: http, url: "{url}", events: [verdict], mode: {mode}}}
"""


@asynccontextmanager
async def processes(directory: Path, config: str) -> AsyncIterator[list[Replica]]:
    """Two notifiers, as real processes."""
    file = directory / "navarch.yaml"
    file.write_text(config)
    environment = {
        **os.environ,
        "NAVARCH_CONFIG": str(file),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ends: list[str] = []
    found = [Replica("notifier", number, environment, directory, ends.append) for number in (1, 2)]
    try:
        for each in found:
            await each.start()
        for each in found:
            await each.is_ready()
        yield found
        assert ends == []
    finally:
        for each in found:
            each.thaw()
            each.kill()
            await each.gone()


@pytest.mark.parametrize("mode", ["structured", "batch"])
async def test_real_processes_that_are_killed_and_frozen_lose_nothing(
    tmp_path: Path, server: EmbeddedServer, bus: NatsBus, mode: str
) -> None:
    """Events are published all the time, while one replica after another is struck."""
    chance = random.Random(mode)
    sent = 0
    async with event_receiver() as receiver:
        config = CONFIG.format(bus=server.url, url=receiver.url, mode=mode)
        async with processes(tmp_path, config) as replicas:
            for round_ in range(6):
                struck = replicas[round_ % 2]
                for _ in range(15):
                    await publish(bus, verdict(sent, node=NODES[sent % 3]))
                    sent += 1
                    await asyncio.sleep(chance.random() * 0.05)
                if round_ % 3 == 2:
                    struck.freeze()
                    await asyncio.sleep(4.0)
                    struck.thaw()
                else:
                    struck.kill()
                    await struck.gone()
                    await struck.start()
            expected = {f"verdict-{NODES[each % 3]}-{each}" for each in range(sent)}
            await receiver.until(lambda: expected <= set(receiver.ids))
    taken = [each for each in receiver.ids if each in expected]
    assert_whole_and_in_order(taken, sent, repeated_max=6 * 100)
