"""What must hold of every order that changes something in the workload system."""

from datetime import timedelta

from schemas.saga_log_entries import StepStarted, saga_codec
from schemas.topology import SAGAS
from services.bus.port import Stored
from services.notifier.workload.workload_notifier import WorkloadOrder
from services.notifier.workload_steps import EVICTION_SECONDS_MAX
from services.simulator.engine.invariants import CLOCK_SECONDS, Invariants
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.engine.virtual_time import moment


class WorkloadInvariants:
    """One cordon and one drain for each saga, and no work is evicted before its deadline."""

    def __init__(
        self, simulation: SimulationContext, workload: SimulatedWorkload, invariants: Invariants
    ) -> None:
        """Report violations to `invariants`, which knows the sagas."""
        self._simulation = simulation
        self._invariants = invariants
        self._changed: dict[tuple[str, str], str] = {}
        """Verb and key of each order that changed something -> its node."""
        self._drains: dict[str, StepStarted] = {}
        workload.on_order = self._on_order
        workload.on_returned = self._on_returned
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == SAGAS.name:
            entry = saga_codec.decode(stored.data)
            if isinstance(entry, StepStarted) and entry.step == "drain":
                self._drains[entry.saga] = entry

    def _on_order(self, verb: str, order: WorkloadOrder) -> None:
        known, node = self._invariants, order.node.node
        change = (verb, order.key)
        lost = known.restored or SAGAS.name in known.destroyed
        if change in self._changed and not lost:
            known.fail(f"{order.key} changes {node} by a second {verb}", node, order.saga)
        self._changed[change] = node
        if verb == "evict" and not lost:
            self._evicted(order)

    def _on_returned(self, node: str) -> None:
        """Work that comes back is evicted again, if a delivery of the drain is repeated."""
        for change in [each for each, name in self._changed.items() if name == node]:
            if change[0] == "evict":
                del self._changed[change]

    def _evicted(self, order: WorkloadOrder) -> None:
        node, step = order.node.node, self._drains.get(order.saga)
        params = self._invariants.sagas.started(order.saga).params
        if params.drain == "immediate":
            return
        if step is None or step.deadline is None:
            self._invariants.fail(f"work on {node} is evicted without a deadline", node, order.saga)
            return
        # The deadline is by the coordinator's clock, and the wait by the notifier's.
        early = EVICTION_SECONDS_MAX + CLOCK_SECONDS + 2 * self._simulation.skew_seconds
        left = step.deadline - moment(self._simulation.now())
        if left > timedelta(seconds=early):
            self._invariants.fail(
                f"work on {node} is evicted {left.total_seconds():.0f} s before its deadline",
                *(node, order.saga),
            )
