"""What must hold of jobs of several nodes, as far as Navarch decides on it and can know of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from services.simulator.engine import cloud_restarts, virtual_time
from services.simulator.engine.fault_kinds import InjectedFault
from services.simulator.engine.simulated_fleet import SimulatedFleet
from services.simulator.engine.simulated_gangs import SimulatedGangs
from tests.simulator.test_silence_is_confirmed import started
from tests.support.fleet_shapes import SMALL

SHAPE = replace(SMALL, nodes=6, gangs=True, reboots=True)
OBSERVED = replace(SMALL, adopted="observe", reboots=True)
AHEAD_SECONDS = 10.5  # between two looks of the workload system at its machines

Play = Callable[[SimulatedFleet, list[str]], Awaitable[None]]


def violation(play: Play) -> str:
    """What is found when this happens to a fleet and the nodes of a job that does not end."""

    async def run() -> str:
        simulation, _ = await started(SHAPE)
        fleet, workload = simulation.fleet, simulation.fleet.workload
        assert isinstance(workload, SimulatedGangs)
        job = next(each for each in workload.running() if each.size > 1)
        job.stays = job.refuses = True
        await play(fleet, list(job.nodes))
        fleet.simulation.server.close()
        return str(fleet.invariants.violation or "")

    return virtual_time.run(run)


def at_once(patch: pytest.MonkeyPatch) -> None:
    """The cloud's reboots end before the workload system misses the machine."""
    action = replace(cloud_restarts.ACTIONS["announced_reboot"], away_seconds=(0.0, 0.0))
    patch.setitem(cloud_restarts.ACTIONS, "announced_reboot", action)


async def announce(fleet: SimulatedFleet, node: str) -> None:
    """Have the cloud announce a reboot; return after it, while it is still listed."""
    fault = InjectedFault(kind="announced_reboot", target=node, seconds=AHEAD_SECONDS)
    fleet.faults.inject(fault)
    await asyncio.sleep(AHEAD_SECONDS + 0.1)


def reboot(fleet: SimulatedFleet, node: str) -> None:
    """Do what the provider does when Navarch has it reboot a machine."""
    machine = fleet.machines.machine_of(node)
    assert machine is not None
    assert fleet.cloud.on_rebooted is not None
    fleet.cloud.on_rebooted(machine.instance)


def test_the_cloud_may_reboot_a_machine_that_runs_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for no drain; the job stops all the same."""
    at_once(monkeypatch)

    async def play(fleet: SimulatedFleet, nodes: list[str]) -> None:
        await announce(fleet, nodes[0])
        machine, workload = fleet.machines.machine_of(nodes[0]), fleet.workload
        assert machine is not None
        assert machine.boots == 2
        assert isinstance(workload, SimulatedGangs)
        assert nodes[0] not in workload.on_node

    assert violation(play) == ""


def test_navarch_reboots_no_machine_that_runs_a_job() -> None:
    """Nothing has drained it."""

    async def play(fleet: SimulatedFleet, nodes: list[str]) -> None:
        reboot(fleet, nodes[0])

    assert "is reset, and runs job-" in violation(play)


def test_in_observe_mode_the_cloud_alone_reboots(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the cloud has announced a reboot excuses none of Navarch's."""
    at_once(monkeypatch)

    async def run() -> tuple[object, str]:
        simulation, node = await started(OBSERVED)
        fleet = simulation.fleet
        await announce(fleet, node)
        before = fleet.invariants.violation
        reboot(fleet, node)
        fleet.simulation.server.close()
        return before, str(fleet.invariants.violation)

    before, after = virtual_time.run(run)
    assert before is None
    assert "is reset in observe mode" in after
