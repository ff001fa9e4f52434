"""Checks what must hold of growth for jobs that wait: none for jobs that nodes do not help."""

from collections.abc import Iterator
from typing import Final

from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.pool_events import Scaled
from schemas.pool_records import PoolRecord
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from services.bus.port import Stored
from services.pool_manager.autoscaling.metrics_sources import Load
from services.pool_manager.planner.sizing.unserved_jobs import AGAIN_AFTER
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import SimulationContext, StoredRecords

QUEUE: Final = "autoscaler queue:"
"""Begins the reason of a size that an autoscaler chose for the jobs that wait."""

_nodes = decoder(NodeRecord)


class DemandInvariants:
    """Compares each growth with the queue: one that reduced nothing is not followed by another."""

    def __init__(
        self,
        simulation: SimulationContext,
        workload: SimulatedWorkload,
        agents: AgentMachines,
        invariants: Invariants,
    ) -> None:
        """Report violations to `invariants`; `workload` has the queues."""
        self._simulation = simulation
        self._workload = workload
        self._agents = agents
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._grown: dict[str, tuple[Load, float]] = {}
        """Pool -> the queue for which it has grown last, and when."""
        self._admitted: dict[str, set[str]] = {}
        """Pool -> nodes that have come into service since."""
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == EVENTS.name and stored.subject.endswith(".scaled"):
            event = decode_stored(stored)
            if isinstance(event, Scaled) and event.nodes > event.previous:
                self._grows(event)
        elif stream == f"KV_{NODES.name}" and stored.data:
            node = _nodes.decode(stored.data)
            if node.state == "active" and node.pool in self._grown:
                self._admitted[node.pool].add(node.node)
            elif node.pool in self._admitted:  # an operator has taken it away again
                self._admitted[node.pool].discard(node.node)

    def _grows(self, event: Scaled) -> None:
        load, now = self._workload.loads.get(event.pool), self._simulation.now()
        if load is None or not event.reason.startswith(QUEUE):
            return
        before, at = self._grown.get(event.pool, (None, 0.0))
        same = load is before and now - at < AGAIN_AFTER.total_seconds()
        if same and self._is_idle and not self._forgotten:
            self._invariants.fail(
                f"{event.pool} grows to {event.nodes} for the {load.pending_jobs} jobs that wait, "
                "and its last growth has helped none of them",
                event.pool,
            )
        self._grown[event.pool] = load, now
        self._admitted[event.pool] = set()

    @property
    def _is_idle(self) -> bool:
        """Return whether no node has any work, by its GPUs and by the workload system."""
        return not any(self._agents.loads.values()) and not any(self._workload.jobs.values())

    @property
    def _forgotten(self) -> bool:
        return bool(self._invariants.destroyed) or self._invariants.restored

    def unfinished(self, name: str) -> list[str]:
        """Return what a pool with jobs that never start has still to say, or to do."""
        pool, load = self._records.pool(name), self._workload.loads.get(name)
        if pool is None or load is None or not load.pending_jobs or self._forgotten:
            return []
        return list(self._unsaid(pool, load.pending_jobs))

    def _unsaid(self, pool: PoolRecord, waiting: int) -> Iterator[str]:
        grown, admitted = pool.growth, self._admitted.get(pool.name, ())
        taken_back = grown is not None and pool.desired < grown.size  # by an operator
        if grown is not None and not taken_back and len(admitted) >= grown.nodes:
            yield f"{pool.name} does not say that {grown.nodes} more nodes helped no job"
        known = {**(grown.waiting if grown is not None else {}), **pool.unserved}
        if waiting > sum(known.values()) and pool.desired < pool.spec.max_nodes:
            yield f"{pool.name} does not grow: {waiting} jobs wait, and it knows of {known}"
