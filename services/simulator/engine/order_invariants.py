"""Each termination of a machine whose agent beats must have an order of its own node."""

from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.node_records import node_key
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulation_context import SimulationContext, StoredRecords

ORDERED: Final = ("saga", "launch", "operator")
"""Authorities that may end a machine on which an agent beats."""


class OrderInvariants:
    """Compares each termination with the record of the machine's node."""

    def __init__(
        self, simulation: SimulationContext, agents: AgentMachines, invariants: Invariants
    ) -> None:
        self._agents = agents
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)

    def on_ending(self, instance: Instance) -> None:
        """A machine is being ended: the record of its own node must have the order."""
        name, lost = instance.name, self._invariants.destroyed or self._invariants.restored
        machine = self._agents.machine_of(name)
        mine = machine is not None and machine.instance.provider_id == instance.provider_id
        beats = mine and self._invariants.liveness.beating_seconds(name) > 0
        record = self._records.instance(node_key(instance.pool, name))
        if beats and not lost and not may_end(record):
            by = record.authority if record is not None else None
            self._invariants.fail(f"{name} beats, and is ended by the order of {by}", name)


def may_end(record: InstanceRecord | None) -> bool:
    """Return whether the record of a node has an order that may end a beating machine."""
    if record is None:
        return False
    orders = [record.authority, *(each.authority for each in record.surplus)]
    return any(each is not None and each.kind in ORDERED for each in orders)
