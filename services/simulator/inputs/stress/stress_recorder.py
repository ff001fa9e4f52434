"""Records a stress run: counts, samples, and the steps of each repair.

It records the failures themselves and how the services react to them. It keeps only what the report
needs, so that memory stays flat.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from schemas import subjects
from schemas.enums import SagaKind
from schemas.pool_events import Scaled
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import WHOLE
from schemas.settings import BudgetSpec
from schemas.topology import EVENTS, HEALTH, NODES, SAGAS
from services.bus.port import Stored
from services.pool_manager.planner.disruption_budget import limit
from services.saga.definitions import DEFINITIONS
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.job_queues import JobQueues
from services.simulator.inputs.stress.node_report import NodeLives
from services.simulator.report.report_format import PoolBudget, PoolScaling, TimelinePoint

STEPS_MAX: Final = 60
"""Of one repair; further steps are left out."""
REASON_CHARS_MAX: Final = 200
STATES: Final = ("healthy", "degraded", "out", "starting")
"""How samples count a node: in service and healthy, in service and degraded, out of service
(unhealthy, lost, cordoned or leaving), not yet in service."""
SERVING: Final = frozenset({"healthy", "degraded"})
FACTS: Final = frozenset(
    {"verdict", "lost", "returned", "breaker-opened", "breaker-closed", "scaled"}
)
"""Events that the report counts."""


class _Node(msgspec.Struct, frozen=True, gc=False):
    """The fields of a node's record that decide its state; the decoder skips the rest."""

    node: str
    pool: str = ""
    state: str = "launching"
    cordoned: bool = False
    lost: bool = False
    health: str = "unknown"

    def counts_as(self) -> str:
        """One of STATES; empty: terminated."""
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
    """The fields of a saga's entry that the report shows."""

    saga: str
    kind: SagaKind | Literal[""] = ""
    params: _Params = _Params()
    step: str = ""
    reason: str = ""


class _Event(msgspec.Struct, frozen=True, gc=False):
    """The fields of an event that the report shows."""

    node: str = ""
    status: str = ""
    rule: str = ""
    reason: str = ""
    breaker_cause: str = ""


_nodes = msgspec.json.Decoder(_Node)
_healths = msgspec.json.Decoder(_Health)
_entries = msgspec.json.Decoder(_Entry)
_events = msgspec.json.Decoder(_Event)
_scaled = msgspec.json.Decoder(Scaled)


@dataclass(slots=True)
class Repair:
    """One repair: a node out of service, until it or its successor is in service."""

    saga: str
    kind: str
    pool: str
    node: str
    new_node: str
    fault_signature: str
    reason: str
    failed_at: float | None
    """When its machine failed; None: it did not."""
    noticed_at: float | None
    began_at: float
    ended_at: float | None = None
    outcome: str = ""
    steps: list[tuple[float, str, str]] = field(default_factory=list)
    """Moment, step, status."""

    @property
    def unhealthy_since(self) -> float:
        """Return when the repair's node became unhealthy."""
        known = [each for each in (self.failed_at, self.noticed_at) if each is not None]
        return min((*known, self.began_at))

    @property
    def seconds(self) -> float | None:
        """Return the seconds until a failure's place was filled again; None: not filled."""
        if self.ended_at is None or self.outcome != "done":
            return None
        return self.ended_at - self.unhealthy_since


class StressRecorder:
    """Counts, samples and repairs of one run."""

    def __init__(self, pools: Mapping[str, int], budgets: Mapping[str, BudgetSpec]) -> None:
        self._specs = budgets
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
        self.lives = NodeLives()
        self.done: list[ScheduledFailure] = []
        """Failures that hit a machine."""
        self.repairs: list[Repair] = []
        self.samples: list[TimelinePoint] = []
        self.budgets = {
            name: PoolBudget(pool=name, nodes=size, breaker_opened=Counter())
            for name, size in pools.items()
        }
        self._opened_at: dict[str, float] = {}
        """Pool -> when its breaker opened, while it is open."""
        self.machine_seconds: dict[str, float] = dict.fromkeys(pools, 0.0)
        """Pool -> total time for which its machines existed."""
        self.serving_seconds: dict[str, float] = dict.fromkeys(pools, 0.0)
        """Pool -> total time for which its machines were in service."""
        self.idle_seconds: dict[str, float] = dict.fromkeys(pools, 0.0)
        """Pool -> total time for which those had no job."""
        self.scaling: dict[str, PoolScaling] = {}
        """Of pools with an autoscaler."""
        self._serving: Counter[str] = Counter()
        """Pool -> nodes in service."""
        self._open: dict[str, Repair] = {}
        self._taking: dict[str, str] = {}
        """Open saga that counts against the budget -> its pool."""
        self._states: dict[str, str] = {}
        self._seen: dict[str, set[str]] = {}
        self._failed: dict[str, tuple[int, float]] = {}
        """Node -> severity of the worst failure of its machine, and when it happened."""
        self._noticed: dict[str, float] = {}
        self._since = Counter[str]()

    # --- failures ---------------------------------------------------------------------------------

    def inject(self, failure: ScheduledFailure, node: str, at: float) -> None:
        """A failure hit a machine."""
        self.done.append(failure)
        self.lives.fail(at, node, failure)
        self.struck[failure.type] += 1
        self.causes[failure.cause] += 1
        if failure.xid:
            self.xids[failure.xid] += 1
        severity = _severity(failure)
        known = self._failed.get(node, (-1, 0.0))[0]
        # Of light failures the last may have been the one too many.
        if node not in self._noticed and (severity > known or severity == known == 0):
            self._failed[node] = severity, at
        self._since["failures"] += 1

    def miss(self, failure: ScheduledFailure) -> None:
        """A failure found no machine to hit."""
        self.missed[failure.cause] += 1

    def recover(self, at: float, failure: ScheduledFailure, node: str, *, healthy: bool) -> None:
        """A failure passed by itself; `healthy`: its machine has no other."""
        self.lives.add(at, node, f"{failure.type} is over")
        self.recovered[failure.type] += 1
        self._since["recoveries"] += 1
        if healthy:
            self._failed.pop(node, None)
            self._noticed.pop(node, None)

    # --- the services' reaction -------------------------------------------------------------------

    def record(self, at: float, stream: str, stored: Stored) -> None:
        """Record a stored message."""
        if not stored.data:
            return
        if stream == SAGAS.name:
            self._saga(at, stored)
        elif stream == f"KV_{NODES.name}":
            self._node(at, stored)
        elif stream == f"KV_{HEALTH.name}":
            self._health(stored)
        elif stream == EVENTS.name:
            self._event(at, stored)

    def _node(self, at: float, stored: Stored) -> None:
        record = _nodes.decode(stored.data)
        before, after = self._states.get(record.node, ""), record.counts_as()
        if before == after:
            return
        self.lives.change(at, record.node, record.pool, after)
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
        if fact not in FACTS:
            return
        event = _events.decode(stored.data)
        subject = subjects.parse_pool_event(stored.subject)
        pool = subject.pool if subject else ""
        match fact:
            case "verdict":
                self.verdicts[event.status] += 1
                self.lives.add(at, event.node, f"judged {event.status}: {event.reason}")
                if event.status == "unhealthy":
                    self._noticed.setdefault(event.node, at)
            case "lost":
                self.lost += 1
                self.lives.add(at, event.node, "lost: it is silent")
                self._noticed.setdefault(event.node, at)
            case "returned":
                self.returned += 1
                self.lives.add(at, event.node, "returned")
            case "breaker-opened" if pool in self.budgets:
                self.budgets[pool].breaker_opened[event.breaker_cause] += 1
                self._opened_at[pool] = at
            case "breaker-closed":
                self._close_breaker(pool, at)
            case "scaled" if pool in self.scaling:
                scaled = _scaled.decode(stored.data)
                self.scaling[pool].ups += scaled.nodes > scaled.previous
                self.scaling[pool].downs += scaled.nodes < scaled.previous

    def _close_breaker(self, pool: str, at: float) -> None:
        if pool in self._opened_at:
            self.budgets[pool].breaker_open_seconds += at - self._opened_at.pop(pool)

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
            self.lives.add(at, params.node, f"{entry.kind} begins")
            self._open[entry.saga] = repair
            self.repairs.append(repair)

    def _end(self, at: float, entry: _Entry, status: str) -> None:
        self._taking.pop(entry.saga, None)
        repair = self._open.pop(entry.saga, None)
        if repair is None:
            return
        repair.outcome, repair.ended_at = status, at
        self.lives.repair(at, repair.node, repair.kind, status)
        if status == "done":
            self._since["repaired"] += 1
            self._failed.pop(repair.node, None)
            self._noticed.pop(repair.node, None)

    def _out(self, pool: str) -> int:
        return sum(1 for each in self._taking.values() if each == pool)

    # --- samples ----------------------------------------------------------------------------------

    def sample(
        self,
        at: float,
        wanted: Mapping[str, int],
        machines: Mapping[str, int],
        records: Sequence[PoolRecord] = (),
        jobs: JobQueues | None = None,
    ) -> None:
        """Sample the fleet; `wanted` and `machines`: pool -> nodes wanted and existing.

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
            self._sample_scaling(record, passed)
        for pool, count in (jobs.idle() if jobs is not None else {}).items():
            self.idle_seconds[pool] += count * passed
        since, self._since = self._since, Counter()
        self.samples.append(
            TimelinePoint(
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

    def _sample_scaling(self, record: PoolRecord, passed: float) -> None:
        size, spec = record.desired, record.spec
        pool = self.scaling.setdefault(
            record.name,
            PoolScaling(
                pool=record.name,
                nodes_min=spec.min_nodes,
                nodes_max=spec.max_nodes,
                least=size,
                most=size,
                kept_seconds=defaultdict(float),
            ),
        )
        pool.least, pool.most = min(pool.least, size), max(pool.most, size)
        if record.advice is not None:
            pool.kept_seconds[record.advice.limited_by] += passed

    def finish(self, at: float) -> None:
        """The run is over."""
        for pool in list(self._opened_at):
            self._close_breaker(pool, at)


def _severity(failure: ScheduledFailure) -> int:
    """How likely this failure is the one that takes the node out of service."""
    if failure.fatal:
        return 2
    return 1 if failure.type == "network" else 0
