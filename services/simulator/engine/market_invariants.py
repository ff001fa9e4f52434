"""What must hold of a pool some of whose nodes must not be spot: none of these places is."""

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.pool_records import PoolRecord
from schemas.topology import INSTANCES, POOLS
from services.bus.port import Stored
from services.pool_manager.sagas import DEFINITIONS
from services.simulator.engine.budget_invariants import budget_count
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.engine.stored_records import StoredRecords

_pools = decoder(PoolRecord)
_instances = decoder(InstanceRecord)


class MarketInvariants:
    """Looks at every record of a pool in which a launch or a smaller size is new."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        """Report violations to `invariants`."""
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._markets: dict[str, str] = {}
        """Instance -> the market that it was last requested from."""
        self._not_spot: set[str] = set()
        """Nodes that were to be launched from another market than spot."""
        self._known: set[str] = set()
        """Sagas that were in a pool's record."""
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if not stored.data:
            return
        if stream == f"KV_{INSTANCES.name}":
            self._on_instance(stored)
        elif stream == f"KV_{POOLS.name}" and f".{POOLS.name}.pool." in stored.subject:
            self._on_pool(_pools.decode(stored.data))

    def _on_instance(self, stored: Stored) -> None:
        try:
            record = _instances.decode(stored.data)
        except msgspec.DecodeError:
            return
        if record.offering is None:
            return
        self._markets[record.instance] = record.offering.market
        if record.offering.market == "spot" and record.instance in self._not_spot:
            self._invariants.fail(
                f"{record.instance} must not be spot, and is requested as spot", record.instance
            )

    def _on_pool(self, pool: PoolRecord) -> None:
        fresh = [saga for saga in pool.open if saga not in self._known]
        self._known.update(fresh)
        self._not_spot.update(each.new_node for each in pool.open.values() if each.not_spot)
        least = required(pool)
        if not least or not fresh or self._invariants.restored or self._invariants.destroyed:
            return
        leaving = {each.node for each in pool.open.values() if DEFINITIONS[each.kind].removes_node}
        live = {each.node for each in self._records.live_nodes()}
        coming = {each.new_node for each in pool.open.values() if each.not_spot}
        dear = {name for name in live if self._markets.get(name, "spot") != "spot"}
        staying = len((dear | coming) - leaving)
        for saga in fresh if staying < least else ():
            opened = pool.open[saga]
            spot = opened.new_node and not opened.not_spot
            shrinks = opened.kind == "scale-down" and opened.node in dear
            if spot or shrinks:
                what = f"launches {opened.new_node} as spot" if spot else f"removes {opened.node}"
                self._invariants.fail(
                    f"{saga} {what} where {staying} of {least} nodes are not spot", saga
                )


def required(pool: PoolRecord) -> int:
    """Nodes of a pool that must not be spot."""
    least = pool.spec.on_demand_min
    return min(budget_count(least, pool.desired, least=1), pool.desired) if least else 0


def spot_words(pool: PoolRecord, cloud: SimulatedCloud) -> str:
    """Why the machines of a pool at rest are on the wrong markets; empty: they are not."""
    least = required(pool)
    found = [
        each.offering.market
        for each in cloud.machines.values()
        if each.offering is not None and each.instance.pool == pool.name
    ]
    there = sum(market != "spot" for market in found)
    return f"{there} machines are not spot where {least} must not be" if there < least else ""
