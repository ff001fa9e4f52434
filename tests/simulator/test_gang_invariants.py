"""Jobs of several nodes keep their invariants, as far as Navarch decides on and knows of them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from services.pool_manager.planner.remediation import gangs
from services.simulator.engine import cloud_faults, simulated_gangs, virtual_time
from services.simulator.engine.fault_kinds import FaultKind, InjectedFault
from services.simulator.engine.gang_invariants import TOGETHER_SECONDS
from services.simulator.engine.simulated_fleet import SimulatedFleet
from services.simulator.engine.simulated_gangs import SimulatedGangs
from services.simulator.engine.simulated_workload import SLOW_SECONDS_MAX
from tests.simulator.test_silence_is_confirmed import started
from tests.support.fleet_shapes import SMALL

SHAPE = replace(SMALL, nodes=6, gangs=True, reboots=True)
OBSERVED = replace(SMALL, adopted="observe", reboots=True)
AHEAD_SECONDS = 10.5  # between two looks of the workload system at its machines
FELL_OFF_THE_BUS = 79
LATER_SECONDS = 20.0
OUTAGES: tuple[FaultKind, ...] = ("network", "no_drain_status", "slow_orders")

Play = Callable[[SimulatedFleet, list[str]], Awaitable[None]]


def violation(play: Play) -> str:
    """Return the violation after `play` on a fleet and on the nodes of a job that does not end."""

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
    action = replace(cloud_faults.ACTIONS["announced_reboot"], away_seconds=(0.0, 0.0))
    patch.setitem(cloud_faults.ACTIONS, "announced_reboot", action)


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
    """A reboot by the cloud waits for no drain; the job stops all the same."""
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
    """A reboot that the cloud has announced excuses none of Navarch's."""
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


def found_in_outage(
    patch: pytest.MonkeyPatch, kind: FaultKind, seconds: float, *, later: float = 0.0
) -> tuple[str, float]:
    """Return the violation, and how long after an outage of the workload system it is found.

    The duration is in seconds, and lasts to the end of the run where nothing is found.
    Two nodes of a job fail when the outage begins, or so long before that the job is recorded.
    """
    patch.setattr(simulated_gangs, "STOPS_SHARE", 0.0)
    ended: list[float] = []

    async def play(fleet: SimulatedFleet, nodes: list[str]) -> None:
        outage = InjectedFault(kind=kind, target="workload", seconds=seconds)
        if not later:
            fleet.faults.inject(outage)
        for node in nodes[:2]:
            fault = InjectedFault(kind="xid_error", target=node, xid_code=FELL_OFF_THE_BUS)
            fleet.faults.inject(fault)
        if later:
            await asyncio.sleep(later)
            fleet.faults.inject(outage)
        over = fleet.simulation.now() + seconds
        until = over + SLOW_SECONDS_MAX + TOGETHER_SECONDS + LATER_SECONDS
        while fleet.simulation.now() < until and fleet.invariants.violation is None:
            await asyncio.sleep(1)
        ended.append(fleet.simulation.now() - over)

    return violation(play), ended[0]


@pytest.mark.parametrize("kind", OUTAGES)
def test_jobs_that_the_workload_system_does_not_report_are_unknown(
    monkeypatch: pytest.MonkeyPatch, kind: FaultKind
) -> None:
    """One of the job's nodes waits for the budget until the answer comes, and no longer."""
    assert found_in_outage(monkeypatch, kind, 2 * TOGETHER_SECONDS)[0] == ""


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("network", TOGETHER_SECONDS),
        ("no_drain_status", TOGETHER_SECONDS),
        ("slow_orders", 0.0),  # it names the job meanwhile
    ],
)
def test_once_it_answers_its_jobs_are_known(
    monkeypatch: pytest.MonkeyPatch, kind: FaultKind, least: float
) -> None:
    """Nodes of one job that are taken out one after the other are found."""
    monkeypatch.setattr(gangs, "shared_reason", lambda *_: "")
    found, after = found_in_outage(monkeypatch, kind, TOGETHER_SECONDS / 2)
    assert "while another node of job-" in found
    assert least <= after <= SLOW_SECONDS_MAX + TOGETHER_SECONDS + LATER_SECONDS


def test_an_outage_is_no_excuse_for_what_the_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job was known before it."""
    monkeypatch.setattr(gangs, "shared_reason", lambda *_: "")
    found, after = found_in_outage(
        monkeypatch, "no_drain_status", 2 * TOGETHER_SECONDS, later=TOGETHER_SECONDS / 2
    )
    assert "while another node of job-" in found
    assert after < 0
