"""Three nats-servers, two of every service, their clocks a minute apart: one effect each.

Of two coordinators one is refused at each entry; who is paused for longer than his work is waited
for loses it to the other, and finds that out when he goes on.
"""

import asyncio
import os
import signal

import pytest

from schemas.topology import SAGAS
from tests.crash.fleet_actions import FLEET_ACTIONS
from tests.crash.rig import Moment, Rig, Shape
from tests.crash.rounds import hold, some, undisturbed
from tests.support.busyness import allowed
from tests.support.cluster import leader_of

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(servers=3, replicas=2, apart_seconds=60.0)
FITTING = [play for play in FLEET_ACTIONS if play.fits(SHAPE)]
LED_SECONDS_MAX = 6.0
"""From the election to the saga's next step: a bound for a busy machine, not the figure."""
PAUSE_SECONDS = 5.0
"""Longer than an acknowledgement wait and a lease."""


async def settled_well(rig: Rig) -> None:
    """At rest, with nothing lost, doubled or leaked."""
    found, report = await rig.differences()
    assert not found, report


async def test_clocks_apart_by_a_minute_replace_a_node_once(rig: Rig) -> None:
    """Whichever of the two acts: a deadline is not passed for one and far away for the other."""
    hold(await undisturbed(rig))


async def test_the_server_that_leads_the_sagas_is_killed_in_the_middle_of_one(rig: Rig) -> None:
    """The others elect a leader; from then on the saga goes on by itself."""
    rig.workload.holding = True
    draining = rig.arm(Moment("drain", "started"), lambda: None)
    breaking = asyncio.create_task(rig.break_a_node())
    async with asyncio.timeout(60):
        await draining.wait()
        await breaking
    name = await leader_of(rig.bus, SAGAS.name)
    server = next(each for each in rig.servers if each.name == name)
    os.kill(server.pid, signal.SIGKILL)
    rig.workload.holding = False
    await server.wait()
    await rig.led()
    led = asyncio.get_running_loop().time()
    await server.start()
    await settled_well(rig)
    resumed = next((at for at, *_ in rig.signs if at > led), led) - led
    assert resumed <= allowed(LED_SECONDS_MAX)


@pytest.mark.parametrize("service", some(["pool-manager", "notifier", "provisioner"], 3))
async def test_a_service_paused_in_the_middle_of_a_saga_is_replaced_by_its_replica(
    rig: Rig, service: str
) -> None:
    """Five seconds without it: its replica goes on with what it held, and it does nothing twice."""
    step = {"pool-manager": "cordon", "notifier": "drain", "provisioner": "provision"}[service]
    victim = rig.replica(service)
    await victim.is_ready()
    frozen = rig.arm(Moment(step, "started"), victim.freeze)
    await rig.break_a_node()
    async with asyncio.timeout(60):
        await frozen.wait()
    await asyncio.sleep(PAUSE_SECONDS)  # the pause itself
    victim.thaw()
    await settled_well(rig)


@pytest.mark.parametrize("play", FITTING, ids=[play.name for play in FITTING])
async def test_each_action_leaves_a_sound_fleet(rig: Rig, play: object) -> None:
    """Every saga there is, done, cancelled, unwound, stuck and retried, on three servers."""
    await play.perform(rig)  # type: ignore[attr-defined]
    await settled_well(rig)
