"""EVENTS copies INTAKE again soon after a server that led both was lost."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from schemas.topology import EVENTS, INTAKE
from services.bus.leases import Lease
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.health_monitor.fact_intake import FactIntake
from services.primitives.clock import SystemClock
from services.primitives.errors import BusError
from tests.support.cluster import Cluster, connected
from tests.support.settling import LOOK_SECONDS, arriving

pytestmark = pytest.mark.slow
ARRIVED_SECONDS_MAX = 20.0
"""Of it up to nine for the election; without a new beginning the server takes 40 and more."""
FAULT = "navarch.v1.node.p.n.event.fault"


async def test_a_copy_that_the_server_gave_up_begins_again(tmp_path: Path) -> None:
    """The leader of EVENTS has asked for it while INTAKE had none."""
    async with Cluster(tmp_path / "cluster") as three, connected(three.url) as bus:
        clock = SystemClock()
        await set_up(bus, clock, replicas=3)
        await three.led(bus)
        lease = Lease(bus, clock, "health-monitor.heartbeats", "test")
        tasks = [asyncio.create_task(lease.keep())]
        await lease.acquired()
        tasks.append(asyncio.create_task(FactIntake(bus, clock, lease).run()))
        await bus.publish(FAULT, b"1")
        await arriving(bus)
        lost = await three.leader(bus, EVENTS.name)
        while (await three.leader(bus, INTAKE.name)) is not lost:
            preferred = {"placement": {"preferred": lost.name}}
            with suppress(BusError):
                await bus.admin(f"STREAM.LEADER.STEPDOWN.{INTAKE.name}", preferred)
            await asyncio.sleep(LOOK_SECONDS)
        await lost.kill()
        async with asyncio.timeout(ARRIVED_SECONDS_MAX):
            while not await copied(bus, b"2"):
                await asyncio.sleep(LOOK_SECONDS)
        assert [each.data for each in await bus.read(EVENTS.name, FAULT)] == [b"1", b"2"]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def copied(bus: NatsBus, data: bytes) -> bool:
    """Publish as an agent does, until the server has stored it; return whether EVENTS has it."""
    with suppress(BusError):
        await bus.publish(FAULT, data, msg_id=data.decode())
        last = await bus.last(EVENTS.name, FAULT)
        return last is not None and last.data == data
    return False
