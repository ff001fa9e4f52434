"""Checks what must hold of nodes with an announced restart or pause, and of orders.

What is announced is what the agents have stored. A node is drained when that is due and no earlier,
once for each restart; it is not replaced for the restart or for the silence in it; and it is given
back once its next boot has been checked.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from schemas.messages import decoder
from schemas.names import saga_number
from schemas.node_events import BootChecked, ProviderNotice, Registered, node_codec
from schemas.node_records import DRAINED_BEFORE_SECONDS, NodeRecord, node_key
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import SagaDone, SagaStarted, StepStarted, StepSucceeded, saga_codec
from schemas.topology import EVENTS, NODES, SAGAS
from services.bus.port import Stored
from services.notifier.node_references import taken_at
from services.notifier.workload.workload_notifier import WorkloadOrder
from services.notifier.workload_steps import EVICTION_SECONDS_MAX
from services.notifier.workload_steps import LOOK_SECONDS as WORK_LOOK_SECONDS
from services.pool_manager.planner import announced_restarts as restarts
from services.pool_manager.planner.cloud_notices import doubted_until
from services.pool_manager.planner.node_counts import busy, is_for_silence
from services.simulator.engine.invariants import CLOCK_SECONDS, Invariants
from services.simulator.engine.rogue_agents import SECOND
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import (
    TIMEOUT_SECONDS,
    SimulatedProcess,
    SimulationContext,
    StoredRecords,
)
from services.simulator.engine.virtual_time import TASK_OWNER, moment

KNOWN_SECONDS: Final = WORK_LOOK_SECONDS + TIMEOUT_SECONDS
"""Within so long a notifier that reaches the bus knows a notice, or that it was withdrawn."""
DRAINED_WITHIN_SECONDS: Final = 75.0
"""So long after its drain is due a node is in service at most."""
RETURNED_WITHIN_SECONDS: Final = 300.0
"""So long after its boot checks it is out of service at most: longer than any fault lasts."""
EARLY_SECONDS: Final = 1.0
"""Between a service's reading of the clock and the write that depends on it."""
HEARD_WITHIN_SECONDS: Final = 45.0
"""So long after a boot a replica that stalled may decide without knowing of it."""
LOOK_SECONDS: Final = 5.0
ALIGNED_WITHIN_SECONDS: Final = 30.0
"""So long after it stood still a process gives orders that it had begun before."""

_nodes = decoder(NodeRecord)


@dataclass(slots=True)
class _Taking:
    """When the cloud takes a node, by the notices in its record."""

    at: datetime | None = None
    before: datetime | None = None
    """As it was up to the last change."""
    changed_at: float = 0.0


class WorkloadInvariants:
    """One cordon and one drain for each saga, and no work is evicted before its deadline."""

    def __init__(
        self, simulation: SimulationContext, workload: SimulatedWorkload, invariants: Invariants
    ) -> None:
        """Report violations to `invariants`, which knows the sagas."""
        self._simulation = simulation
        self._invariants = invariants
        self._changed: dict[tuple[str, str], str] = {}
        """Verb and key of each order that changed something -> its node."""
        self._drains: dict[str, StepStarted] = {}
        self._taking: dict[str, _Taking] = {}
        """Node -> when the cloud takes it."""
        workload.on_order = self._on_order
        workload.on_returned = self._on_returned
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == SAGAS.name:
            entry = saga_codec.decode(stored.data)
            if isinstance(entry, StepStarted) and entry.step == "drain":
                self._drains[entry.saga] = entry
        elif stream == f"KV_{NODES.name}" and stored.data:
            node = stored.subject.rpartition(".")[2]
            if b'"notices":' in stored.data or node in self._taking:
                self._noticed(node, taken_at(_nodes.decode(stored.data)))

    def _noticed(self, node: str, at: datetime | None) -> None:
        known = self._taking.setdefault(node, _Taking())
        if at != known.at:
            known.before, known.at, known.changed_at = known.at, at, self._simulation.now()

    def _on_order(self, verb: str, order: WorkloadOrder) -> None:
        known, node = self._invariants, order.node.node
        if verb == "uncordon":
            self._uncordoned(node, order.saga)
            return
        change, actor = (verb, order.key), TASK_OWNER.get()
        lost = known.restored or SAGAS.name in known.destroyed
        # Nothing can stop what a process does that stood still before the call; it is undone.
        stood = isinstance(actor, SimulatedProcess) and actor.has_stalled_within(
            ALIGNED_WITHIN_SECONDS
        )
        if change in self._changed and not lost and not stood:
            known.fail(f"{order.key} changes {node} by a second {verb}", node, order.saga)
        self._changed[change] = node
        if verb == "evict" and not lost:
            self._evicted(order)

    def _uncordoned(self, node: str, saga: str) -> None:
        """An order that takes effect after a later saga's cordon: that cordon may be repeated."""
        for verb, key in [each for each, name in self._changed.items() if name == node]:
            if verb == "cordon" and saga_number(key.partition("/")[0]) > saga_number(saga):
                del self._changed[verb, key]

    def _on_returned(self, node: str) -> None:
        """Work that comes back is evicted again, if a delivery of the drain is repeated."""
        for change in [each for each, name in self._changed.items() if name == node]:
            if change[0] == "evict":
                del self._changed[change]

    def _evicted(self, order: WorkloadOrder) -> None:
        node, step = order.node.node, self._drains.get(order.saga)
        params = self._invariants.sagas.started(order.saga).params
        if params.drain == "immediate":
            return
        ends = self._ends(node, step.deadline if step is not None else None)
        if not ends:
            self._invariants.fail(f"work on {node} is evicted without a deadline", node, order.saga)
            return
        # A deadline is by the coordinator's clock, and the wait by the notifier's.
        early = EVICTION_SECONDS_MAX + CLOCK_SECONDS + 2 * self._simulation.skew_seconds
        left = min(ends) - moment(self._simulation.now())
        if left > timedelta(seconds=early):
            self._invariants.fail(
                f"work on {node} is evicted {left.total_seconds():.0f} s before its deadline",
                *(node, order.saga),
            )

    def _ends(self, node: str, deadline: datetime | None) -> list[datetime]:
        """When a drain may end: at its deadline, or before the cloud takes the node."""
        taking, now = self._taking.get(node, _Taking()), self._simulation.now()
        may_not_know = (
            now - taking.changed_at < KNOWN_SECONDS
            or self._simulation.reconnected_at > taking.changed_at
            or self._simulation.network.any
        )
        by_cloud = (taking.at, taking.before if may_not_know else None)
        early = timedelta(seconds=DRAINED_BEFORE_SECONDS)
        found = (deadline, *(each - early for each in by_cloud if each is not None))
        return [each for each in found if each is not None]


@dataclass(slots=True)
class _Announced:
    notice: ProviderNotice
    withdrawn: bool = False
    drained: bool = False
    """A drain for it is done, and its node was not uncordoned since."""

    @property
    def starts_at(self) -> datetime:
        return self.notice.deadline or self.notice.time

    def repeated(self, event: ProviderNotice) -> None:
        """An agent says it again, or that it is withdrawn; another restart leaves it in force."""
        self.withdrawn = event.withdrawn
        early = timedelta(seconds=restarts.EARLY_SECONDS)
        if not event.withdrawn and event.time < self.starts_at - early:
            self.notice = event

    def silence_ends(self) -> datetime:
        """When the silence of its node is none that was announced any more."""
        freeze = self.notice.effect == "freeze"
        seconds = restarts.FREEZE_SECONDS_MAX if freeze else restarts.RETURN_SECONDS_MAX
        return self.starts_at + timedelta(seconds=seconds)


class RestartInvariants:
    """Compares what is announced with what becomes of the nodes."""

    def __init__(
        self, simulation: SimulationContext, cloud: SimulatedCloud, invariants: Invariants
    ) -> None:
        """Report violations to `invariants`, which knows the sagas."""
        self._simulation = simulation
        self._cloud = cloud
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._announced: dict[str, dict[str, _Announced]] = {}
        """Node -> digest -> what the cloud announced of it."""
        self._boots: dict[str, tuple[str, datetime]] = {}
        """Node -> its last boot, and when its registration was stored."""
        self._checked: dict[str, str] = {}
        """Node -> the last boot whose checks it has passed."""
        self._sagas: dict[str, SagaStarted] = {}
        self._overdue: dict[str, tuple[str, float]] = {}
        """Node -> what is overdue for it, and since when."""
        self._looked = 0.0
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == EVENTS.name:
            self._event(stored)
        if not self._announced:
            return
        if stream == SAGAS.name:
            self._logged(stored)
        elif stream == f"KV_{NODES.name}" and stored.data:
            self._compare(_nodes.decode(stored.data))
        if self._simulation.now() - self._looked >= LOOK_SECONDS:
            self._looked = self._simulation.now()
            self._look()

    def _event(self, stored: Stored) -> None:
        event = node_codec.decode(stored.data)
        if isinstance(event, Registered):
            if self._boot(event.node) != event.boot_id:
                self._boots[event.node] = event.boot_id, stored.time
        elif isinstance(event, BootChecked) and event.ok:
            self._checked[event.node] = event.boot_id
        elif isinstance(event, ProviderNotice):
            known = self._announced.get(event.node, {}).get(event.notice)
            if known is not None:
                known.repeated(event)
            elif not event.withdrawn and event.effect in restarts.SILENCING:
                self._announced.setdefault(event.node, {})[event.notice] = _Announced(event)

    # --- sagas ----------------------------------------------------------------------------------

    def _logged(self, stored: Stored) -> None:
        entry = saga_codec.decode(stored.data)
        if isinstance(entry, SagaStarted) and not self._unknowable:
            self._sagas[entry.saga] = entry
            self._begins(entry)
        elif isinstance(entry, SagaDone | StepSucceeded) and (saga := self._sagas.get(entry.saga)):
            for digest, each in self._announced.get(saga.params.node, {}).items():
                if isinstance(entry, StepSucceeded):
                    each.drained = each.drained and entry.step != "uncordon"
                elif saga.kind == "drain" and saga.params.sole_notice == digest:
                    each.drained = True

    def _begins(self, saga: SagaStarted) -> None:
        params, now = saga.params, self._simulation.clock.now()
        fail = self._invariants.fail
        about = self._announced.get(params.node, {})
        meant = about.get(params.notice)
        if params.by or not about:
            return
        if meant is not None and saga.kind != "drain":
            fail(f"{saga.saga} begins for an announced restart", saga.saga, params.node)
        elif meant is not None:
            pool = self._records.pool(params.pool)
            opened = pool.open.get(saga.saga) if pool else None
            decided = opened.since if opened else saga.time
            early = meant.starts_at - decided - _ahead(params.drain_timeout_seconds)
            if early > timedelta(seconds=EARLY_SECONDS):
                fail(f"{saga.saga} begins {early.total_seconds():.0f} s early", saga.saga)
            late = timedelta(seconds=HEARD_WITHIN_SECONDS)
            over = self._has_restarted(meant) and decided > self._boots[params.node][1] + late
            # The boot of another machine that registers as the node is refused.
            over = over and not self._boot(params.node).endswith(SECOND)
            if meant.drained or over:
                fail(f"{params.node} is drained again for one restart", saga.saga, params.node)
        elif is_for_silence(saga.kind, params) and self._is_expected(params.node, params.pool, now):
            fail(f"{saga.saga} begins for a silence that was announced", saga.saga, params.node)

    def _is_expected(self, node: str, pool: str, now: datetime) -> bool:
        record = self._records.node(node_key(pool, node))
        if record is None or record.lost_at is None or not self._cloud.count(node):
            return False
        early = timedelta(seconds=restarts.EARLY_SECONDS)
        # While NODES refuses writes a notice waits, and may come after the silence.
        return any(
            each.starts_at - early <= record.lost_at and now < each.silence_ends()
            for digest, each in self._announced.get(node, {}).items()
            if digest in record.notices and not (each.withdrawn or self._has_restarted(each))
        )

    # --- in time --------------------------------------------------------------------------------

    def _compare(self, node: NodeRecord) -> None:
        """Note what is due for a node, from when on."""
        before, due = self._overdue.get(node.node), self._due(node)
        if not due:
            self._overdue.pop(node.node, None)
        elif before is None or before[0] != due:
            self._overdue[node.node] = due, self._simulation.now()

    def _due(self, node: NodeRecord) -> str:
        pool, now = self._records.pool(node.pool), self._simulation.clock.now()
        if pool is None or self._is_left_alone(node, pool, now):
            return ""
        about = self._announced.get(node.node, {}).values()
        awaited = [
            each
            for each in about
            if each.notice.effect in restarts.RESTARTING
            and not (each.withdrawn or self._has_restarted(each))
            and now < each.silence_ends()
        ]
        if node.cordoned:
            back = self._boot(node.node) == self._checked.get(node.node)
            return "out of service" if node.sole_notice and not awaited and back else ""
        due = now + _ahead(float(pool.spec.drain_timeout))
        return "in service" if any(each.starts_at <= due for each in awaited) else ""

    def _is_left_alone(self, node: NodeRecord, pool: PoolRecord, now: datetime) -> bool:
        """Whether anything else keeps the pool-manager from draining or returning a node."""
        doubted = doubted_until(node)
        return (
            not pool.spec.health.auto_replace
            or pool.spec.mode == "observe"
            or (node.state != "active" or node.lost or node.health == "unhealthy")
            or (node.node in busy(pool) or node.held_until is not None)
            or (pool.breaker.forced or pool.breaker.cause == "restored")
            or (doubted is not None and doubted > now)
        )

    def _look(self) -> None:
        now = self._simulation.now()
        if self._unknowable or self._simulation.server.refusing:
            self._overdue = {name: (what, now) for name, (what, _) in self._overdue.items()}
            return
        for node in self._records.live_nodes():
            if node.node in self._announced:
                self._compare(node)
        for name, (what, since) in self._overdue.items():
            within = DRAINED_WITHIN_SECONDS if what == "in service" else RETURNED_WITHIN_SECONDS
            if now - since > within:
                text = f"{name} is {what} for {now - since:.0f} s beside an announced restart"
                self._invariants.fail(text, name)

    def _has_restarted(self, each: _Announced) -> bool:
        return self._boot(each.notice.node) not in ("", each.notice.boot_id)

    def _boot(self, node: str) -> str:
        return self._boots[node][0] if node in self._boots else ""

    @property
    def _unknowable(self) -> bool:
        """Whether the services may have lost what was announced."""
        return bool(self._invariants.destroyed) or self._invariants.restored


def _ahead(drain_seconds: float) -> timedelta:
    """How long before a restart a drain begins."""
    return timedelta(seconds=drain_seconds + restarts.CORDON_AHEAD_SECONDS)
