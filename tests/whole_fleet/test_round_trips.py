"""Calls to the bus between a fault and the order to cordon are counted, and bounded.

Each of them costs a round trip, and a write a flush of the disk as well, so their number bounds how
soon a node with a fatal fault takes no more work. In virtual time, where every call takes the same
and nothing else takes any, the time from the fault to the order is that number.
"""

import asyncio
import random
from dataclasses import replace

import pytest

from services.notifier.workload.workload_notifier import WorkloadOrder
from services.runtime.logs import silenced
from services.simulator.engine import virtual_time
from services.simulator.engine.fault_kinds import InjectedFault
from tests.simulator.test_silence_is_confirmed import started
from tests.support.fleet_shapes import SMALL

TRIP_SECONDS = 0.001
SETTLED_SECONDS = 100.0
TRIPS_MAX = 11
"""The calls: the fault; HEALTH; the verdict; NODES; a snapshot; the fleet's claims; the pool; its
openings; the saga, with what may have changed since; the cordon's command; its log and the node."""


class AtOnce(random.Random):
    """Draws the shortest time for every call of the workload system."""

    def random(self) -> float:
        """Return the least."""
        return 0.0


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_fault_is_ordered_to_be_cordoned_within_so_many_round_trips(replicas: int) -> None:
    """Three nodes fail one after the other, and none waits for more calls than the bound."""

    async def play() -> list[float]:
        simulation, _ = await started(replace(SMALL, nodes=3, replicas=replicas))
        fleet, loop = simulation.fleet, asyncio.get_running_loop()
        fleet.workload.chance = AtOnce()
        ordered: asyncio.Queue[float] = asyncio.Queue()

        def on_order(verb: str, order: WorkloadOrder) -> None:
            del order
            if verb == "cordon":
                ordered.put_nowait(loop.time())

        fleet.workload.on_order = on_order
        trips = []
        for _ in range(3):
            await asyncio.sleep(SETTLED_SECONDS)
            fleet.simulation.latency_seconds = TRIP_SECONDS
            began, node = loop.time(), fleet.machines.serving()[0].name
            fleet.faults.inject(InjectedFault(kind="xid_error", target=node, xid_code=79))
            trips.append(round((await ordered.get() - began) / TRIP_SECONDS, 3))
            fleet.simulation.latency_seconds = None
        fleet.simulation.server.close()
        return trips

    with silenced():
        trips = virtual_time.run(play)
    # Where two replicas decide, the slower one is refused, and the other may have to read again.
    assert max(trips) <= TRIPS_MAX + replicas - 1
