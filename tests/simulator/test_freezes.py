"""A process that is stopped between two awaits goes on as if no time had passed."""

import asyncio

import pytest

from schemas.topology import LEASES
from services.bus.topology_setup import set_up
from services.simulator.engine.simulation_context import (
    Freeze,
    SimulatedProcess,
    SimulationContext,
)
from services.simulator.engine.virtual_time import VirtualClock, run

FROZEN_SECONDS = 10.0
EXPIRES_SECONDS = 3.0


@pytest.mark.parametrize(("answered", "read"), [(True, b"mine"), (False, b"taken")])
def test_a_process_goes_on_with_what_it_was_answered_before_its_freeze(
    read: bytes, *, answered: bool
) -> None:
    """The lease expires unseen, another takes over, and it does what it was about to do."""

    async def work() -> None:
        simulation = SimulationContext("freezes")
        holder, other = (SimulatedProcess(simulation, name) for name in ("holder", "other"))
        seen: list[bytes | str] = []
        await other.spawn(set_up(other.bus, VirtualClock(), replicas=1))

        async def expire() -> None:
            await asyncio.sleep(EXPIRES_SECONDS)
            seen.append("expired")

        async def hold() -> None:
            await holder.bus.put(LEASES, "launch-n", b"mine")
            timer = holder.spawn(expire())
            entry = await holder.bus.get(LEASES, "launch-n")
            seen.append(entry.value if entry is not None else b"")
            await timer

        async def take_over() -> None:
            await asyncio.sleep(EXPIRES_SECONDS)
            await other.bus.put(LEASES, "launch-n", b"taken")

        holder.freezes_after = freeze = Freeze("launch-", 1 + answered, FROZEN_SECONDS, answered)
        began = simulation.now()
        await asyncio.gather(holder.spawn(hold()), other.spawn(take_over()))
        assert seen == [read, "expired"]
        assert freeze.over
        assert simulation.now() - began >= FROZEN_SECONDS

    run(work)


def test_of_several_that_wait_for_a_freeze_the_first_freezes_alone() -> None:
    """Another replica then takes the work over."""

    async def work() -> None:
        simulation = SimulationContext("freezes")
        processes = [SimulatedProcess(simulation, name) for name in ("one", "two")]
        await processes[0].spawn(set_up(processes[0].bus, VirtualClock(), replicas=1))
        freeze, took = Freeze("launch-", 2, FROZEN_SECONDS, answered=True), []
        for each in processes:
            each.freezes_after = freeze

            async def launch(process: SimulatedProcess = each) -> None:
                await process.bus.put(LEASES, f"launch-{process.name}", b"{}")
                await process.bus.get(LEASES, f"launch-{process.name}")

            began = simulation.now()
            await each.spawn(launch())
            took.append(simulation.now() - began >= FROZEN_SECONDS)
        assert took == [True, False]

    run(work)
