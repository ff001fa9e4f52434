"""What must hold of a pool whose machines others make."""

from schemas.node_events import node_codec
from schemas.pool_events import NodeReplaced
from schemas.saga_log_entries import SagaStarted, saga_codec
from schemas.topology import EVENTS, SAGAS
from services.bus.port import Stored
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import SimulationContext


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
