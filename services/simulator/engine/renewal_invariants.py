"""What must hold of healthy nodes that are replaced: only old or drifted ones, few at once."""

import math
from datetime import datetime, timedelta
from typing import Final

from schemas.fault_signature import DRIFTED, RENEWALS
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.topology import POOLS
from services.bus.port import Stored
from services.pool_manager.planner import rack_units
from services.simulator.engine.budget_invariants import budget_count
from services.simulator.engine.invariants import CLOCK_SECONDS, Invariants
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.engine.stored_records import StoredRecords

EARLIEST: Final = 0.9
"""Share of `expire_after` before which no node leaves for its age."""

_pools = decoder(PoolRecord)


class RenewalInvariants:
    """Looks at every record of a pool in which such a replacement is new."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        """Report violations to `invariants`."""
        self._simulation = simulation
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._known: set[str] = set()
        """Such sagas that were in a pool's record."""
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream != f"KV_{POOLS.name}" or f".{POOLS.name}.pool." not in stored.subject:
            return
        if stored.data:
            self._look(_pools.decode(stored.data))

    def _look(self, pool: PoolRecord) -> None:
        opened = {
            saga: each for saga, each in pool.open.items() if each.fault_signature in RENEWALS
        }
        fresh = opened.keys() - self._known
        self._known |= fresh
        if not fresh or self._invariants.restored or self._invariants.destroyed:
            return
        serving = [saga for saga, each in opened.items() if not self._is_spare(pool, each.node)]
        allowed = math.ceil(
            budget_count(
                pool.spec.budget.max_unavailable, rack_units.units(pool, pool.desired), least=1
            )
            / 2
        )
        units = {rack_units.unit_of_saga(pool, opened[saga], {}) for saga in serving}
        if len(units) > allowed or len(opened) - len(serving) > 1:
            what = f"{len(opened)} healthy nodes are replaced where {allowed} may be"
            self._invariants.fail(f"{what}, and one spare", *opened)
        for saga in sorted(fresh):
            self._is_due(pool, saga, opened[saga])

    def _is_spare(self, pool: PoolRecord, name: str) -> bool:
        node = self._records.node(node_key(pool.name, name))
        return node is not None and node.spare

    def _is_due(self, pool: PoolRecord, saga: str, opened: OpenSaga) -> None:
        """What is replaced at leisure is old, or was launched with another type or labels."""
        name = opened.node
        node = self._records.node(node_key(pool.name, name))
        if node is None or node.admitted_at is None:
            self._invariants.fail(f"{saga} replaces {name}, which was never in service", saga, name)
            return
        if opened.fault_signature == DRIFTED:
            launch, spec = node.launch, pool.spec
            wanted = (spec.labels, spec.instance_type)
            if launch is None or (launch.labels, launch.instance_type) == wanted:
                self._invariants.fail(f"{saga} replaces {name}, which has not drifted", saga, name)
            return
        slack = timedelta(seconds=CLOCK_SECONDS + 2 * self._simulation.skew_seconds)
        age = opened.since - node.admitted_at
        if age + slack < timedelta(seconds=EARLIEST * pool.spec.expire_after):
            seconds = age.total_seconds()
            self._invariants.fail(f"{saga} replaces {name}, which is {seconds:.0f} s old", saga)


def due_words(pool: PoolRecord, node: NodeRecord, now: datetime) -> str:
    """Why a node in service should have been replaced by now; empty: it need not.

    A drifted one at rest, and one that is too old after the nodes of its pool could have been
    replaced one after the other.
    """
    spec, launch = pool.spec, node.launch
    waits = pool.renew_at is not None and now < pool.renew_at
    if node.admitted_at is None or spec.mode == "observe" or waits:
        return ""
    each = float(spec.drain_timeout) + float(spec.launch_timeout)
    bound = float(spec.expire_after) + each * (pool.desired + spec.spares)
    age = (now - node.admitted_at).total_seconds()
    if spec.expire_after and age > bound:
        return f"it is {age:.0f} s old"
    drifts = spec.drift == "replace" and launch is not None and bool(launch.fingerprint)
    if drifts and launch is not None and launch.labels != spec.labels:
        return f"it was launched with {launch.labels}, and {spec.labels} is configured"
    return ""
