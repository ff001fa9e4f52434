"""Checks what must hold of nodes whose instances are gone: each is replaced, in time."""

from typing import Final

from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord
from schemas.topology import NODES
from services.bus.port import Stored
from services.pool_manager.planner.gates import pool_gates
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import busy, is_gone
from services.pool_manager.planner.safety import breaker
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulation_context import SimulationContext, StoredRecords
from services.simulator.engine.virtual_time import moment

WITHIN_SECONDS: Final = 90.0
"""So long a gap may wait until its replacement begins, while records can be written."""
LOOK_SECONDS: Final = 5.0

_nodes = decoder(NodeRecord)


class GapInvariants:
    """No gap waits for budget, rate, breaker or window."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        self._simulation = simulation
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._gaps: dict[str, tuple[NodeRecord, float]] = {}
        """Key -> the record of a gap, and since when its replacement should have begun."""
        self._looked = 0.0
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        now = self._simulation.now()
        if stream == f"KV_{NODES.name}" and stored.data:
            node = _nodes.decode(stored.data)
            key = node_key(node.pool, node.node)
            _, since = self._gaps.pop(key, (node, now))
            if is_gone(node) and node.state == "active" and node.held_until is None:
                self._gaps[key] = node, since
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look(now)

    def _look(self, now: float) -> None:
        known = self._invariants
        pools: dict[str, PoolRecord | None] = {}
        for key, (node, since) in tuple(self._gaps.items()):
            pool = pools.setdefault(node.pool, self._records.pool(node.pool))
            waits = pool is None or self._simulation.server.refusing or _waits(pool, node, now)
            if waits or known.destroyed or known.restored:
                self._gaps[key] = node, now
            elif now - since > WITHIN_SECONDS:
                known.fail(f"{node.node} is gone for {now - since:.0f} s", node.node)


def _waits(pool: PoolRecord, node: NodeRecord, now: float) -> bool:
    """Whether a pool's state excuses that a gap is not filled."""
    spec = pool.spec
    off = not spec.health.auto_replace or spec.mode == "observe"
    off = off or spec.nodes == "adopted" or spec.health.remediation.type == "alert"
    failing = pool_gates.retry(Proposal("repair", pool, moment(now))) is not None
    stopped = breaker.is_restored(pool.breaker) or failing
    return off or stopped or spec.rack.nodes > 1 or node.node in busy(pool)
