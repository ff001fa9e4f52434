"""A region's link is cut for an hour, in virtual time."""

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest

from schemas import subjects
from schemas.node_events import Fault, Verdict, node_codec
from schemas.topology import EVENTS
from services.provisioner.provider_client.provider import Instance
from services.runtime.logs import silenced
from services.simulator.engine import virtual_time
from services.simulator.engine.fault_kinds import InjectedFault
from services.simulator.engine.hardware_failures import MachineSpec
from services.simulator.engine.simulated_fleet import SimulatedFleet
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.inputs.fuzz.campaign_steps import Campaign
from services.simulator.inputs.fuzz.fuzz_simulation import POOL, FuzzSimulation
from tests.simulator.test_silence_is_confirmed import begun
from tests.support.fleet_shapes import SMALL

pytestmark = pytest.mark.slow

HOUR = 3600.0
"""The pool replaces a silent node after 30 s, and holds an incident's nodes back for 60 s."""
NODES = 6
AWAY = 3
"""The nodes of the region: fewer than make a wave of the pool."""


def in_two_regions(fleet: SimulatedFleet) -> None:
    """Have every second machine made in `eu`, the others in `us`."""
    places = itertools.cycle(("eu", "us"))
    of: dict[str, str] = {}

    def spec_of(instance: Instance) -> MachineSpec:
        if instance.name not in of:
            of[instance.name] = next(places)
        return MachineSpec(region=of[instance.name])

    fleet.machines.spec_of = spec_of


def connect(fleet: SimulatedFleet, machines: Iterable[SimulatedMachine], *, cut: bool) -> None:
    """Cut the machines' connections, or restore them."""
    for each in machines:
        if cut:
            fleet.simulation.network.cut[each.process.name] = 1
        else:
            fleet.simulation.network.forget(each.process.name)
        each.process.update_connection()


async def with_a_region_cut_off() -> tuple[FuzzSimulation, list[SimulatedMachine]]:
    """A fleet in service whose nodes in `eu` are cut off now, and these."""
    shape = replace(SMALL, nodes=NODES, max_unavailable=NODES)
    simulation = FuzzSimulation("region", Campaign(shape, (), 0.0))
    fleet = simulation.fleet
    in_two_regions(fleet)
    await fleet.open()
    await fleet.start()
    await asyncio.sleep(120)
    away = [each for each in fleet.machines.serving() if each.instance.region == "eu"]
    assert len(away) == AWAY
    connect(fleet, away, cut=True)
    return simulation, away


def test_nothing_is_replaced_for_silence_and_every_fault_is_judged_once() -> None:
    """Two of the nodes break meanwhile; afterwards they are replaced, each once, and no others."""

    async def play() -> None:
        simulation, away = await with_a_region_cut_off()
        fleet = simulation.fleet
        await asyncio.sleep(HOUR / 2)
        broken = sorted(each.name for each in away[:2])
        for name in broken:
            fleet.faults.inject(InjectedFault(kind="xid_error", target=name, xid_code=79))
        await asyncio.sleep(HOUR / 2)
        assert begun(simulation) == []
        assert fleet.cloud.made == NODES

        connect(fleet, away, cut=False)
        await asyncio.sleep(600)
        assert fleet.invariants.violation is None
        stored = await fleet.operator.bus.read(EVENTS.name, subjects.NODE_EVENTS)
        events = [node_codec.decode(each.data) for each in stored]
        faults = [each.node for each in events if isinstance(each, Fault)]
        judged = [
            each.node for each in events if isinstance(each, Verdict) and each.status == "unhealthy"
        ]
        assert sorted(faults) == broken
        assert sorted(judged) == broken
        assert fleet.cloud.made == NODES + len(broken)
        fleet.simulation.server.close()

    with silenced():
        virtual_time.run(play)


def test_a_region_that_will_not_return_is_replaced_when_an_operator_closes_the_breaker() -> None:
    """Closing the breaker replaces the nodes of that region, and no others."""

    async def play() -> None:
        simulation, away = await with_a_region_cut_off()
        fleet = simulation.fleet
        await asyncio.sleep(HOUR / 6)
        assert fleet.cloud.made == NODES
        fleet.request(POOL, "breaker-close", {"reason": "eu will not return"})
        await asyncio.sleep(HOUR / 6)
        assert fleet.invariants.violation is None
        assert fleet.cloud.made == NODES + AWAY
        assert not {each.name for each in away} & {each.name for each in fleet.machines.serving()}
        fleet.simulation.server.close()

    with silenced():
        virtual_time.run(play)
