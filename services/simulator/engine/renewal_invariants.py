"""Checks what must hold of healthy nodes that are replaced, or leave for want of work."""

import math
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.fault_signature import CONSOLIDATED, DRIFTED, RENEWALS
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import StepStarted, StepSucceeded, saga_codec
from schemas.topology import INSTANCES, SAGAS
from services.bus.port import Stored
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.node_counts import is_gone
from services.simulator.engine.budget_invariants import budget_count
from services.simulator.engine.invariants import CLOCK_SECONDS, Invariants
from services.simulator.engine.simulated_gangs import SimulatedGangs
from services.simulator.engine.simulation_context import (
    SimulationContext,
    StoredRecords,
    written_pool,
)

LOOK_SECONDS: Final = 31.0
"""Jobs that begin and end between two questions are not seen."""
IDLE: Final = "no work since"
"""Begins the reason of such a saga."""
EARLIEST: Final = 0.9
"""Share of `expire_after` before which no node leaves for its age."""

CENT: Final = 0.01
DEAR_FOR: Final = timedelta(minutes=15)
"""So long after a look at prices a dear node is replaced."""

_instances = decoder(InstanceRecord)


class IdleInvariants:
    """Looks at every record of a pool in which a node begins to leave."""

    def __init__(
        self, simulation: SimulationContext, workload: SimulatedGangs, invariants: Invariants
    ) -> None:
        """Report violations to `invariants`; `workload` knows which jobs ran where."""
        self._simulation = simulation
        self._workload = workload
        self._invariants = invariants
        self._known: set[str] = set()
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        pool = written_pool(stream, stored)
        if pool is None:
            return
        for saga in pool.open.keys() - self._known:
            self._known.add(saga)
            if pool.open[saga].reason.startswith(IDLE):
                self._leaves(pool, saga, pool.open[saga])

    def _leaves(self, pool: PoolRecord, saga: str, opened: OpenSaga) -> None:
        fail, now = self._invariants.fail, self._simulation.now()
        if opened.drain != "wait":
            fail(f"{saga} would end work that comes in between", saga)
        if pool.desired < pool.spec.min_nodes:
            fail(f"{saga} leaves {pool.desired} nodes where {pool.spec.min_nodes} must be", saga)
        slack = LOOK_SECONDS + CLOCK_SECONDS + 2 * self._simulation.skew_seconds
        begin, end = now - pool.spec.idle_after + slack, now - slack
        for job, at in self._workload.ran.get(opened.node, {}).items():
            lasted = at - self._workload.began[opened.node][job]
            if begin < at < end and lasted > LOOK_SECONDS:
                fail(f"{saga} removes {opened.node}, where {job} ran {now - at:.0f} s ago", saga)


class RenewalInvariants:
    """Looks at every record of a pool in which such a replacement is new."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        self._simulation = simulation
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._known: set[str] = set()
        """Such sagas that were in a pool's record."""
        self._admitted: set[str] = set()
        """Sagas whose new node is in service."""
        self._paid: dict[str, float] = {}
        """Instance -> dollars per hour, at which it was launched."""
        self._limits: dict[str, float] = {}
        """Node -> what it may cost, as it replaces a dearer one."""
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == f"KV_{INSTANCES.name}" and stored.data:
            with suppress(msgspec.DecodeError):
                self._on_instance(_instances.decode(stored.data))
        if stream == SAGAS.name:
            self._on_entry(saga_codec.decode(stored.data))
        if (pool := written_pool(stream, stored)) is not None:
            self._look(pool)

    def _on_entry(self, entry: object) -> None:
        """A node that is well stays in service until its successor is, where that comes first."""
        if isinstance(entry, StepSucceeded) and entry.step == "admit":
            self._admitted.add(entry.saga)
        if not isinstance(entry, StepStarted) or entry.step != "cordon":
            return
        if self._invariants.restored or self._invariants.destroyed:
            return
        params = self._invariants.sagas.started(entry.saga).params
        first = params.order == "provision_first" and params.fault_signature in RENEWALS
        if not first or params.promotes or not params.new_node:
            return
        if entry.saga not in self._admitted:
            text = f"{entry.saga} cordons {params.node} before {params.new_node} is in service"
            self._invariants.fail(text, entry.saga, params.node)

    def _look(self, pool: PoolRecord) -> None:
        opened = {
            saga: each for saga, each in pool.open.items() if each.fault_signature in RENEWALS
        }
        fresh = opened.keys() - self._known
        self._known |= fresh
        if not fresh or self._invariants.restored or self._invariants.destroyed:
            return
        # One whose machine has gone leaves a gap, or a spare that is promoted already fills it.
        there = {
            saga: each
            for saga, each in opened.items()
            if not is_gone(self._records.node(node_key(pool.name, each.node)))
        }
        serving = [saga for saga, each in there.items() if not self._is_spare(pool, each.node)]
        allowed = math.ceil(
            budget_count(
                pool.spec.budget.max_unavailable, rack_units.units(pool, pool.desired), least=1
            )
            / 2
        )
        units = {rack_units.unit_of_saga(pool, opened[saga], {}) for saga in serving}
        if len(units) > allowed or len(there) - len(serving) > 1:
            what = f"{len(there)} healthy nodes are replaced where {allowed} may be"
            self._invariants.fail(f"{what}, and one spare", *there)
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
        if opened.fault_signature == CONSOLIDATED:
            self._saves(pool, saga, opened, node)
            return
        slack = timedelta(seconds=CLOCK_SECONDS + 2 * self._simulation.skew_seconds)
        age = opened.since - node.admitted_at
        if age + slack < timedelta(seconds=EARLIEST * pool.spec.expire_after):
            seconds = age.total_seconds()
            self._invariants.fail(f"{saga} replaces {name}, which is {seconds:.0f} s old", saga)

    def _saves(self, pool: PoolRecord, saga: str, opened: OpenSaga, node: NodeRecord) -> None:
        """What is too dear is old enough, stays until its successor serves, and saves enough."""
        fail, spec, name = self._invariants.fail, pool.spec.consolidation, opened.node
        slack = timedelta(seconds=CLOCK_SECONDS + 2 * self._simulation.skew_seconds)
        age = opened.since - (node.admitted_at or opened.since)
        if age + slack < timedelta(seconds=spec.min_age):
            fail(f"{saga} replaces {name}, which is {age.total_seconds():.0f} s old", saga, name)
        if opened.order != "provision_first":
            fail(f"{saga} terminates {name} before its successor is there", saga, name)
        paid = self._paid.get(name, 0.0)
        if not 0 < opened.max_dollars <= paid * (1 - spec.min_saving / 100) + CENT:
            fail(f"{saga} replaces {name} of ${paid:g} for ${opened.max_dollars:g}", saga, name)
        self._limits[opened.new_node] = opened.max_dollars

    def _on_instance(self, record: InstanceRecord) -> None:
        self._paid[record.instance] = record.dollars_per_hour
        limit = self._limits.get(record.instance, 0.0)
        if limit and record.dollars_per_hour > limit:
            self._invariants.fail(
                f"{record.instance} costs ${record.dollars_per_hour:g}, and may cost ${limit:g}",
                record.instance,
            )


def due_words(pool: PoolRecord, node: NodeRecord, now: datetime) -> str:
    """Return why a node in service should have been replaced by now; empty: it need not.

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
    dear = pool.dear.get(node.node)
    if dear is not None and spec.consolidation.min_saving and now - dear.at <= DEAR_FOR:
        return f"it costs ${dear.dollars_per_hour:g}, and ${dear.cheaper:g} elsewhere"
    drifts = spec.drift == "replace" and launch is not None and bool(launch.fingerprint)
    if drifts and launch is not None and launch.labels != spec.labels:
        return f"it was launched with {launch.labels}, and {spec.labels} is configured"
    return ""
