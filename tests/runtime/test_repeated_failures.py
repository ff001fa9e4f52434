"""A failure that lasts is published again; one whose process died ends for lack of that."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from schemas.fleet_events import ServiceFailure, fleet_codec
from schemas.fleet_queries import CurrentFailure
from schemas.subjects import FLEET_EVENTS
from schemas.topology import EVENTS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.primitives.errors import Unavailable
from services.runtime.failure_register import AGAIN_SECONDS, FailureRegister
from services.simulator.engine import virtual_time
from services.simulator.engine.virtual_time import VirtualClock
from tests.notifier.alert_desk import RecordingChannel, alert_desk

FAILURE = CurrentFailure(
    failure="decision-failed", about="pool training", reason="a defect", remedy="report it"
)
ROUNDS = 15
FAILING = ServiceFailure(
    id="failure-r1-0",
    time=datetime(2030, 1, 1, tzinfo=UTC),
    status="failing",
    service="pool-manager",
    failure="decision-failed",
    about="pool training",
    reason="a defect",
    remedy="report it",
)


def test_what_lasts_is_published_again_under_its_id() -> None:
    """Each eleven minutes until its end: the server would not store it sooner."""

    async def run() -> None:
        clock = VirtualClock()
        server = MemoryServer(clock)
        bus = MemoryBus(server, PerfectLink())
        await set_up(bus, clock, replicas=1)
        register = FailureRegister(CollectorRegistry())
        publishing = asyncio.ensure_future(register.publish_for_ever(bus, clock, "s", "r1"))
        register.report(FAILURE)
        await asyncio.sleep(3.5 * AGAIN_SECONDS)
        register.end(FAILURE.failure, FAILURE.about)
        await asyncio.sleep(3 * AGAIN_SECONDS)
        publishing.cancel()
        stored = await bus.read(EVENTS.name, FLEET_EVENTS)
        server.close()
        ids = [each.headers["Nats-Msg-Id"] for each in stored]
        assert ids == ["failure-r1-0"] * 4 + ["failure-r1-1"]
        assert stored[0].data == stored[3].data

    virtual_time.run(run)


class LostAnswer(MemoryBus):
    """Stores what is published first, and loses the answer."""

    lost = False

    async def publish(self, *args: Any, **named: Any) -> int:
        """Publish the message, and raise an error for a lost answer the first time."""
        sequence = await super().publish(*args, **named)
        if not self.lost:
            self.lost = True
            raise Unavailable("no answer")
        return sequence


def test_an_end_follows_a_beginning_that_may_be_stored() -> None:
    """A failure that was over before its publication was tried again would stay an open alert."""

    async def run() -> None:
        clock = VirtualClock()
        server = MemoryServer(clock)
        bus = LostAnswer(server, PerfectLink())
        await set_up(bus, clock, replicas=1)
        register = FailureRegister(CollectorRegistry())
        publishing = asyncio.ensure_future(register.publish_for_ever(bus, clock, "s", "r1"))
        register.report(FAILURE)
        await asyncio.sleep(1)
        register.end(FAILURE.failure, FAILURE.about)
        await register.flushed()
        publishing.cancel()
        stored = await bus.read(EVENTS.name, FLEET_EVENTS)
        server.close()
        found = [fleet_codec.decode(each.data) for each in stored]
        assert [(each.id, each.status) for each in found if isinstance(each, ServiceFailure)] == [
            ("failure-r1-0", "failing"),
            ("failure-r1-1", "recovered"),
        ]

    virtual_time.run(run)


@pytest.mark.parametrize("lives", [True, False])
def test_operators_have_one_alert_and_one_end(*, lives: bool) -> None:
    """Repetitions raise no second alert; that of a process that died ends after a while."""
    channel = RecordingChannel()

    async def run() -> None:
        async with alert_desk(channel) as desk:
            failing = msgspec.structs.replace(FAILING, time=desk.clock.now())
            await desk.occur(failing)
            await asyncio.sleep(1)
            for _ in range(ROUNDS):
                await asyncio.sleep(AGAIN_SECONDS)
                if lives:
                    await desk.occur(failing)
            await asyncio.sleep(60)

    virtual_time.run(run)
    key = "decision-failed/pool training"
    assert channel.sent == [(key, False)] + [(key, True)] * (not lives)
