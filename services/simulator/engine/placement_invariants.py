"""What must hold of nodes that must be together: a gang is launched whole, or given back."""

from collections import defaultdict

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.saga_log_entries import SagaStarted, StepSucceeded, saga_codec
from schemas.saga_params import LaunchSpec
from schemas.topology import INSTANCES, SAGAS
from services.bus.port import Stored
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulation_context import SimulationContext


class PlacementInvariants:
    """Counts the instances of each gang that ever ran by their records."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        """Report violations to `invariants`."""
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
