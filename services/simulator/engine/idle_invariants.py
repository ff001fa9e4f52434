"""What must hold of nodes that leave for want of work: they have had none, and none is ended."""

from typing import Final

from schemas.pool_records import OpenSaga, PoolRecord
from services.bus.port import Stored
from services.simulator.engine.invariants import CLOCK_SECONDS, Invariants
from services.simulator.engine.simulated_gangs import SimulatedGangs
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.engine.stored_records import written_pool

LOOK_SECONDS: Final = 31.0
"""Jobs that begin and end between two questions are not seen."""
IDLE: Final = "no work since"
"""Begins the reason of such a saga."""


class IdleInvariants:
    """Looks at every record of a pool in which a node begins to leave."""

    def __init__(
        self, simulation: SimulationContext, workload: SimulatedGangs, invariants: Invariants
    ) -> None:
        """Report violations to `invariants`; `workload` knows which jobs ran where."""
        self._simulation = simulation
        self._workload = workload
        self._invariants = invariants
        self._known: set[str] = set()
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        pool = written_pool(stream, stored)
        if pool is None:
            return
        for saga in pool.open.keys() - self._known:
            self._known.add(saga)
            if pool.open[saga].reason.startswith(IDLE):
                self._leaves(pool, saga, pool.open[saga])

    def _leaves(self, pool: PoolRecord, saga: str, opened: OpenSaga) -> None:
        fail, now = self._invariants.fail, self._simulation.now()
        if opened.drain != "wait":
            fail(f"{saga} would end work that comes in between", saga)
        if pool.desired < pool.spec.min_nodes:
            fail(f"{saga} leaves {pool.desired} nodes where {pool.spec.min_nodes} must be", saga)
        slack = LOOK_SECONDS + CLOCK_SECONDS + 2 * self._simulation.skew_seconds
        begin, end = now - pool.spec.idle_after + slack, now - slack
        for job, at in self._workload.ran.get(opened.node, {}).items():
            lasted = at - self._workload.began[opened.node][job]
            if begin < at < end and lasted > LOOK_SECONDS:
                fail(f"{saga} removes {opened.node}, where {job} ran {now - at:.0f} s ago", saga)
