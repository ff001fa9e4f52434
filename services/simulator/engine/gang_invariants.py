"""Checks what must hold of jobs on several nodes, and of nodes that must be together."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec

from schemas.fault_signature import RACK
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_events import WorkGangs, node_codec
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import SagaStarted, StepSucceeded, saga_codec
from schemas.saga_params import LaunchSpec
from schemas.topology import EVENTS, INSTANCES, SAGAS
from services.bus.port import Stored
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.disruption_budget import allowance
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import Nodes, busy, is_gone, is_out, nodes_removed
from services.pool_manager.planner.safety import incidents
from services.pool_manager.planner.unhealthy_nodes import remediation_reason
from services.saga.definitions import DEFINITIONS
from services.simulator.engine.budget_invariants import GANG_TIMES, budget_count
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulated_alerts import QuietTime
from services.simulator.engine.simulated_gangs import SimulatedGangs
from services.simulator.engine.simulated_workload import SLOW_SECONDS_MAX
from services.simulator.engine.simulation_context import (
    SimulationContext,
    StoredRecords,
    written_pool,
)
from services.simulator.engine.virtual_time import EPOCH, moment

TOGETHER_SECONDS: Final = 30.0
"""Of quiet: so long an unhealthy node waits at most, when its job is interrupted anyway. The
notifier asks every 5 s, and a replica that has died holds its lease for some more."""
LOOK_SECONDS: Final = 1.0
KNOWN_SECONDS: Final = 120.0
"""So long before a saga a job may have left its node, and still be recorded there."""


class PlacementInvariants:
    """Counts the instances of each gang that ever ran by their records."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        self._invariants = invariants
        self._launches: dict[str, LaunchSpec] = {}
        """Saga -> what it launches in a gang."""
        self._ran: dict[str, set[str]] = defaultdict(set)
        """Gang -> its instances that have run."""
        self._instances = decoder(InstanceRecord)
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == SAGAS.name:
            self._on_entry(stored)
        elif stream == f"KV_{INSTANCES.name}" and stored.data:
            try:
                record = self._instances.decode(stored.data)
            except msgspec.DecodeError:
                return
            if record.launch.gang and record.state == "running":
                self._ran[record.launch.gang].add(record.instance)

    def _on_entry(self, stored: Stored) -> None:
        entry = saga_codec.decode(stored.data)
        if isinstance(entry, SagaStarted):
            if entry.params.launch is not None and entry.params.launch.gang:
                self._launches[entry.saga] = entry.params.launch
        elif isinstance(entry, StepSucceeded) and entry.step == "provision":
            launch = self._launches.get(entry.saga)
            ran = len(self._ran[launch.gang]) if launch is not None else 0
            if launch is not None and ran < launch.gang_size:
                self._invariants.fail(
                    f"{entry.saga} goes on, and {ran} of {launch.gang_size} nodes of its gang "
                    f"{launch.gang} have run",
                    entry.saga,
                )


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


class GangInvariants:
    """Unhealthy nodes of a job are taken out together; no job is ended before its deadline."""

    def __init__(
        self,
        simulation: SimulationContext,
        gangs: SimulatedGangs,
        quiet: QuietTime,
        invariants: Invariants,
        stopped: Callable[[], bool],
    ) -> None:
        """Report violations to `invariants`, which knows the sagas. `stopped`: by operators."""
        self._stopped = stopped
        self._simulation = simulation
        self._gangs = gangs
        self._quiet = quiet
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._waiting: dict[tuple[str, str], float] = {}
        """Job and unhealthy node of it -> since when the node should be taken out with another."""
        self._recorded: dict[tuple[str, str], float] = {}
        """The same -> since when the records of both nodes name the job."""
        self._answers_since = 0.0
        """Since when the workload system says what runs, within moments."""
        self._looked = 0.0
        simulation.watchers.append(self._on_stored)

    def share_job(self, node: str, others: Collection[tuple[str, datetime]]) -> bool:
        """Return whether a node has run a job with one of these when a saga began about that."""
        own = self._gangs.ran.get(node, {}).keys()
        for other, began in others:
            since = (began - EPOCH).total_seconds() - KNOWN_SECONDS
            ran = self._gangs.ran.get(other, {})
            if any(job in own for job, until in ran.items() if until >= since):
                return True
        return False

    def unfinished(self) -> Iterator[str]:
        """Records that still name a job which has left."""
        for record in self._records.live_nodes():
            job = self._gangs.on_node.get(record.node)
            if left := set(record.gangs) - ({job.name} if job else set()):
                yield f"{record.node} runs {', '.join(sorted(left))} by its record alone"

    def on_reset(self, node: str) -> None:
        """Navarch resets a machine's GPUs, or reboots it: its job must have had its time."""
        job = self._gangs.on_node.get(node)
        sagas = map(self._invariants.sagas.started, self._invariants.sagas.about.get(node, ()))
        given = any(self._invariants.drain_is_over(each) for each in sagas)
        if job is not None and not given:
            self._invariants.fail(f"{node} is reset, and runs {job.name}", node)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == EVENTS.name:
            event = node_codec.decode(stored.data)
            if isinstance(event, WorkGangs):
                self._published(event)
        now = self._simulation.now()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look(now)

    def _published(self, event: WorkGangs) -> None:
        unknown = set(event.gangs) - self._gangs.ran.get(event.node, {}).keys()
        if unknown:
            text = f"{event.node} is published to run {', '.join(sorted(unknown))}, and never did"
            self._invariants.fail(text, event.node)

    def _look(self, now: float) -> None:
        quiet_since, answers_since = self._quiet.since(), self._answered(now)
        due, known = dict(self._due()), self._invariants
        self._waiting = {each: self._waiting.get(each, now) for each in sorted(due)}
        self._recorded = {each: self._recorded.get(each, now) for each in due if due[each]}
        if known.destroyed or known.restored:
            return
        for (job, node), since in self._waiting.items():
            known_since = min(self._recorded.get((job, node), math.inf), answers_since)
            waited = now - max(since, quiet_since, known_since)
            if waited > TOGETHER_SECONDS:
                text = f"{node} waits for {waited:.0f} s while another node of {job} is taken out"
                known.fail(text, node)

    def _answered(self, now: float) -> float:
        """Since when Navarch can learn the jobs: the workload system alone knows them."""
        system = self._gangs
        if now < system.slow_until:
            self._answers_since = now + SLOW_SECONDS_MAX  # it may answer so late
        elif now < max(system.away_until, system.no_status_until):
            self._answers_since = max(self._answers_since, now)
        return self._answers_since

    def _due(self) -> Iterator[tuple[tuple[str, str], bool]]:
        """Jobs that are interrupted, each with the unhealthy nodes of it that could go as well.

        And whether the records say so.
        """
        nodes = {each.node: each for each in self._records.live_nodes()}
        pools: dict[str, PoolRecord | None] = {}
        for job in self._gangs.running():
            for name in job.nodes:
                record = nodes.get(name)
                if record is None or job.size == 1:
                    continue
                if record.pool not in pools:
                    pools[record.pool] = self._records.pool(record.pool)
                pool = pools[record.pool]
                if pool is None or not self._waits(pool, record, nodes):
                    continue
                if others := _interrupted(pool) & job.nodes.keys():
                    named = any(job.name in nodes[each].gangs for each in others & nodes.keys())
                    yield (job.name, name), named and job.name in record.gangs

    def _waits(self, pool: PoolRecord, node: NodeRecord, nodes: dict[str, NodeRecord]) -> bool:
        """Whether nothing but the budget keeps an unhealthy node from being remediated."""
        if self._stopped():
            return False
        now = moment(self._simulation.now())
        shut, held = pool.breaker, incidents.holding(pool)
        spent = shut.state == "open" and shut.cause in ("level", "rate")
        barred = shut.forced or shut.ramp or not (shut.state == "closed" or spent)
        if barred or held or pool.failures or node.node in busy(pool) or is_gone(node):
            return False
        if not remediation_reason(node, pool, now):
            return False
        if gate_table.first(Proposal("repair", pool, now, node)) is not None:
            return False
        if self._simulation.fatal_messages.known or self._simulation.server.refusing:
            return False
        own = [each for each in nodes.values() if each.pool == pool.name]
        some = allowance(pool, Nodes(own), None, now)
        rate = None if some.rate is None else GANG_TIMES * some.rate
        twice = replace(some, level=GANG_TIMES * some.level, rate=rate)
        return not any(twice.refusal(cordoned=is_out(node), resets=each) for each in (True, False))


def _interrupted(pool: PoolRecord) -> set[str]:
    """Nodes that are taken out of service before their work has finished."""
    return {
        each.node
        for each in pool.open.values()
        if DEFINITIONS[each.kind].disrupts and (each.drain or pool.spec.drain) != "wait"
    }
