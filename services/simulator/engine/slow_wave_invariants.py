"""What must hold of faults that come one after the other: few are acted on by their word alone."""

import math
from datetime import datetime, timedelta

from schemas.breaker_state import Breaker
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import SagaStarted, saga_codec
from schemas.topology import POOLS, SAGAS
from services.bus.port import Stored
from services.pool_manager.planner.node_counts import automatic
from services.pool_manager.planner.safety.fault_evidence import is_confirmed
from services.pool_manager.planner.safety.fault_waves import UnhealthyNode, belongs, unhealthy_since
from services.pool_manager.sagas import DEFINITIONS
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.engine.stored_records import StoredRecords
from services.simulator.engine.virtual_time import moment

_pools = decoder(PoolRecord)


class SlowWaveInvariants:
    """Counts, of each fault signature, the nodes that no second source accused."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        """Report violations to `invariants`."""
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._begun: dict[tuple[str, str], dict[str, datetime]] = {}
        """Pool and fault signature -> node -> when its remediation was decided on."""
        self._closed_by: dict[str, str] = {}
        """Pool -> the last request about its breaker."""
        self._closed_at: dict[str, datetime] = {}
        """Pool -> when that was carried out: what was decided on before may begin later."""
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == f"KV_{POOLS.name}":
            self._on_pool(stored)
        elif stream == SAGAS.name:
            entry = saga_codec.decode(stored.data)
            if isinstance(entry, SagaStarted) and DEFINITIONS[entry.kind].disrupts:
                self._on_started(entry)

    def _on_pool(self, stored: Stored) -> None:
        """An operator who closes the breaker has decided that the faults until then are real."""
        kind, _, name = stored.subject.removeprefix(f"$KV.{POOLS.name}.").partition(".")
        if kind != "pool":
            return
        breaker = _pools.decode(stored.data).breaker if stored.data else Breaker()
        if not stored.data or breaker.request != self._closed_by.get(name, ""):
            self._begun = {key: each for key, each in self._begun.items() if key[0] != name}
            self._closed_at[name] = breaker.since or moment(0.0)
        self._closed_by[name] = breaker.request

    def _on_started(self, entry: SagaStarted) -> None:
        pool = self._records.pool(entry.params.pool)
        opened = pool.open.get(entry.saga) if pool else None
        node = self._records.node(node_key(entry.params.pool, entry.params.node))
        known = self._invariants
        if pool is None or opened is None or node is None or known.destroyed or known.restored:
            return
        if not self._is_on_its_word(pool, opened, node):
            return
        if opened.since <= self._closed_at.get(pool.name, moment(0.0)):
            return
        begun = self._begun.setdefault((pool.name, opened.fault_signature), {})
        begun[node.node] = opened.since
        window = timedelta(seconds=pool.spec.budget.window)
        recent = [name for name, at in begun.items() if opened.since - at < window]
        spec = pool.spec.health.incident
        size = sum(1 for each in self._records.live_nodes() if each.pool == pool.name)
        most = max(spec.nodes, math.ceil(spec.percent * size / 100 - 1e-9))
        if spec.hold and len(recent) >= most:
            known.fail(
                f"{len(recent)} nodes with {opened.fault_signature} were acted on within "
                f"{window} and nothing but that fault accused them: {', '.join(recent)}",
                entry.saga,
            )

    def _is_on_its_word(self, pool: PoolRecord, opened: OpenSaga, node: NodeRecord) -> bool:
        """Whether a saga was begun automatically for a fault that no second source reports."""
        since, what = unhealthy_since(node), opened.fault_signature
        if not automatic(opened) or not what or opened.notice or opened.dead or since is None:
            return False
        if node.health == "degraded":
            return False
        health = self._records.health_of(node_key(node.pool, node.node))
        unhealthy = UnhealthyNode(node=node, what=what, since=since)
        explained = any(belongs(unhealthy, key, each) for key, each in pool.incidents.items())
        return not explained and not is_confirmed(node, health)
