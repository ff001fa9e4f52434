"""A node that beats is not replaced, whatever was published about it."""

import asyncio
from dataclasses import replace

from schemas.node_events import Lost
from services.runtime.event_publisher import publish_event
from services.simulator.engine import virtual_time
from services.simulator.engine.fault_kinds import BROKER, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, FleetShape
from services.simulator.inputs.fuzz.fuzz_simulation import POOL, FuzzSimulation
from tests.support.fleet_shapes import SMALL

DEAD_SECONDS = 3_600.0


def begun(simulation: FuzzSimulation) -> list[str]:
    """The kinds of the sagas that are open."""
    return sorted(each.kind for each in simulation.fleet.invariants.sagas.open.values())


async def started(shape: FleetShape) -> tuple[FuzzSimulation, str]:
    """Return a simulation whose fleet is in service, and the name of one of its nodes."""
    simulation = FuzzSimulation("silence", Campaign(shape, (), 0.0))
    await simulation.fleet.open()
    await simulation.fleet.start()
    await asyncio.sleep(60)
    return simulation, simulation.fleet.machines.serving()[0].name


def test_a_node_published_to_be_lost_that_beats_is_not_replaced():
    """The health-monitor published a loss, and its return never comes."""

    async def play() -> tuple[list[str], int]:
        simulation, node = await started(SMALL)
        fleet = simulation.fleet
        fleet.faults.inject(
            InjectedFault(kind="crash", target="health-monitor", seconds=DEAD_SECONDS)
        )
        now = fleet.simulation.clock.now()
        lost = Lost(id="lost-1", time=now, pool=POOL, node=node, instance=node)
        await publish_event(fleet.operator.bus, lost)
        await asyncio.sleep(300)
        found = begun(simulation), fleet.cloud.made
        assert fleet.invariants.violation is None
        fleet.simulation.server.close()
        return found

    assert virtual_time.run(play) == ([], SMALL.nodes)


def test_a_node_that_beats_again_is_not_terminated():
    """A node beats again while its work is drained, and nothing publishes that it returned."""

    async def play() -> tuple[list[str], bool]:
        simulation, node = await started(replace(SMALL, nodes=2))
        fleet = simulation.fleet
        fleet.faults.inject(InjectedFault(kind="endless_drain", target="workload"))
        fleet.faults.inject(InjectedFault(kind="hang", target=node, seconds=55))
        await asyncio.sleep(45)
        assert begun(simulation) == ["replace"]
        fleet.faults.inject(
            InjectedFault(kind="crash", target="health-monitor", seconds=DEAD_SECONDS)
        )
        await asyncio.sleep(120)
        found = begun(simulation), fleet.machines.machine_of(node) is not None
        fleet.simulation.server.close()
        return found

    assert virtual_time.run(play) == ([], True)


def test_a_replacement_that_had_to_wait_looks_again_before_its_first_step() -> None:
    """The decision fell while the node was silent; the saga may begin long after it beats again."""

    async def play() -> tuple[list[str], list[str], int]:
        simulation, node = await started(SMALL)
        fleet = simulation.fleet
        ordered: list[str] = []
        fleet.workload.on_order = lambda verb, order: ordered.append(f"{verb} {order.node.node}")
        fleet.faults.inject(InjectedFault(kind="hang", target=node, seconds=75))
        await asyncio.sleep(20)
        # No saga begins meanwhile, and no replica is the one that publishes what returned.
        fleet.faults.inject(
            InjectedFault(kind="refused_writes", target=BROKER, stream="KV_LEASES", seconds=300)
        )
        await asyncio.sleep(400)
        assert fleet.invariants.violation is None
        found = ordered, begun(simulation), fleet.cloud.made
        fleet.simulation.server.close()
        return found

    assert virtual_time.run(play) == ([], [], SMALL.nodes)


def test_a_replacement_that_had_to_wait_is_not_begun_in_a_wave_that_was_noticed_since() -> None:
    """The first of many false reports is decided on before the others make a wave of it."""

    async def play() -> tuple[list[str], int]:
        simulation, node = await started(replace(SMALL, nodes=6))
        fleet = simulation.fleet
        fleet.faults.inject(
            InjectedFault(kind="refused_writes", target=BROKER, stream="SAGAS", seconds=50)
        )
        fleet.faults.inject(InjectedFault(kind="false_report", target=node, xid_code=95))
        await asyncio.sleep(1)
        assert ["replace"] == [each.kind for each in fleet.records.pool(POOL).open.values()]
        fleet.faults.inject(InjectedFault(kind="false_report", target="all", xid_code=95))
        await asyncio.sleep(55)
        assert fleet.invariants.violation is None
        found = [each for each in begun(simulation) if each != "quarantine"], fleet.cloud.made
        fleet.simulation.server.close()
        return found

    assert virtual_time.run(play) == ([], 6)


def test_a_node_whose_credentials_expired_is_not_replaced_for_that() -> None:
    """The provisioner is away for long; only after it is back, and the node is not, it is."""

    async def play() -> tuple[list[str], int, int]:
        simulation, node = await started(SMALL)
        fleet = simulation.fleet
        fleet.faults.inject(InjectedFault(kind="credentials_expired", target=node))
        fleet.faults.inject(InjectedFault(kind="crash", target="provisioner", seconds=300))
        # Three times `lost_after` is 90 s; an agent's attempts are three minutes apart at most.
        await asyncio.sleep(300 + 180)
        before = begun(simulation), fleet.cloud.made
        await asyncio.sleep(300)
        assert fleet.invariants.violation is None
        fleet.simulation.server.close()
        return *before, fleet.cloud.made

    assert virtual_time.run(play) == ([], SMALL.nodes, SMALL.nodes + 1)
