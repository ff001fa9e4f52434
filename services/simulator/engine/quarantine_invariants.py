"""Checks what must hold of quarantined nodes."""

from typing import Final

from schemas.fault_signature import called
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import SagaStarted, StepStarted, StepSucceeded, saga_codec
from schemas.topology import NODES, SAGAS
from services.bus.port import Stored
from services.pool_manager.planner import cloud_notices, rack_units
from services.pool_manager.planner.disruption_budget import ALL, FLEET_LEVEL_MIN, quarantine_cap
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.planner.remediation.flapping_nodes import calm_at, flaps
from services.pool_manager.planner.remediation.quarantine import pool_limit
from services.pool_manager.planner.remediation.quarantine_recheck import TESTS_MAX, WINDOW
from services.pool_manager.planner.safety import incidents
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.budget_invariants import budget_count
from services.simulator.engine.hardware_failures import RECLAIMS
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulation_context import (
    SimulationContext,
    StoredRecords,
    written_pool,
)
from services.simulator.engine.virtual_time import moment

WITHIN_SECONDS: Final = 300.0
"""So long an unhealthy node is in service at most while there is room under the cap, and one that
is healthy again quarantined: longer than any fault of a campaign lasts."""
LOOK_SECONDS: Final = 5.0
TESTED_SECONDS: Final = 10.0
"""What breaks so shortly before a test has passed may have been too late for it."""

_nodes = decoder(NodeRecord)


class QuarantineInvariants:
    """Only accused nodes are quarantined, in time, within the cap, and no longer than necessary."""

    def __init__(
        self, simulation: SimulationContext, agents: AgentMachines, invariants: Invariants
    ) -> None:
        """Report violations to `invariants`, which knows the sagas."""
        self._simulation = simulation
        self._agents = agents
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._overdue: dict[str, tuple[NodeRecord, float]] = {}
        """Node -> its record, and since when it should be quarantined, or released."""
        self._rechecks: dict[str, list[float]] = {}
        """Node -> when its rechecks began."""
        self._seen: set[str] = set()
        """Sagas that were open in an earlier write of their pool."""
        self._given_back: set[str] = set()
        """Rechecks that have begun to uncordon their node."""
        self._passed: dict[str, float] = {}
        """Saga -> when its test passed."""
        self._looked = 0.0
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        now = self._simulation.now()
        if stream == f"KV_{NODES.name}":
            self._recorded(_nodes.decode(stored.data) if stored.data else None, now)
        elif stream == SAGAS.name:
            self._logged(stored, now)
        elif (pool := written_pool(stream, stored)) is not None:
            self._decided(pool)
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look(now)

    def _logged(self, stored: Stored, now: float) -> None:
        entry = saga_codec.decode(stored.data)
        if isinstance(entry, SagaStarted) and (
            entry.kind == "quarantine" or entry.params.faulty_gpus
        ):
            self._begun(entry)
        elif isinstance(entry, SagaStarted) and entry.kind == "recheck":
            begun = self._rechecks.setdefault(entry.params.node, [])
            begun.append(now)
            recent = [each for each in begun if now - each < WINDOW.total_seconds()]
            forgotten = self._invariants.destroyed or self._invariants.restored
            if len(recent) > TESTS_MAX and not forgotten:
                self._invariants.fail(f"recheck {len(recent)} of {entry.params.node}", entry.saga)
        elif isinstance(entry, StepSucceeded) and entry.step == "check":
            self._passed[entry.saga] = now
        elif isinstance(entry, StepStarted) and entry.step == "uncordon":
            saga = self._invariants.sagas.started(entry.saga)
            # An operator who replays what was set aside repeats an entry, and decides nothing.
            if saga.kind == "recheck" and entry.saga not in self._given_back:
                self._given_back.add(entry.saga)
                self._passes(saga.params.node, self._passed.pop(entry.saga, now))

    def _passes(self, name: str, at: float) -> None:
        """A node is about to go back into service, after a test that it passed."""
        machine = self._agents.machine_of(name)
        failures = machine.failures.values() if machine is not None else ()
        lasting = [each for each in failures if each.kind not in RECLAIMS]
        if any(at - each.at > TESTED_SECONDS for each in lasting):
            self._invariants.fail(f"{name} is broken, and passes its recheck", name)

    def _begun(self, entry: SagaStarted) -> None:
        name, known = entry.params.node, self._invariants
        machine = self._agents.machine_of(name)
        accused = known.broken_nodes | known.misreported | known.preempted
        node = self._records.node(node_key(entry.params.pool, name))
        # Others have given its name to another machine, which has not registered yet.
        earlier = machine is not None and node is not None and _is_earlier(node, machine)
        pool = self._records.pool(entry.params.pool)
        flapped = node is not None and pool is not None and calm_at(node, pool) is not None
        accused_now = name in accused or earlier or flapped
        if not accused_now and machine is not None and not machine.broken:
            known.fail(f"{name} is subject to {entry.kind}, and is healthy", name, entry.saga)

    def _decided(self, pool: PoolRecord) -> None:
        """A pool's record has changed: what it decides holds by its size, when it is carried out.

        A scale-down may lower the cap before the saga of a quarantine that is decided begins.
        """
        for saga, opened in pool.open.items():
            if saga in self._seen:
                continue
            self._seen.add(saga)
            if opened.kind != "quarantine" and not opened.faulty_gpus:
                continue
            node = self._records.node(node_key(pool.name, opened.node))
            # One with a cordoned GPU counts already, also after a scale-down has lowered the cap.
            if not (node is not None and node.cordoned_gpus):
                self._within_the_cap(pool, opened.node)

    def _within_the_cap(self, pool: PoolRecord, begun: str) -> None:
        found = self._quarantined(pool)
        nodes = (self._records.node(node_key(pool.name, each)) for each in sorted(found))
        unit_of = {
            each.node: rack_units.unit_of(pool, each, {}) for each in nodes if each is not None
        }
        units = set(unit_of.values())
        unit = unit_of.pop(begun, begun)
        if unit in unit_of.values():
            return  # its rack counts already
        wanted = rack_units.units(pool, pool.desired)
        cap = quarantine_cap(pool.spec.budget)
        if cap == ALL:
            return
        allowed = budget_count(cap, wanted, least=1)
        if len(units) > allowed:
            text = f"{len(found)} nodes are quarantined where {allowed} may be"
            self._invariants.fail(text, *sorted(found))

    def _quarantined(self, pool: PoolRecord) -> set[str]:
        nodes = [each for each in self._records.live_nodes() if each.pool == pool.name]
        found = {each.node for each in nodes if each.is_quarantined or each.cordoned_gpus}
        begun = [each for each in pool.open.values() if each.kind == "quarantine"]
        begun += [each for each in pool.open.values() if each.faulty_gpus]
        return found | {each.node for each in begun}

    def _is_full(self, pool: PoolRecord) -> bool:
        """Whether a cap keeps unhealthy nodes in service: half of the pool's, or the fleet's."""
        pools = {each.pool for each in self._records.live_nodes()}
        found = [self._quarantined(each) for name in pools if (each := self._records.pool(name))]
        own = 2 * len(self._quarantined(pool)) >= pool_limit(pool)
        return pool.quarantine_full and (own or sum(map(len, found)) >= FLEET_LEVEL_MIN)

    # --- in time --------------------------------------------------------------------------------

    def _recorded(self, node: NodeRecord | None, now: float) -> None:
        if node is None:
            return
        known = self._overdue.pop(node.node, None)
        if self._is_due(node):
            same = known is not None and _cordons(known[0]) == _cordons(node)
            self._overdue[node.node] = (node, known[1] if known and same else now)

    def _is_due(self, node: NodeRecord) -> bool:
        """Whether a node should be quarantined, or released."""
        if _is_left_alone(node):
            return False
        if not node.cordoned:
            return node.health == "unhealthy" or node.faulty_gpus != node.cordoned_gpus
        return node.is_quarantined and (node.health != "unhealthy" or self._misreported(node))

    def _misreported(self, node: NodeRecord) -> bool:
        """Whether only its kernel log ever accused a node that has not been rechecked."""
        known = self._invariants
        falsely = node.node in known.misreported - known.broken_nodes - known.preempted
        return falsely and bool(node.gpus) and not node.tests

    def _look(self, now: float) -> None:
        known = self._invariants
        pools: dict[str, PoolRecord | None] = {}
        for name, (node, since) in tuple(self._overdue.items()):
            pool = pools.setdefault(node.pool, self._records.pool(node.pool))
            waits = pool is None or self._simulation.server.refusing or _waits(pool, node, now)
            waits = waits or (not node.cordoned and pool is not None and self._is_full(pool))
            if waits or known.destroyed or known.restored:
                self._overdue[name] = (node, now)
            elif now - since > WITHIN_SECONDS:
                what = "quarantined" if node.cordoned else f"{node.health} and in service"
                known.fail(f"{name} is {what} for {now - since:.0f} s", name)


def _is_earlier(node: NodeRecord, machine: SimulatedMachine) -> bool:
    """Whether a record is of an earlier machine than the one that has its name now."""
    return machine.boots == 1 and node.boot_id != machine.boot_id


def _cordons(node: NodeRecord) -> tuple[bool, tuple[int, ...]]:
    return node.cordoned, node.cordoned_gpus


def _is_left_alone(node: NodeRecord) -> bool:
    """Whether something keeps the pool-manager from acting on a node."""
    failed = node.quarantine is not None and node.quarantine.failed_at is not None
    elsewhere = node.workload is not None and node.workload.cordoned
    notice = cloud_notices.current_notice(node) is not None
    held = node.held_until is not None
    return node.state != "active" or any((node.spare, node.lost, failed, elsewhere, notice, held))


def _waits(pool: PoolRecord, node: NodeRecord, now: float) -> bool:
    """Whether a pool's state excuses that a node is as it is."""
    spec, held = pool.spec, incidents.holding(pool)
    off = not spec.health.auto_replace or spec.mode == "observe" or not pool_limit(pool)
    if (
        off
        or node.node in busy(pool)
        or flaps(node, pool, moment(now))
        or pool.breaker.cause == "restored"
    ):
        return True
    if not node.cordoned:
        return spec.health.remediation.type == "alert"
    if node.health != "unhealthy":
        return False
    of_it = held.get(called(node.health_kind, node.health_code))
    holds = any(moment(now) < incidents.until(pool, each) for each in held.values())
    return of_it is None or of_it.scope != "pool" or holds or pool.breaker.forced
