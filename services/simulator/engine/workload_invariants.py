"""What must hold of every order that changes something in the workload system."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from schemas.messages import decoder
from schemas.names import saga_number
from schemas.node_records import DRAINED_BEFORE_SECONDS, NodeRecord
from schemas.saga_log_entries import StepStarted, saga_codec
from schemas.topology import NODES, SAGAS
from services.bus.port import Stored
from services.notifier.workload.workload_notifier import WorkloadOrder
from services.notifier.workload_steps import EVICTION_SECONDS_MAX, LOOK_SECONDS, taken_at
from services.simulator.engine.invariants import CLOCK_SECONDS, Invariants
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import TIMEOUT_SECONDS, SimulationContext
from services.simulator.engine.virtual_time import moment

KNOWN_SECONDS: Final = LOOK_SECONDS + TIMEOUT_SECONDS
"""Within so long a notifier that reaches the bus knows a notice, or that it was withdrawn."""
_nodes = decoder(NodeRecord)


@dataclass(slots=True)
class _Taking:
    """When the cloud takes a node, by the notices in its record."""

    at: datetime | None = None
    before: datetime | None = None
    """As it was up to the last change."""
    changed_at: float = 0.0


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
        self._taking: dict[str, _Taking] = {}
        """Node -> when the cloud takes it."""
        workload.on_order = self._on_order
        workload.on_returned = self._on_returned
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == SAGAS.name:
            entry = saga_codec.decode(stored.data)
            if isinstance(entry, StepStarted) and entry.step == "drain":
                self._drains[entry.saga] = entry
        elif stream == f"KV_{NODES.name}" and stored.data:
            node = stored.subject.rpartition(".")[2]
            if b'"notices":' in stored.data or node in self._taking:
                self._noticed(node, taken_at(_nodes.decode(stored.data)))

    def _noticed(self, node: str, at: datetime | None) -> None:
        known = self._taking.setdefault(node, _Taking())
        if at != known.at:
            known.before, known.at, known.changed_at = known.at, at, self._simulation.now()

    def _on_order(self, verb: str, order: WorkloadOrder) -> None:
        known, node = self._invariants, order.node.node
        if verb == "uncordon":
            self._uncordoned(node, order.saga)
            return
        change = (verb, order.key)
        lost = known.restored or SAGAS.name in known.destroyed
        if change in self._changed and not lost:
            known.fail(f"{order.key} changes {node} by a second {verb}", node, order.saga)
        self._changed[change] = node
        if verb == "evict" and not lost:
            self._evicted(order)

    def _uncordoned(self, node: str, saga: str) -> None:
        """An order that takes effect after a later saga's cordon: that cordon may be repeated."""
        for verb, key in [each for each, name in self._changed.items() if name == node]:
            if verb == "cordon" and saga_number(key.partition("/")[0]) > saga_number(saga):
                del self._changed[verb, key]

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
        ends = self._ends(node, step.deadline if step is not None else None)
        if not ends:
            self._invariants.fail(f"work on {node} is evicted without a deadline", node, order.saga)
            return
        # A deadline is by the coordinator's clock, and the wait by the notifier's.
        early = EVICTION_SECONDS_MAX + CLOCK_SECONDS + 2 * self._simulation.skew_seconds
        left = min(ends) - moment(self._simulation.now())
        if left > timedelta(seconds=early):
            self._invariants.fail(
                f"work on {node} is evicted {left.total_seconds():.0f} s before its deadline",
                *(node, order.saga),
            )

    def _ends(self, node: str, deadline: datetime | None) -> list[datetime]:
        """When a drain may end: at its deadline, or before the cloud takes the node."""
        taking, now = self._taking.get(node, _Taking()), self._simulation.now()
        may_not_know = (
            now - taking.changed_at < KNOWN_SECONDS
            or self._simulation.reconnected_at > taking.changed_at
            or self._simulation.network.any
        )
        by_cloud = (taking.at, taking.before if may_not_know else None)
        early = timedelta(seconds=DRAINED_BEFORE_SECONDS)
        found = (deadline, *(each - early for each in by_cloud if each is not None))
        return [each for each in found if each is not None]
