"""What must hold of quarantined nodes."""

from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import SagaStarted, saga_codec
from schemas.topology import SAGAS
from services.bus.port import Stored
from services.pool_manager.planner.node_counts import is_quarantined
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.invariants import Invariants, budget_count
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.engine.stored_records import StoredRecords


class QuarantineInvariants:
    """Only accused nodes are quarantined, and no more of them than the cap allows."""

    def __init__(
        self, simulation: SimulationContext, agents: AgentMachines, invariants: Invariants
    ) -> None:
        """Report violations to `invariants`, which knows the sagas."""
        self._agents = agents
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream != SAGAS.name:
            return
        entry = saga_codec.decode(stored.data)
        if isinstance(entry, SagaStarted) and entry.kind == "quarantine":
            self._begun(entry)

    def _begun(self, entry: SagaStarted) -> None:
        name, pool = entry.params.node, self._records.pool(entry.params.pool)
        known = self._invariants
        machine = self._agents.machine_of(name)
        accused = known.broken_nodes | known.misreported | known.preempted
        if name not in accused and machine is not None and not machine.broken:
            known.fail(f"{name} is quarantined, and is healthy", name, entry.saga)
        if pool is not None:
            self._within_the_cap(pool)

    def _within_the_cap(self, pool: PoolRecord) -> None:
        nodes = [each for each in self._records.live_nodes() if each.pool == pool.name]
        found = {each.node for each in nodes if is_quarantined(each)}
        found |= {each.node for each in pool.open.values() if each.kind == "quarantine"}
        allowed = budget_count(pool.spec.budget.max_quarantined, pool.desired, least=1)
        if len(found) > allowed:
            text = f"{len(found)} nodes are quarantined where {allowed} may be"
            self._invariants.fail(text, *sorted(found))
