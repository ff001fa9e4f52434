"""`python -m tests.walk`: count the modules and calls between a cause and its effect.

Two ways are walked in a simulated fleet: from a kernel line with a fatal XID to the cordon at the
workload system, and from a request to scale to the provider's call. A call is a function of ours
that begins; those of the simulation and of the bus in memory do not count.
Each way is walked several times, and the shortest counts: others have a heartbeat between.
"""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from services.runtime.logs import silenced
from services.simulator.engine import virtual_time
from services.simulator.engine.fault_kinds import InjectedFault
from services.simulator.inputs.fuzz.fuzz_simulation import POOL, FuzzSimulation
from tests.simulator.test_silence_is_confirmed import started
from tests.support.fleet_shapes import SMALL
from tests.whole_fleet.test_round_trips import AtOnce

REPOSITORY: Final = Path(__file__).parents[1]
OURS: Final = tuple(f"{REPOSITORY / each}/" for each in ("agent", "schemas", "services"))
OUTSIDE: Final = tuple(f"{REPOSITORY / 'services' / each}/" for each in ("simulator", "bus/memory"))
WALKS: Final = 3
SETTLED_SECONDS: Final = 100.0
WALKED_SECONDS_MAX: Final = 60.0
TRIP_SECONDS: Final = 0.001


class Walk(NamedTuple):
    """Counts what lies between a cause and its effect."""

    calls: int
    modules: int


class Counter:
    """Counts the calls of our functions until one with a given name begins."""

    def __init__(self, end: str) -> None:
        """Count until `end`, the qualified name of a function of the simulation."""
        self._end = end
        self._begun: dict[int, FrameType] = {}
        """Frames by identity: a coroutine that goes on is no further call."""
        self.walk: asyncio.Future[Walk] = asyncio.get_running_loop().create_future()

    def on_event(self, frame: FrameType, event: str, _: Any) -> None:
        """Take what the interpreter says of a frame."""
        if event != "call" or self.walk.done():
            return
        code = frame.f_code
        if code.co_qualname == self._end:
            modules = {each.f_code.co_filename for each in self._begun.values()}
            self.walk.set_result(Walk(len(self._begun), len(modules)))
            self._begun.clear()
        elif code.co_filename.startswith(OURS) and not code.co_filename.startswith(OUTSIDE):
            self._begun[id(frame)] = frame


async def walked(simulation: FuzzSimulation, end: str, cause: Callable[[], None]) -> Walk:
    """Cause something, and count until a function of the simulation is called for it."""
    await asyncio.sleep(SETTLED_SECONDS)
    counter = Counter(end)
    simulation.fleet.simulation.latency_seconds = TRIP_SECONDS
    sys.setprofile(counter.on_event)
    try:
        cause()
        return await asyncio.wait_for(counter.walk, WALKED_SECONDS_MAX)
    finally:
        sys.setprofile(None)
        simulation.fleet.simulation.latency_seconds = None


async def _walks() -> dict[str, Walk]:
    simulation, _ = await started(replace(SMALL, nodes=3))
    fleet = simulation.fleet
    fleet.workload.chance = AtOnce()

    def fault() -> None:
        node = fleet.machines.serving()[0].name
        fleet.faults.inject(InjectedFault(kind="xid_error", target=node, xid_code=79))

    def scale(nodes: int) -> Callable[[], None]:
        return lambda: fleet.request(POOL, "scale", {"nodes": nodes})

    cordon, launch = "SimulatedNotifier.cordon", "SimulatedProvider.provision"
    found = {
        "kernel line to cordon": [await walked(simulation, cordon, fault) for _ in range(WALKS)],
        "scale request to provider call": [
            await walked(simulation, launch, scale(4 + each)) for each in range(WALKS)
        ],
    }
    fleet.simulation.server.close()
    return {name: min(each) for name, each in found.items()}


def walks() -> dict[str, Walk]:
    """Return the ways and what lies on each."""
    with silenced():
        return virtual_time.run(_walks)


if __name__ == "__main__":
    for name, walk in walks().items():
        sys.stdout.write(f"{name}: {walk.modules} modules, {walk.calls} calls\n")
