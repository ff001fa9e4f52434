"""Checks what must hold of spot nodes, and of pools whose machines others make."""

from datetime import timedelta
from typing import Final

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from schemas.messages import decoder
from schemas.node_events import node_codec
from schemas.offering_records import INTERRUPTIONS_KEY, Interruption, InterruptionsRecord
from schemas.pool_events import NodeReplaced
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import SagaStarted, saga_codec
from schemas.topology import EVENTS, INSTANCES, OFFERINGS, SAGAS
from services.bus.port import Stored
from services.pool_manager.planner.node_counts import nodes_removed
from services.provisioner.offerings.interruptions import INTERRUPTIONS_MAX, count
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.budget_invariants import budget_count
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import (
    SimulationContext,
    StoredRecords,
    written_pool,
)

KNOWN_SECONDS: Final = 5.0
"""Within so long every replica has read what was recorded, and has acted on what it read before."""

_interruptions = decoder(InterruptionsRecord)
_instances = decoder(InstanceRecord)


class AdoptionInvariants:
    """Navarch launches nothing, removes only the machine that a saga is about, and may do nothing.

    The node that joins is the successor of one that was removed, and of one alone.
    """

    def __init__(
        self,
        simulation: SimulationContext,
        workload: SimulatedWorkload,
        agents: AgentMachines,
        invariants: Invariants,
        *,
        observes: bool,
    ) -> None:
        """Report violations to `invariants`; `observes`: the pool is in observe mode."""
        self._workload = workload
        self._agents = agents
        self._invariants = invariants
        self._observes = observes
        self._machines: dict[str, str] = {}
        """Saga -> the machine that its node had when it began."""
        self._successors: dict[str, str] = {}
        """Saga -> the machine of the successor."""
        simulation.watchers.append(self._on_stored)

    def on_launched(self, instance: Instance) -> None:
        """The provider was asked to launch."""
        self._invariants.fail(f"{instance.name} is launched, and others make the pool's machines")

    def on_ending(self, instance: Instance) -> None:
        """A machine is ended by Navarch."""
        name = instance.name
        if self._observes:
            self._invariants.fail(f"{name} is ended in observe mode", name)
        by = self._invariants.removal_of(name)
        meant = self._machines.get(by.saga, "") if by is not None else ""
        if by is not None and meant != instance.provider_id:
            text = (
                f"{instance.provider_id} is ended, and {by.saga} is about {meant or 'no machine'}"
            )
            self._invariants.fail(text, name, by.saga)

    def on_reset(self, node: str) -> None:
        """Navarch resets a machine's GPUs, or reboots it."""
        if self._observes:
            self._invariants.fail(f"{node} is reset in observe mode", node)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == SAGAS.name:
            entry = saga_codec.decode(stored.data)
            if isinstance(entry, SagaStarted):
                self._begun(entry)
        elif stream == EVENTS.name:
            event = node_codec.decode(stored.data)
            if isinstance(event, NodeReplaced):
                self._replaced(event)
        if self._observes and (touched := {*self._workload.cordoned, *self._workload.drained_at}):
            text = f"{', '.join(sorted(touched))} is cordoned or drained in observe mode"
            self._invariants.fail(text, *touched)

    def _begun(self, entry: SagaStarted) -> None:
        params = entry.params
        if self._observes:
            self._invariants.fail(f"{entry.saga} begins in observe mode", entry.saga)
        if params.new_node or params.promotes:
            self._invariants.fail(f"{entry.saga} brings a node, which others make", entry.saga)
        machine = self._agents.machine_of(params.node)
        if machine is not None:
            # A restored store has forgotten a saga, and its name may be given once more.
            self._machines[entry.saga] = machine.instance.provider_id

    def _replaced(self, event: NodeReplaced) -> None:
        machine = self._agents.machine_of(event.new_node)
        made = machine.instance.provider_id if machine is not None else ""
        known = self._successors.setdefault(event.saga, made)
        forgotten = self._invariants.destroyed or self._invariants.restored
        if forgotten or machine is None:
            return
        others = [saga for saga, each in self._successors.items() if each == made]
        if known != made or len(others) > 1 or made == self._machines.get(event.saga):
            text = f"{event.new_node} succeeds {event.old_node}, and cannot: {others}"
            self._invariants.fail(text, event.new_node, event.old_node)


class MarketInvariants:
    """Looks at every record of a pool in which a launch or a smaller size is new.

    And at every record of a running instance: it has the market that its machine was launched from.
    """

    def __init__(
        self, simulation: SimulationContext, cloud: SimulatedCloud, invariants: Invariants
    ) -> None:
        self._invariants = invariants
        self._cloud = cloud
        self._records = StoredRecords(simulation.server)
        self._markets: dict[str, str] = {}
        """Instance -> the market that it was last requested from."""
        self._not_spot: set[str] = set()
        """Nodes that were to be launched from another market than spot."""
        self._known: set[str] = set()
        """Sagas that were in a pool's record."""
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if not stored.data:
            return
        if stream == f"KV_{INSTANCES.name}":
            self._on_instance(stored)
        elif (pool := written_pool(stream, stored)) is not None:
            self._on_pool(pool)

    def _on_instance(self, stored: Stored) -> None:
        try:
            record = _instances.decode(stored.data)
        except msgspec.DecodeError:
            return
        machine = self._cloud.machines.get(record.provider_id)
        if machine is not None and record.state == "running" and machine.instance.market:
            recorded = record.offering.market if record.offering is not None else "unknown"
            if recorded != machine.instance.market:
                self._invariants.fail(
                    f"{record.instance} was launched as {machine.instance.market}, and its market "
                    f"is recorded as {recorded}",
                    record.instance,
                )
        if record.offering is None:
            return
        self._markets[record.instance] = record.offering.market
        if self._invariants.restored:
            self._not_spot.clear()  # names that were given since the backup are given again
        if record.offering.market == "spot" and record.instance in self._not_spot:
            self._invariants.fail(
                f"{record.instance} must not be spot, and is requested as spot", record.instance
            )

    def _on_pool(self, pool: PoolRecord) -> None:
        fresh = [saga for saga in pool.open if saga not in self._known]
        self._known.update(fresh)
        self._not_spot.update(each.new_node for each in pool.open.values() if each.not_spot)
        least = required(pool)
        if not least or not fresh or self._invariants.restored or self._invariants.destroyed:
            return
        removed = nodes_removed(pool)
        live = {each.node for each in self._records.live_nodes()}
        coming = {each.new_node for each in pool.open.values() if each.not_spot}
        dear = {name for name in live if self._markets.get(name, "spot") != "spot"}
        staying = len((dear | coming) - removed)
        for saga in fresh if staying < least else ():
            opened = pool.open[saga]
            spot = opened.new_node and not opened.not_spot
            shrinks = opened.kind == "scale-down" and opened.node in dear
            if spot or shrinks:
                what = f"launches {opened.new_node} as spot" if spot else f"removes {opened.node}"
                self._invariants.fail(
                    f"{saga} {what} where {staying} of {least} nodes are not spot", saga
                )


class InterruptionInvariants:
    """Compares what is chosen of two zones with what was taken away in each."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        self._simulation = simulation
        self._invariants = invariants
        self._changed_at = 0.0
        """When what is recorded of offerings last changed: a replica may not know it yet."""
        self._blocked: set[str] = set()
        """Keys of the blocks in force."""
        self._taken: dict[Offering, list[Interruption]] = {}
        self._chosen: dict[str, Offering] = {}
        """Instance -> the offering that it was last requested from."""
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == f"KV_{OFFERINGS.name}":
            self._on_offerings(stored, stored.subject.partition(f"{OFFERINGS.name}.")[2])
        elif stream == f"KV_{INSTANCES.name}" and stored.data:
            try:
                self._on_choice(_instances.decode(stored.data))
            except msgspec.DecodeError:
                return

    def _on_offerings(self, stored: Stored, key: str) -> None:
        if key.startswith("blocked."):
            self._changed_at = self._simulation.now()
            (self._blocked.add if stored.data else self._blocked.discard)(key)
        elif key == INTERRUPTIONS_KEY and stored.data:
            recent = _interruptions.decode(stored.data).recent
            if len(recent) > INTERRUPTIONS_MAX:
                self._invariants.fail(f"{len(recent)} interruptions are remembered")
            self._changed_at = self._simulation.now()
            self._taken = {}
            for each in recent:
                self._taken.setdefault(each.offering, []).append(each)

    def _on_choice(self, record: InstanceRecord) -> None:
        offering, choice = record.offering, record.launch.choice
        if record.state != "intended" or offering is None or choice is None:
            return
        if self._chosen.get(record.instance) == offering:
            return  # the call that was under way is repeated
        self._chosen[record.instance] = offering
        if not choice.interruption_seconds or offering.market != "spot" or self._blocked:
            return
        if self._invariants.restored or self._invariants.destroyed:
            return  # what was recorded may be recorded no more
        news_at = max(self._changed_at, self._simulation.reconnected_at)
        if self._simulation.now() - news_at < KNOWN_SECONDS or record.attempts:
            return
        others = {
            msgspec.structs.replace(offering, zone=zone)
            for offer in choice.offers
            for zone in offer.zones
            if offer.market == "spot"
        }
        # Counted by a clock that may be wrong, and decided up to a moment ago.
        at, wrong = self._simulation.clock.now(), timedelta(seconds=self._simulation.skew_seconds)
        counts = {
            each: count(self._taken.get(each, ()), choice.interruption_seconds, at - wrong)
            for each in others
        }
        late = at + wrong + timedelta(seconds=KNOWN_SECONDS)
        before = count(self._taken.get(offering, ()), choice.interruption_seconds, late)
        if counts and before > min(counts.values()):
            self._invariants.fail(
                f"{record.instance} is requested from {offering}, interrupted {before} times; "
                f"another was {min(counts.values())} times",
                record.instance,
            )


def required(pool: PoolRecord) -> int:
    """Nodes of a pool that must not be spot."""
    least = pool.spec.on_demand_min
    return min(budget_count(least, pool.desired, least=1), pool.desired) if least else 0


def spot_words(pool: PoolRecord, cloud: SimulatedCloud) -> str:
    """Return why the machines of a pool at rest are on the wrong markets; empty: they are not."""
    least = required(pool)
    found = [
        each.offering.market
        for each in cloud.machines.values()
        if each.offering is not None and each.instance.pool == pool.name
    ]
    there = sum(market != "spot" for market in found)
    return f"{there} machines are not spot where {least} must not be" if there < least else ""
