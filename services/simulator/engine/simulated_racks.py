"""Where a simulated cloud places the machines of pools whose units are racks.

A gang of a rack's size gets a rack of its own. A node's successor gets the place of that node, and
any other machine a free place in a rack that is not full. A fault places machines elsewhere. GPUs
report the rack as their NVLink domain.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from schemas.pool_records import OpenSaga
from schemas.settings import PoolSpec
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.simulated_machine import MachineSpec
from services.simulator.engine.simulation_context import StoredRecords

SpecOf = Callable[[Instance], MachineSpec]


class SimulatedRacks:
    """Completes what is known of a machine with its rack."""

    def __init__(
        self, spec_of: SpecOf, pools: Mapping[str, PoolSpec], records: StoredRecords
    ) -> None:
        """Complete `spec_of`; `records` say what a machine is launched for."""
        self._spec_of = spec_of
        self._pools = pools
        self._records = records
        self._elsewhere = 0
        self._racks: dict[str, tuple[str, str]] = {}
        """Provider's ID of a machine that exists -> its pool and rack."""

    def spec_of(self, made: Instance) -> MachineSpec:
        """The place and hardware of a machine."""
        spec, pool = self._spec_of(made), self._pools.get(made.pool)
        size = pool.rack.nodes if pool is not None else 0
        if size <= 1:
            return spec
        known = self._racks.get(made.provider_id)
        if known is None:
            known = made.pool, spec.rack or self._place(made, size)
            self._racks[made.provider_id] = known
        return replace(spec, rack=known[1], nvlink_domain=f"{known[1]}.1")

    def place_elsewhere(self, count: int) -> None:
        """So many of the next machines are in a rack of their own."""
        self._elsewhere = count

    def gone(self, made: Instance) -> None:
        """A machine is gone: its place is free."""
        self._racks.pop(made.provider_id, None)

    def _place(self, made: Instance, size: int) -> str:
        if self._elsewhere:
            self._elsewhere -= 1
            return f"{made.name}-elsewhere"  # a gang's rack has the name of one of its nodes
        opened = self._opened(made)
        if opened is not None and opened.gang_size >= size:
            return opened.gang
        if opened is not None and opened.rack:
            return opened.rack
        used = Counter(rack for pool, rack in self._racks.values() if pool == made.pool)
        free = sorted(rack for rack, count in used.items() if count < size)
        return free[0] if free else made.name

    def _opened(self, made: Instance) -> OpenSaga | None:
        record = self._records.pool(made.pool)
        open_ = record.open.values() if record is not None else ()
        return next((each for each in open_ if each.new_node == made.name), None)
