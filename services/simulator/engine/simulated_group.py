"""A simulated auto-scaling group, and where a cloud places machines of pools with racks.

A group keeps its size when machines are removed, and knows nothing of Navarch.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from schemas.pool_records import OpenSaga
from schemas.settings import PoolSpec
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.hardware_failures import MachineSpec
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulation_context import SimulationContext, StoredRecords

SpecOf = Callable[[Instance], MachineSpec]
LOOK_SECONDS: Final = 5.0
JOINS_SECONDS: Final = (5.0, 60.0)
"""From the decision to make a machine until it has joined."""


class SimulatedRacks:
    """Completes what is known of a machine with its rack.

    A gang of a rack's size gets a rack of its own. A node's successor gets the place of that node
    while it is free, and any other machine a free place in a rack that is not full. A fault places
    machines elsewhere. GPUs report the rack as their NVLink domain.
    """

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
        """Return the place and hardware of a machine."""
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
        """Place so many of the next machines in a rack of their own."""
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
        used = Counter(rack for pool, rack in self._racks.values() if pool == made.pool)
        # Another machine may have taken the place of the node that this one succeeds.
        if opened is not None and opened.rack and used[opened.rack] < size:
            return opened.rack
        free = sorted(rack for rack, count in used.items() if count < size)
        return free[0] if free else made.name

    def _opened(self, made: Instance) -> OpenSaga | None:
        record = self._records.pool(made.pool)
        open_ = record.open.values() if record is not None else ()
        return next((each for each in open_ if each.new_node == made.name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """Describes a group of machines."""

    pool: str
    provider: str
    size: int
    reuses_names: bool = False
    """Whether a machine may get the name of one that is gone, as where names are of places."""


class SimulatedGroup:
    """The machines of one pool, as their owner sees them."""

    def __init__(
        self,
        simulation: SimulationContext,
        cloud: SimulatedCloud,
        spec: GroupSpec,
        on_joined: Callable[[Instance], None],
    ) -> None:
        """Make machines in `cloud`; `on_joined` boots them."""
        self._simulation = simulation
        self._cloud = cloud
        self._spec = spec
        self._on_joined = on_joined
        self._chance = simulation.chance("group")
        self.size = spec.size
        self._joined = 0
        self._coming = 0

    def start(self) -> None:
        """Keep the size from now on."""
        self._look()

    def resize(self, size: int) -> None:
        """Change the group's size, as its owner does."""
        self._simulation.note(f"the group is to have {size} machines")
        self.size = size

    def remove(self, name: str) -> None:
        """Remove a machine, as the group's owner does; another is made in its place."""
        for each in list(self._cloud.machines.values()):
            if each.instance.name == name and not each.stopping:
                self._cloud.vanish(each.instance.provider_id)

    def unfinished(self) -> Iterator[str]:
        """Yield why the group has not the size that it is to have."""
        if (count := len(self._names())) != self.size or self._coming:
            yield f"the group has {count} machines where {self.size} are wanted"

    def _names(self) -> list[str]:
        """The machines that are not being removed, oldest first."""
        return [each.instance.name for each in self._cloud.machines.values() if not each.stopping]

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(LOOK_SECONDS, self._look)
        names = self._names()
        for name in names[: max(len(names) - self.size, 0)]:
            self.remove(name)
        for _ in range(self.size - len(names) - self._coming):
            if self._cloud.call_failure("provision") is not None:
                return  # it is tried again
            self._coming += 1
            loop.call_later(self._chance.uniform(*JOINS_SECONDS), self._join)

    def _join(self) -> None:
        self._coming -= 1
        self._joined += 1
        name = self._name()
        instance = Instance(
            name=name,
            provider_id=f"made-{self._joined:05d}",
            status="running",
            pool=self._spec.pool,
            created_at=self._simulation.clock.now(),
        )
        self._cloud.add(instance, self._spec.provider)
        self._on_joined(instance)

    def _name(self) -> str:
        if not self._spec.reuses_names:
            return f"gpu-{self._joined:03d}"
        numbers = (f"gpu-{number}" for number in range(1, self._joined + 1))
        return next(name for name in numbers if not self._cloud.count(name))
