"""Three nats-servers, two replicas of every service, clocks a minute apart: one effect each.

Of two coordinators one is refused at each entry; a participant that pauses for longer than the ack
wait loses its work to the other replica, and notices when it resumes.
"""

import asyncio
import os
import signal

import pytest

from schemas.topology import SAGAS
from tests.crash.fleet_actions import FLEET_ACTIONS
from tests.crash.rig import Moment, Rig, Shape
from tests.crash.rounds import check_outcome, replace_without_strike, sample
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
    """Check that the fleet is at rest, with nothing lost, doubled or leaked."""
    found, report = await rig.differences()
    assert not found, report


async def test_clocks_a_minute_apart_replace_a_node_once(rig: Rig) -> None:
    """A deadline means the same to both replicas, whichever acts."""
    check_outcome(await replace_without_strike(rig))


async def test_leader_of_the_saga_stream_is_killed_during_a_saga(rig: Rig) -> None:
    """The others elect a leader, and the saga continues."""
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


@pytest.mark.parametrize("service", sample(["pool-manager", "notifier", "provisioner"], 3))
async def test_paused_service_is_replaced_by_its_other_replica(rig: Rig, service: str) -> None:
    """The other replica continues the work after five seconds, and nothing is done twice."""
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
    """Every kind of saga, done, cancelled, unwound, stuck and retried, on three servers."""
    await play.perform(rig)  # type: ignore[attr-defined]
    await settled_well(rig)
