"""What must hold of racks, in pools whose units they are."""

from schemas.fault_signature import RACK
from schemas.pool_records import OpenSaga, PoolRecord
from services.bus.port import Stored
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.node_counts import Nodes, nodes_removed
from services.simulator.engine.budget_invariants import budget_count
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.engine.stored_records import StoredRecords, written_pool


class RackInvariants:
    """Whole racks leave as a whole, no more of them than the budget allows, and never for nothing.

    Checked at each decision, which is one write of a pool's record.
    """

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        """Report violations to `invariants`, which knows what is broken."""
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._seen: dict[str, None] = {}
        """Sagas that were open in an earlier write."""
        self.replaced: list[str] = []
        """Racks that were replaced as a whole."""
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        pool = written_pool(stream, stored)
        if pool is None or not rack_units.is_by_rack(pool):
            return
        begun = {saga: each for saga, each in pool.open.items() if saga not in self._seen}
        self._seen |= dict.fromkeys(begun)
        if self._invariants.destroyed or self._invariants.restored:
            return  # the records are not what they were decided on
        for rack in dict.fromkeys(each.rack for each in begun.values() if _leaves(each)):
            self._leaves_whole(pool, rack)
        racks = dict.fromkeys(e.rack for e in begun.values() if e.fault_signature == RACK)
        for rack in racks:
            self._within_the_level(pool, rack)

    def _leaves_whole(self, pool: PoolRecord, rack: str) -> None:
        """Of a rack that is whole all nodes leave, or those whose own sagas remove them do.

        What more nodes call their rack than a rack has is none, as in `rack_units`: also where a
        machine has the place of one whose end is not recorded yet.
        """
        nodes = [each for each in self._records.live_nodes() if each.pool == pool.name]
        whole = [each.node for each in rack_units.of_rack(nodes, rack)]
        left = sorted(set(whole) - nodes_removed(pool))
        named = rack_units.is_rack(pool, rack, Nodes(nodes).racks)
        replaced = any(e.rack == rack and e.fault_signature == RACK for e in pool.open.values())
        if rack and left and (replaced or (named and len(whole) >= pool.spec.rack.nodes)):
            self._invariants.fail(f"rack {rack} leaves without {', '.join(left)}", *left)

    def _within_the_level(self, pool: PoolRecord, rack: str) -> None:
        self.replaced.append(rack)
        out = {each.rack for each in pool.open.values() if each.fault_signature == RACK}
        wanted = rack_units.units(pool, pool.desired)
        allowed = budget_count(pool.spec.budget.max_unavailable, wanted, least=1)
        if len(out) > allowed:
            text = f"{len(out)} racks are replaced where {allowed} may be: {', '.join(sorted(out))}"
            self._invariants.fail(text)
        known = self._invariants
        # Those that failed may have left before their rack is replaced.
        nodes = {each.node for each in self._records.nodes() if each.rack == rack}
        if not nodes & (known.broken_nodes | known.misreported):
            self._invariants.fail(f"rack {rack} is replaced, and none of its nodes has failed")


def _leaves(opened: OpenSaga) -> bool:
    """Whether a node leaves with others of its rack."""
    return opened.kind == "scale-down" or opened.fault_signature == RACK
