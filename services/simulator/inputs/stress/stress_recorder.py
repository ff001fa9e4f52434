"""Follows a stress run: what is stored becomes counts, samples and the story of each repair.

Both are recorded: what is true (failures, and their end) and what the services make of
it. Nothing is kept but what the report needs, so that memory stays flat.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from schemas import subjects
from schemas.enums import SagaKind
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import WHOLE
from schemas.settings import BudgetSpec
from schemas.topology import EVENTS, HEALTH, NODES, SAGAS
from services.bus.port import Stored
from services.pool_manager.planner.disruption_budget import limit
from services.pool_manager.sagas import DEFINITIONS
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.job_queues import JobQueues
from services.simulator.inputs.stress.recorded_values import BudgetUse, Repair, Sample
from services.simulator.inputs.stress.scaling_recorder import Scaling

STEPS_MAX: Final = 60
"""Of one repair; a longer story is cut off."""
REASON_CHARS_MAX: Final = 200
STATES: Final = ("healthy", "degraded", "out", "starting")
"""What a node counts as in the samples: in service and well, in service and not quite, out of
service (unhealthy, lost, cordoned or leaving), not yet in service."""
SERVING: Final = frozenset({"healthy", "degraded"})


class _Node(msgspec.Struct, frozen=True, gc=False):
    """Of a node's record, what its state depends on; the decoder skips the rest."""

    node: str
    pool: str = ""
    state: str = "launching"
    cordoned: bool = False
    lost: bool = False
    health: str = "unknown"

    def counts_as(self) -> str:
        """One of STATES; empty: it is gone."""
        if self.state == "terminated":
            return ""
        if self.state in ("launching", "registered"):
            return "starting"
        if self.state == "leaving" or self.cordoned or self.lost or self.health == "unhealthy":
            return "out"
        return "degraded" if self.health == "degraded" else "healthy"


class _Note(msgspec.Struct, frozen=True, gc=False):
    id: str
    rule: str = ""


class _Health(msgspec.Struct, frozen=True, gc=False):
    node: str
    recent: tuple[_Note, ...] = ()


class _Params(msgspec.Struct, frozen=True, gc=False):
    pool: str = ""
    node: str = ""
    new_node: str = ""
    by: str = ""
    reason: str = ""
    fault_signature: str = ""


class _Entry(msgspec.Struct, frozen=True, gc=False):
    """Of a saga's entry, what the report shows."""

    saga: str
    kind: SagaKind | Literal[""] = ""
    params: _Params = _Params()
    step: str = ""
    reason: str = ""


class _Event(msgspec.Struct, frozen=True, gc=False):
    """Of a fact, what the report shows."""

    node: str = ""
    status: str = ""
    rule: str = ""
    reason: str = ""
    breaker_cause: str = ""


class _Scaled(msgspec.Struct, frozen=True, gc=False):
    previous: int
    nodes: int


_nodes = msgspec.json.Decoder(_Node)
_healths = msgspec.json.Decoder(_Health)
_entries = msgspec.json.Decoder(_Entry)
_events = msgspec.json.Decoder(_Event)
_scaled = msgspec.json.Decoder(_Scaled)


class StressRecorder:
    """What is noted while the run goes on."""

    def __init__(self, pools: Mapping[str, int], budgets: Mapping[str, BudgetSpec]) -> None:
        """Follow pools of these sizes and budgets."""
        self._specs = budgets
        self.begun = 0.0
        self.counts: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        """By type."""
        self.xids: Counter[int] = Counter()
        self.causes: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.recovered: Counter[str] = Counter()
        self.lost = self.returned = 0
        self.done: list[ScheduledFailure] = []
        """Failures that struck a machine."""
        self.repairs: list[Repair] = []
        self.samples: list[Sample] = []
        self.budgets = {name: BudgetUse(name, nodes=size) for name, size in pools.items()}
        self.machine_seconds: dict[str, float] = dict.fromkeys(pools, 0.0)
        """Pool -> for how long its machines existed, all together."""
        self.serving_seconds: dict[str, float] = dict.fromkeys(pools, 0.0)
        """Pool -> for how long machines of it were in service, all together."""
        self.idle_seconds: dict[str, float] = dict.fromkeys(pools, 0.0)
        """Pool -> for how long those had nothing to do, all together."""
        self.scaling: dict[str, Scaling] = {}
        """Of pools with an autoscaler."""
        self._serving: Counter[str] = Counter()
        """Pool -> nodes in service."""
        self._open: dict[str, Repair] = {}
        self._taking: dict[str, str] = {}
        """Open saga that counts against the budget -> its pool."""
        self._states: dict[str, str] = {}
        self._seen: dict[str, set[str]] = {}
        self._failed: dict[str, tuple[int, float]] = {}
        """Node -> how grave the gravest is that has struck its machine, and when that was."""
        self._noticed: dict[str, float] = {}
        self._since = Counter[str]()

    # --- what is true -------------------------------------------------------------------------

    def inject(self, failure: ScheduledFailure, node: str, at: float) -> None:
        """A machine was struck."""
        self.done.append(failure)
        self.struck[failure.type] += 1
        self.causes[failure.cause] += 1
        if failure.xid:
            self.xids[failure.xid] += 1
        grave = _gravity(failure)
        known = self._failed.get(node, (-1, 0.0))[0]
        # Of what is light the last one may have been the one too many.
        if node not in self._noticed and (grave > known or grave == known == 0):
            self._failed[node] = grave, at
        self._since["failures"] += 1

    def miss(self, failure: ScheduledFailure) -> None:
        """A failure found no machine that could fail."""
        self.missed[failure.cause] += 1

    def recover(self, failure: ScheduledFailure, node: str, *, well: bool) -> None:
        """A failure passed by itself; `well`: its machine has no other."""
        self.recovered[failure.type] += 1
        self._since["recoveries"] += 1
        if well:
            self._failed.pop(node, None)
            self._noticed.pop(node, None)

    # --- what the services make of it ---------------------------------------------------------

    def stored(self, at: float, stream: str, stored: Stored) -> None:
        """Something was stored."""
        if not stored.data:
            return
        if stream == SAGAS.name:
            self._saga(at, stored)
        elif stream == f"KV_{NODES.name}":
            self._node(stored)
        elif stream == f"KV_{HEALTH.name}":
            self._health(stored)
        elif stream == EVENTS.name:
            self._event(at, stored)

    def _node(self, stored: Stored) -> None:
        record = _nodes.decode(stored.data)
        before, after = self._states.get(record.node, ""), record.counts_as()
        if before == after:
            return
        self._serving[record.pool] += (after in SERVING) - (before in SERVING)
        if before:
            self.counts[before] -= 1
        if after:
            self.counts[after] += 1
            self._states[record.node] = after
        else:
            del self._states[record.node]
            self._seen.pop(record.node, None)

    def _health(self, stored: Stored) -> None:
        record = _healths.decode(stored.data)
        known = self._seen.get(record.node, set())
        self.rules.update(each.rule for each in record.recent if each.rule and each.id not in known)
        if record.recent:
            self._seen[record.node] = {each.id for each in record.recent}

    def _event(self, at: float, stored: Stored) -> None:
        fact = stored.subject.rpartition(".")[2]
        if fact == "verdict":
            event = _events.decode(stored.data)
            self.verdicts[event.status] += 1
            if event.status == "unhealthy":
                self._noticed.setdefault(event.node, at)
        elif fact == "lost":
            self.lost += 1
            self._noticed.setdefault(_events.decode(stored.data).node, at)
        elif fact == "returned":
            self.returned += 1
        elif fact in ("breaker-opened", "breaker-closed"):
            pool = subjects.parse_pool_event(stored.subject)
            budget = self.budgets.get(pool.pool) if pool else None
            if budget is None:
                return
            if fact == "breaker-opened":
                budget.opened[_events.decode(stored.data).breaker_cause] += 1
                budget.opened_at = at
            elif budget.opened_at is not None:
                budget.open_seconds += at - budget.opened_at
                budget.opened_at = None
        elif fact == "scaled":
            pool = subjects.parse_pool_event(stored.subject)
            if pool is not None and pool.pool in self.scaling:
                scaled = _scaled.decode(stored.data)
                self.scaling[pool.pool].scaled(scaled.previous, scaled.nodes)

    def _saga(self, at: float, stored: Stored) -> None:
        entry = _entries.decode(stored.data)
        *_, step, status = stored.subject.split(".")
        if step == WHOLE and status == "started":
            self._begin(at, entry)
            return
        repair = self._open.get(entry.saga)
        if repair is not None and len(repair.steps) < STEPS_MAX:
            repair.steps.append((at, entry.step, status))
        if status in ("done", "unwound") and step == WHOLE:
            self._end(at, entry, status)

    def _begin(self, at: float, entry: _Entry) -> None:
        params = entry.params
        assert entry.kind
        if DEFINITIONS[entry.kind].disrupts:
            self._taking[entry.saga] = params.pool
            budget = self.budgets[params.pool]
            budget.begun += 1
            budget.most = max(budget.most, self._out(params.pool))
        if DEFINITIONS[entry.kind].remediates:
            repair = Repair(
                saga=entry.saga,
                kind=entry.kind,
                pool=params.pool,
                node=params.node,
                new_node=params.new_node,
                fault_signature=params.fault_signature,
                reason=params.reason[:REASON_CHARS_MAX],
                failed_at=self._failed[params.node][1] if params.node in self._failed else None,
                noticed_at=self._noticed.get(params.node),
                began_at=at,
            )
            self._open[entry.saga] = repair
            self.repairs.append(repair)

    def _end(self, at: float, entry: _Entry, status: str) -> None:
        self._taking.pop(entry.saga, None)
        repair = self._open.pop(entry.saga, None)
        if repair is None:
            return
        repair.outcome, repair.ended_at = status, at
        if status == "done":
            self._since["repaired"] += 1
            self._failed.pop(repair.node, None)
            self._noticed.pop(repair.node, None)

    def _out(self, pool: str) -> int:
        return sum(1 for each in self._taking.values() if each == pool)

    # --- at intervals -------------------------------------------------------------------------

    def sample(
        self,
        at: float,
        wanted: Mapping[str, int],
        machines: Mapping[str, int],
        records: Sequence[PoolRecord] = (),
        jobs: JobQueues | None = None,
    ) -> None:
        """Sample the fleet; `wanted` and `machines`: of each pool, the nodes wanted and existing.

        `records`: of pools with an autoscaler.
        """
        passed = at - (self.samples[-1].at if self.samples else 0.0)
        for pool, count in machines.items():
            self.machine_seconds[pool] += count * passed
            self.serving_seconds[pool] += min(self._serving[pool], count) * passed
        for pool, budget in self.budgets.items():
            budget.limit = limit(self._specs[pool].max_unavailable, wanted.get(pool, 0))
            if self._out(pool) >= budget.limit:
                budget.full_seconds += passed
        for record in records:
            self.scaling.setdefault(record.name, Scaling(record.name)).sample(record, passed)
        for pool, count in (jobs.idle() if jobs is not None else {}).items():
            self.idle_seconds[pool] += count * passed
        since, self._since = self._since, Counter()
        self.samples.append(
            Sample(
                at=at,
                **{state: self.counts[state] for state in STATES},
                wanted=sum(wanted.values()),
                machines=sum(machines.values()),
                failures=since["failures"],
                recoveries=since["recoveries"],
                repaired=since["repaired"],
                repairing=len(self._open),
                waiting=jobs.waiting if jobs is not None else 0,
                running=jobs.running if jobs is not None else 0,
            )
        )

    def finish(self, at: float) -> None:
        """The run is over."""
        for budget in self.budgets.values():
            if budget.opened_at is not None:
                budget.open_seconds += at - budget.opened_at
                budget.opened_at = None


def _gravity(failure: ScheduledFailure) -> int:
    """How surely it is this failure that takes a node out of service."""
    if failure.fatal:
        return 2
    return 1 if failure.type == "network" else 0
