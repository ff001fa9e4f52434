"""Decides whether a fleet is at rest: what must hold when every fault is over.

Only fuzz campaigns expect a fleet to come to rest, since they end every fault first. A scenario or
a stress run may end with an open saga, an open breaker or a cordoned node: its assertions say so.
"""

from collections.abc import Iterator
from typing import Final

from schemas.node_records import node_key
from schemas.pool_records import PoolRecord
from schemas.topology import ALERTS, DURABLES
from services.health_monitor.rules.health_state import next_review, working_of
from services.provisioner.instances.instance_decisions import ADOPTED
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.market_invariants import spot_words
from services.simulator.engine.renewal_invariants import due_words
from services.simulator.engine.simulated_alerts import SimulatedOperators
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import SimulationContext, StoredRecords

REVIEWED_SECONDS: Final = 600.0
"""So long after a condition has worn off its node is reviewed, even if the timer was lost."""


class FleetAtRest:
    """Compares what is true with what the services recorded."""

    def __init__(
        self,
        simulation: SimulationContext,
        cloud: SimulatedCloud,
        workload: SimulatedWorkload,
        agents: AgentMachines,
        operators: SimulatedOperators,
        invariants: Invariants,
    ) -> None:
        self._simulation = simulation
        self._cloud = cloud
        self._workload = workload
        self._agents = agents
        self._operators = operators
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)

    def unfinished(self, name: str) -> list[str]:
        """Return why a fleet of one pool is not at rest; empty: it is."""
        return list(self._unfinished(name))

    def _unfinished(self, name: str) -> Iterator[str]:
        pool = self._records.pool(name)
        if pool is None:
            yield f"pool {name} is not recorded"
            return
        for saga in sorted(set(pool.open) | set(self._invariants.sagas.open)):
            yield f"{saga} is open"
        for saga in self._invariants.sagas.cut_short:
            if self._records.has_log(saga):
                yield f"{saga} has ended, and the rest of its log is left"
        if pool.breaker.state != "closed":
            yield f"the breaker is {pool.breaker.state}: {pool.breaker.reason}"
        instances, spares = self._cloud.instances(), pool.spec.spares
        names = [each.name for each in instances]
        if len(names) != pool.desired + spares:
            wanted = f"{pool.desired} and {spares} spares are wanted"
            yield f"{len(names)} instances exist where {wanted}: {names}"
        found = sum(each.spare for each in self._records.live_nodes())
        if found != spares:
            yield f"{found} nodes are spares where {spares} are wanted"
        yield from self._misplaced(pool, {each.zone for each in instances})
        for instance in instances:
            yield from self._unfit(pool, instance)
        yield from self._misrecorded(names)
        yield from self._overdue()
        yield from self._unread()
        yield from self._operators.flooded(self._simulation.now())
        # They know that no successor of these has joined, and what is said of them lasts.
        known = [node for node, each in pool.awaited.items() if each.overdue]
        left = [] if self._alerts_lost else self._operators.set_aside()
        left += [] if self._alerts_lost else self._of_gone([*names, *known])
        if not self._alerts_lost and not self._invariants.restored:
            left += self._operators.unwritable()
        yield from (f"operators have {key} open" for key in left)

    def _misplaced(self, pool: PoolRecord, zones: set[str]) -> Iterator[str]:
        # Operators adopt what the store has lost wherever it is, and others join it there.
        adopted = any(each.saga == ADOPTED for each in self._records.instances())
        if pool.spec.placement.required and len(zones) > 1 and not adopted:
            yield f"nodes that must be together are in {', '.join(sorted(zones))}"
        lost = self._invariants.restored or self._invariants.destroyed
        if (spot := spot_words(pool, self._cloud)) and not lost:
            yield spot

    def _misrecorded(self, names: list[str]) -> Iterator[str]:
        records = self._records.instances()
        for name in sorted({*names} - {each.instance for each in records}):
            yield f"{name} exists, and INSTANCES has no record of it"
        for record in records:
            if record.state not in ("running", "terminated"):
                yield f"the instance {record.instance} is {record.state}: {record.error}"
            if record.state == "running" and record.instance not in names:
                yield f"{record.instance} runs by its record, and does not exist"
        for node in self._records.live_nodes():
            if node.node not in names:
                yield f"{node.node} is {node.state} by its record, and does not exist"

        for health in self._records.health():
            if health.node not in names:
                yield f"HEALTH has a record of {health.node}, which does not exist"

    def _of_gone(self, names: list[str]) -> list[str]:
        """Alerts about the health or the silence of nodes that do not exist any more."""
        found = []
        for key in self._operators.open:
            kind, _, about = key.partition("/")
            if kind in ("health", "lost", "operator") and about.partition("/")[2] not in names:
                found.append(key)
        return found

    @property
    def _alerts_lost(self) -> bool:
        """Whether operators end alerts by hand: the notifier does not know which it sent."""
        return f"KV_{ALERTS.name}" in self._invariants.destroyed

    def _overdue(self) -> Iterator[str]:
        """Nodes that are degraded by what has worn off, and that nothing reviews."""
        before = self._simulation.clock.now().timestamp() - REVIEWED_SECONDS
        for record in self._records.health():
            if 0 < next_review(working_of(record)) < before:
                yield f"{record.node} is {record.status} by what has worn off"

    def _unfit(self, pool: PoolRecord, instance: Instance) -> Iterator[str]:
        name = instance.name
        record = self._records.node(node_key(instance.pool, name))
        truth = self._agents.machine_of(name)
        if truth is None or not truth.ready or truth.broken:
            yield f"{name} exists and is not fit to serve"
        elif truth.announced:
            yield f"the cloud lists {len(truth.announced)} notices of {name}"
        if record is None or record.state != "active":
            yield f"{name} exists and is {record.state if record else 'not recorded'}"
        elif due := due_words(pool, record, self._simulation.clock.now()):
            yield f"{name} should have been replaced: {due}"
        elif record.lost or record.health == "unhealthy" or record.saga:
            yield f"{name} is lost={record.lost} health={record.health} saga={record.saga!r}"
        elif (
            record.health == "healthy"
            and not self._alerts_lost
            and (open_ := self._operators.about(record.pool, name))
        ):
            yield f"operators were alerted, and never of the end: {', '.join(open_)}"
        elif record.spare and name not in self._workload.cordoned:
            yield f"the spare {name} takes work"
        elif not record.spare and (record.cordoned or name in self._workload.cordoned):
            yield f"{name} is cordoned: {self._workload.cordoned.get(name, 'by its record alone')}"
        if self._workload.cordoned_gpus.get(name) or (record and record.cordoned_gpus):
            recorded = record.cordoned_gpus if record else ()
            truth_of_it = self._workload.cordoned_gpus.get(name, ())
            yield f"{name} has the GPUs {truth_of_it} cordoned, and {recorded} by its record"
        if name in self._invariants.liveness.lost:
            yield f"{name} was published to be lost, and not to have returned"

    def _unread(self) -> Iterator[str]:
        state = self._simulation.server.state
        for durable in DURABLES:
            if durable.name.startswith("metrics"):
                continue  # its service takes no part in the simulation
            consumer = state.consumers.get(durable.stream, {}).get(durable.name)
            if consumer is None:
                yield f"{durable.name} does not exist"
                continue
            info = consumer.info(state.streams[durable.stream])
            if info["num_pending"] or info["num_ack_pending"]:
                yield f"{durable.name} has messages to process"

    def unjudged(self) -> list[str]:
        """Broken nodes that count as healthy after a store was lost that operators know of.

        They know of a backup that they restored themselves, even if it left nothing to notice.
        """
        lost = {f"store-lost/stream {each}" for each in self._invariants.destroyed}
        if not (lost & self._operators.open.keys() or self._invariants.restored):
            return []
        busy = self._invariants.sagas.about
        healthy = (each.node for each in self._records.live_nodes() if each.health != "unhealthy")
        machines = map(self._agents.machine_of, healthy)
        return [each.name for each in machines if each and each.broken and not busy.get(each.name)]

    def cordoned_elsewhere(self) -> list[str]:
        """Nodes in service that the workload system has cordoned since a backup was taken."""
        return [name for name in self._idle_since_restored() if name in self._workload.cordoned]

    def gpus_cordoned_elsewhere(self) -> list[str]:
        """Nodes in service of which GPUs were cordoned since a backup was taken."""
        recorded = {each.node: each.cordoned_gpus for each in self._records.live_nodes()}
        cordoned = self._workload.cordoned_gpus
        idle = self._idle_since_restored()
        return [name for name in idle if cordoned.get(name, ()) != recorded.get(name, ())]

    def working_spares(self) -> list[str]:
        """Spares by a restored record that the workload system uses."""
        spares = self._idle_since_restored(spare=True)
        return [name for name in spares if name not in self._workload.cordoned]

    def _idle_since_restored(self, *, spare: bool = False) -> list[str]:
        """Spares, or nodes that are not cordoned, which no saga is about."""
        busy = self._invariants.sagas.about
        return [
            each.node
            for each in self._records.live_nodes()
            if self._invariants.restored and each.state == "active" and not busy.get(each.node)
            if each.spare == spare == each.cordoned
        ]

    def orphans(self) -> list[str]:
        """Instances that the store has lost and that an operator adopts."""
        records = self._records.instances()
        return [each.instance for each in records if each.state == "orphaned"]

    def waits_for_operator(self, name: str) -> int | None:
        """The size of a pool that gave up, since its new nodes were refused; else None."""
        pool = self._records.pool(name)
        given_up = pool is not None and pool.refusals >= pool.spec.admission.attempts
        return pool.desired if pool is not None and given_up else None

    def spot_to_exchange(self, name: str) -> list[str]:
        """The one spot node that operators replace, where an alert says that too few are not spot.

        No node is missing then, so nothing else makes up for what a launch without capacity left.
        """
        pool = self._records.pool(name)
        if pool is None or not pool.on_demand_short or pool.open or pool.failures:
            return []
        nodes = list(self._records.live_nodes())
        spot = sorted(each.node for each in nodes if each.market == "spot" and not each.spare)
        return spot[:1] if len(nodes) >= pool.desired + pool.spec.spares else []

    def cordoned(self) -> set[str]:
        """Nodes that are cordoned, are no spares, are not unhealthy, and have no open saga."""
        busy = self._invariants.sagas.about
        return {
            each.node
            for each in self._records.live_nodes()
            if each.cordoned and not each.spare and each.health != "unhealthy"
            if not busy.get(each.node)
        }
