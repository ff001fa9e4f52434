"""Checks which nodes leave for size: none in service whose place what is not in service takes."""

from typing import Final

from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import OpenSaga, PoolRecord
from services.bus.port import Stored
from services.pool_manager.planner.node_counts import busy
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulation_context import (
    SimulationContext,
    StoredRecords,
    written_pool,
)

TOO_MANY: Final = "are wanted"
"""Ends the reason of a node that leaves because there are too many."""


class SizeInvariants:
    """Looks at every record of a pool in which nodes begin to leave for its size."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._known: set[str] = set()
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        pool = written_pool(stream, stored)
        if pool is None:
            return
        fresh = pool.open.keys() - self._known
        self._known |= fresh
        known = self._invariants
        if known.restored or known.destroyed or pool.removing or pool.spec.rack.nodes > 1:
            return
        for saga in sorted(fresh):
            self._leaves(pool, saga, pool.open[saga])

    def _leaves(self, pool: PoolRecord, saga: str, opened: OpenSaga) -> None:
        node = self._records.node(node_key(pool.name, opened.node))
        if opened.kind != "scale-down" or not opened.reason.endswith(TOO_MANY) or opened.spare:
            return
        if node is None or not _serves(node):
            return
        left = self._not_in_service(pool)
        # Where as many serve as are wanted, what is left goes as well, a launch once it has ended.
        if left and self._in_service(pool) < pool.desired:
            self._invariants.fail(
                f"{saga}: {node.node} is in service and leaves, and {left[0]} counts", saga, *left
            )

    def _in_service(self, pool: PoolRecord) -> int:
        """Count the nodes that take work and stay."""
        taken = busy(pool)
        nodes = [each for each in self._records.live_nodes() if each.pool == pool.name]
        return sum(1 for each in nodes if _serves(each) and each.node not in taken)

    def _not_in_service(self, pool: PoolRecord) -> list[str]:
        """Name what counts towards the size and could leave without ending any work."""
        coming = [
            each.new_node
            for each in pool.open.values()
            if each.kind == "scale-up" and not (each.spare or each.called_off or each.not_spot)
            if not self._stays(pool.name, each.new_node)
        ]
        taken = busy(pool)
        nodes = [each for each in self._records.live_nodes() if each.pool == pool.name]
        free = [
            each.node
            for each in nodes
            if each.state == "active" and each.cordoned and not each.spare
            if each.node not in taken and each.held_until is None and not each.notices
            # What must not be spot stays.
            if not pool.spec.on_demand_min
        ]
        return coming + free

    def _stays(self, pool: str, node: str) -> bool:
        """Return whether a node of an open launch is in service by now, or an operator keeps it."""
        record = self._records.node(node_key(pool, node))
        return record is not None and (record.held_until is not None or _serves(record))


def _serves(node: NodeRecord) -> bool:
    """Return whether a node takes work, as far as its record says."""
    well = node.health in ("healthy", "degraded") and not (node.lost or node.cordoned)
    return node.state == "active" and well and not node.spare
