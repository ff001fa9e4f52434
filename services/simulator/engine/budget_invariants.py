"""Checks what must hold of the budget, and of faults that come one after the other."""

import math
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Final

from schemas.breaker_state import Breaker
from schemas.fault_signature import RACK
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import SagaStarted, SagaUnwound, saga_codec
from schemas.saga_params import SagaParams
from schemas.topology import POOLS, SAGAS
from services.bus.port import Stored
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.node_counts import automatic, is_gone, is_out
from services.pool_manager.planner.safety.fault_evidence import is_confirmed
from services.pool_manager.planner.safety.fault_waves import UnhealthyNode, belongs, unhealthy_since
from services.saga.definitions import DEFINITIONS
from services.simulator.engine.invariants import CLOCK_SECONDS, STORED_WITHIN_SECONDS, Invariants
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulation_context import SimulationContext, StoredRecords
from services.simulator.engine.virtual_time import moment
from services.simulator.engine.write_invariants import rate_that_counts

_pools = decoder(PoolRecord)
RESETS_EACH: Final = 3
"""Resets and reboots for each replacement that may begin, unless the budget says otherwise."""
GANG_TIMES: Final = 2
"""So many times the budget may be used where nodes share a job."""


class SlowWaveInvariants:
    """Counts, of each fault signature, the nodes that no second source accused."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
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


class BudgetInvariants:
    """Counts the sagas that remediate. Operators' requests are bound by no budget."""

    def __init__(
        self, simulation: SimulationContext, cloud: SimulatedCloud, invariants: Invariants
    ) -> None:
        """Report violations to `invariants`, which knows the sagas."""
        self._simulation = simulation
        self._cloud = cloud
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self.share_job: Callable[[str, Collection[tuple[str, datetime]]], bool] = lambda *_: False
        """Whether a node has run a job with one of these, about which a saga began at the time."""
        self.has_no_work: Callable[[str], bool] = lambda _: False
        """Whether a node's agent and its workload system say that it has none."""
        self._disrupting: dict[str, dict[str, None]] = {}
        """Pool -> its sagas that count against the budget."""
        self._begun: dict[tuple[str, str], dict[str, tuple[float, bool]]] = {}
        """Pool and rate -> when its sagas were decided on, and whether the cloud takes their
        nodes."""
        self._decisions: dict[str, str] = {}
        """Saga of a node that leaves with its rack -> the decision about the rack."""
        self._without_fault: set[str] = set()
        """Sagas of nodes that have no fault."""
        self._restores = 0
        """Of the whole store, so far."""
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        entry = saga_codec.decode(stored.data) if stream == SAGAS.name else None
        if isinstance(entry, SagaUnwound) and entry.step == "cordon":
            for begun in self._begun.values():
                begun.pop(self._decisions.get(entry.saga, entry.saga), None)  # it disrupted nothing
        if not isinstance(entry, SagaStarted) or entry.params.by:
            return
        if DEFINITIONS[entry.kind].remediates:
            pool = self._records.pool(entry.params.pool)
            opened = pool.open.get(entry.saga) if pool is not None else None
            if opened is not None and rate_that_counts(opened) == "voluntary":
                self._without_fault.add(entry.saga)
            self._disrupts(entry)

    def _disrupts(self, entry: SagaStarted) -> None:
        """A node is taken out of service; one that was out already does not count again."""
        known, node = self._invariants, entry.params.node
        pool = self._records.pool(entry.params.pool)
        record = self._records.node(node_key(entry.params.pool, node))
        if pool is None:
            known.fail(f"{entry.saga} begins in a pool that is not recorded", entry.saga)
            return
        if entry.params.gone and not self._cloud.count(node):
            return  # nothing is taken out of service
        logged = known.sagas.open.items()
        others = [(each.params.node, each.time) for name, each in logged if name != entry.saga]
        # Of sagas that are decided on together any may be the first with a log.
        others += [
            (each.node, each.since) for name, each in pool.open.items() if name != entry.saga
        ]
        times = GANG_TIMES if self.share_job(node, others) else 1
        if entry.saga not in known.sagas.vanished:  # begun again, it was counted before
            self._rate(entry, pool, times)
        if record is not None and is_out(record):
            return
        disrupting = self._disrupting.setdefault(entry.params.pool, {})
        before = (known.sagas.open[each].params for each in disrupting if each in known.sagas.open)
        out_before = {self._unit(pool, each) for each in before}
        unit = self._unit(pool, entry.params)
        if unit not in out_before and self._is_out(pool, unit, entry.saga):
            return  # its rack, by an operator's cordon or the repair of a node that was cordoned
        disrupting[entry.saga] = None
        if unit in out_before:
            return  # its rack is out of service already
        decided_at = {saga: each.since for saga, each in pool.open.items()}

        def later(saga: str) -> bool:
            """Whether a preempted node's saga was decided on after this one, and began first."""
            after = decided_at.get(saga, entry.time) > decided_at.get(entry.saga, entry.time)
            return after and known.sagas.started(saga).params.node in known.preempted

        free = (record is not None and record.lost) or self.has_no_work(node)
        opened = pool.open.get(entry.saga)
        is_fault = opened is None or rate_that_counts(opened) != "voluntary"
        out = [
            each
            for each in disrupting
            if each in known.sagas.open
            # What has no fault spends nothing that faults need.
            and not (is_fault and each in self._without_fault)
            and not (self._is_gap(known.sagas.started(each).params) or later(each))
            and not (free and self._is_overdue(known.sagas.started(each)))
        ]
        self._disrupting[entry.params.pool] = {
            each: None for each in disrupting if each in known.sagas.open
        }
        units = {self._unit(pool, known.sagas.started(each).params): each for each in out}
        out = list(units.values())
        wanted = rack_units.units(pool, pool.desired)
        allowed = times * budget_count(pool.spec.budget.max_unavailable, wanted, least=1)
        # The cloud does not wait for the budget, so leaving ahead of it does not either.
        if len(out) > allowed and node not in known.preempted:
            known.fail(
                f"{len(out)} nodes are out of service where {allowed} may be: {', '.join(out)}",
                *out,
            )

    def _is_overdue(self, saga: SagaStarted) -> bool:
        """Whether a saga waits for work that does not leave."""
        since, params = (moment(self._simulation.now()) - saga.time).total_seconds(), saga.params
        return params.drain == "wait" and since >= params.drain_timeout_seconds - CLOCK_SECONDS

    def _unit(self, pool: PoolRecord, params: SagaParams) -> str:
        """What a saga takes out of service: a node, or a part of its rack."""
        record = self._records.node(node_key(params.pool, params.node))
        return rack_units.unit_of(pool, record, {}) if record is not None else params.node

    def _is_out(self, pool: PoolRecord, unit: str, saga: str) -> bool:
        """Whether a node of a unit is out of service already, or is being replaced.

        What an operator has requested or the cloud takes counts from its decision: it is bound by
        no budget.
        """
        known, own = self._invariants, pool.open.get(saga)
        begun = {
            each.node
            for name, each in pool.open.items()
            if name != saga
            and (
                each.by
                or name in known.sagas.open
                or (own and each.since <= own.since and each.node in known.preempted)
            )
            if DEFINITIONS[each.kind].out_of_service
        }
        nodes = (each for each in self._records.live_nodes() if each.pool == pool.name)
        return unit in begun or any(
            (is_out(each) or each.node in begun) and rack_units.unit_of(pool, each, {}) == unit
            for each in nodes
        )

    def _is_gap(self, params: SagaParams) -> bool:
        """Whether the cloud removed the node that a saga is about, and Navarch has recorded it."""
        record = self._records.node(node_key(params.pool, params.node))
        return is_gone(record) and not self._cloud.count(params.node)

    def _rate(self, entry: SagaStarted, pool: PoolRecord, times: int) -> None:
        budget, resets = pool.spec.budget, DEFINITIONS[entry.kind].in_place
        opened = pool.open.get(entry.saga)
        rate = rate_that_counts(opened) if opened else "resets" if resets else "disruptions"
        decided = (opened.since if opened else entry.time).timestamp()
        window = float(budget.window) - STORED_WITHIN_SECONDS
        if self._invariants.restores != self._restores:
            # The alert about a restored store says so: what began since the backup is not counted.
            self._restores = self._invariants.restores
            self._begun.clear()
        begun = self._begun.setdefault((pool.name, rate), {})
        name = entry.saga
        if entry.params.fault_signature == RACK:  # one decision for all nodes of the rack
            name = f"{self._unit(pool, entry.params)} at {decided}"
            self._decisions[entry.saga] = name
        if name in begun:
            return
        preempted = entry.params.node in self._invariants.preempted
        # What the cloud took after the decision was no part of it, whichever log is stored first.
        recent = [
            at
            for at, unbound in begun.values()
            if abs(decided - at) < window and not (unbound and at > decided)
        ]
        begun[name] = decided, preempted
        limit: int | str = budget.max_replacements
        if resets and budget.max_resets is not None:
            limit = budget.max_resets
        if rate == "voluntary" and budget.max_voluntary is not None:
            limit = budget.max_voluntary
        if limit == "unlimited" or preempted:
            return
        wanted = rack_units.units(pool, pool.desired)
        most = times * budget_count(limit, wanted, least=3)
        most *= RESETS_EACH if resets and budget.max_resets is None else 1
        if rate == "voluntary" and budget.max_voluntary is None:
            most = math.ceil(most / 2)
        if len(recent) >= most:
            self._invariants.fail(
                f"{len(recent) + 1} nodes were {'reset or rebooted' if resets else 'taken out'} "
                f"within {float(budget.window):.0f} s where {most} may be",
                entry.saga,
            )


def budget_count(limit: int | str, desired: int, *, least: int) -> int:
    """Return a budget's count; of a percentage of the desired size at least `least`."""
    if isinstance(limit, int):
        return limit
    return max(least, math.ceil(float(limit.removesuffix("%")) * desired / 100 - 1e-9))
