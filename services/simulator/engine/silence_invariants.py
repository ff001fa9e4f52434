"""Checks that silent nodes are not left out for ever: one is repaired after each hold."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from schemas.fault_signature import SILENCE
from schemas.pool_records import OpenSaga, PoolRecord
from services.bus.port import Stored
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.disruption_budget import counted, rate
from services.pool_manager.planner.gates import pool_gates
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import busy, cordons_wait
from services.pool_manager.planner.safety import incidents
from services.pool_manager.planner.safety.fault_waves import fault_signature
from services.saga.definitions import DEFINITIONS
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulated_alerts import QuietTime
from services.simulator.engine.simulation_context import (
    SimulationContext,
    StoredRecords,
    written_pool,
)
from services.simulator.engine.virtual_time import moment

WITHIN_SECONDS: Final = 60.0
"""So long beyond a hold of its own a silent node may wait for its repair to begin."""
LOOK_SECONDS: Final = 5.0


class SilenceInvariants:
    """Silent nodes that run by their provider's word are tried one after the other."""

    def __init__(
        self,
        simulation: SimulationContext,
        invariants: Invariants,
        quiet: QuietTime,
        is_stopped: Callable[[], bool],
    ) -> None:
        """Report violations to `invariants`; no node is due while the services are disturbed."""
        self._simulation = simulation
        self._invariants = invariants
        self._quiet = quiet
        self._is_stopped = is_stopped
        self._records = StoredRecords(simulation.server)
        self._pools: dict[str, PoolRecord] = {}
        self._due: dict[str, float] = {}
        """Pool -> since when one of its silent nodes could be repaired, and none is."""
        self._looked = 0.0
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if (pool := written_pool(stream, stored)) is not None:
            self._pools[pool.name] = pool
        now = self._simulation.now()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look(now)

    def _look(self, now: float) -> None:
        since = self._quiet.since()
        for name, pool in self._pools.items():
            silent = [] if self._waits(pool, now) else self._silent(pool)
            if not silent:
                self._due.pop(name, None)
                continue
            began = self._due[name] = max(self._due.get(name, now), since)
            if now - began > pool.spec.health.incident.hold + WITHIN_SECONDS:
                self._invariants.fail(
                    f"{len(silent)} silent nodes of {name} wait for {now - began:.0f} s, and none "
                    f"is tried: {', '.join(silent)}",
                    *silent,
                )

    def _waits(self, pool: PoolRecord, now: float) -> bool:
        """Whether something excuses that no silent node of a pool is tried."""
        at, known, health = moment(now), self._invariants, pool.spec.health
        held = incidents.holding(pool).values()
        acts = any(
            DEFINITIONS[each.kind].disrupts and not _never_ends(pool, each, at)
            for each in pool.open.values()
        )
        most = rate(pool.spec.budget.max_replacements, rack_units.units(pool, pool.desired))
        begun = counted(pool.disruptions, float(pool.spec.budget.window), at)
        failing = pool_gates.retry(Proposal("repair", pool, at)) is not None
        return any(
            (
                not any(each.kind == SILENCE for each in held),
                any(at < incidents.until(pool, each) for each in held),
                pool.breaker.forced or pool.breaker.cause != "wave",
                not health.auto_replace or health.remediation.type == "alert",
                pool.spec.mode == "observe" or pool.removing,
                acts or failing or cordons_wait(pool, at),
                most is not None and begun >= most,
                self._is_stopped() or self._simulation.server.refusing,
                known.destroyed or known.restored,
            )
        )

    def _silent(self, pool: PoolRecord) -> list[str]:
        """Name the nodes that could be tried, while others of each of their regions are heard."""
        taken, beats = busy(pool), self._invariants.liveness.beating_seconds
        nodes = [
            each
            for each in self._records.live_nodes()
            if each.pool == pool.name and each.state == "active"
        ]
        silent = [
            each
            for each in nodes
            if fault_signature(each) == SILENCE and each.provider_state == "present"
            if each.node not in taken and each.held_until is None and not each.spare
        ]
        if any(each.cordoned and not each.lost for each in nodes):
            return []  # an operator keeps it out, or its fault: it has the budget
        heard = {each.region for each in nodes if not each.lost and beats(each.node) > 0}
        return [each.node for each in silent] if {n.region for n in silent} <= heard else []


def _never_ends(pool: PoolRecord, opened: OpenSaga, at: datetime) -> bool:
    """Return whether a saga waits for work that had its time to leave, and some more."""
    lasted = (at - opened.since).total_seconds()
    waits = (opened.drain or pool.spec.drain) == "wait"
    return waits and lasted > float(pool.spec.drain_timeout) + WITHIN_SECONDS
