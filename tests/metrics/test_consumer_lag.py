"""Consumers that do not keep up: when it is reported, decided and on a real server."""

import asyncio
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.duration import Duration
from schemas.fleet_events import FACTS, ConsumerLag, fleet_codec
from schemas.lag_settings import LagSettings
from schemas.messages import encode
from schemas.node_events import Fault
from schemas.topology import DURABLES, EVENTS, HEALTH_EVENTS
from services.bus.leases import Lease
from services.bus.nats.nats_bus import NatsBus
from services.metrics.fleet.consumer_lag import ConsumerBacklog, update_lagging
from services.metrics.fleet.consumer_watch import ConsumerWatch
from services.primitives.clock import SystemClock
from tests.support.settling import arriving

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BOUNDS = LagSettings(messages=100, age=Duration(60))


def state(messages: int, seconds: float) -> ConsumerBacklog:
    """Return the state of one durable."""
    return ConsumerBacklog(stream="S", durable="d", messages=messages, seconds=seconds, sequence=7)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([(100, 60)], []),
        ([(101, 0)], ["lagging"]),
        ([(1, 61)], ["lagging"]),
        ([(101, 0), (900, 90), (100, 60), (51, 0)], ["lagging"]),
        ([(101, 0), (50, 31)], ["lagging"]),
        ([(101, 0), (50, 30)], ["lagging", "caught-up"]),
        ([(101, 0), (0, 0), (101, 0)], ["lagging", "caught-up", "lagging"]),
    ],
)
def test_lag_is_reported_at_its_start_and_at_its_end(
    states: list[tuple[int, float]], expected: list[str]
) -> None:
    """A lag beyond either bound is reported once; it ends below half of both."""
    lagging: frozenset[str] = frozenset()
    reported: list[str] = []
    for messages, seconds in states:
        lagging, events = update_lagging(lagging, [state(messages, seconds)], BOUNDS, NOW)
        reported += [each.status for each in events]
    assert expected == reported


def fresh_watch(bus: NatsBus, messages: int) -> tuple[ConsumerWatch, CollectorRegistry]:
    """The watch of a replica that has just started."""
    registry, clock = CollectorRegistry(), SystemClock()
    bounds = LagSettings(messages=messages, age=Duration(3600))
    return ConsumerWatch(bus, clock, Lease(bus, clock, "l", "me"), bounds, registry), registry


async def published(bus: NatsBus) -> list[tuple[str, str, int]]:
    """Return status, durable and messages of every published event about lag."""
    stored = await bus.read(EVENTS.name, subjects.fleet_event(FACTS[ConsumerLag]))
    events = [fleet_codec.decode(each.data) for each in stored]
    return [(e.status, e.durable, e.messages) for e in events if isinstance(e, ConsumerLag)]


async def test_undelivered_messages_are_reported_once(bus: NatsBus) -> None:
    """Five faults and no health-monitor: the gauges show it; a second replica publishes nothing.

    Once they are delivered it has caught up. Events outside a durable's filters do not count.
    """
    first, registry = fresh_watch(bus, 4)
    before = datetime.now(UTC)
    for number in range(5):
        fault = Fault(id=f"f{number}", time=NOW, pool="p", node="n", kind="xid", code=79)
        await bus.publish(subjects.node_event("p", "n", "fault"), encode(fault), msg_id=fault.id)
    await arriving(bus)
    await first.check()
    second, _ = fresh_watch(bus, 4)
    await second.check()

    def shows(name: str, durable: str) -> float:
        labels = {"stream": EVENTS.name, "durable": durable}
        found = registry.get_sample_value(name, labels)
        assert found is not None
        return found

    assert 5 == shows("navarch_consumer_pending", "health-events")
    assert 0 == shows("navarch_consumer_pending", "pool-node-events")
    assert 0 == shows("navarch_consumer_oldest_seconds", "pool-node-events")
    age = shows("navarch_consumer_oldest_seconds", "health-events")
    assert 0 < age <= (datetime.now(UTC) - before).total_seconds() + 1
    lagging = [each for each in await published(bus) if each[1] == "health-events"]
    assert [("lagging", "health-events", 5)] == lagging

    taken = 0
    async with asyncio.timeout(60):
        async for delivery in bus.consume(HEALTH_EVENTS):
            await delivery.ack()
            taken += 1
            if taken == 5:
                break
    await second.check()
    assert ("caught-up", "health-events", 0) in await published(bus)


async def test_every_durable_has_its_gauges(bus: NatsBus) -> None:
    """Durables without waiting messages have gauges too: a query finds them before they lag."""
    watch, registry = fresh_watch(bus, 4)
    await watch.check()
    for each in DURABLES:
        labels = {"stream": each.stream, "durable": each.name}
        assert 0 == registry.get_sample_value("navarch_consumer_pending", labels)
        assert 0 == registry.get_sample_value("navarch_consumer_in_work", labels)
