"""Has all replicas launch the nodes of a pool in one place, where they must be together.

The place is claimed by a compare-and-set of PlacementRecord before the first offering is recorded.
"""

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from schemas.node_records import node_key
from schemas.offering_records import Place, PlacementRecord, placement_key
from services.primitives.clock import Clock
from services.primitives.errors import Conflict
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.offerings import placement_choice
from services.provisioner.offerings.offering_store import FRESH_SECONDS, OfferingStore
from services.provisioner.offerings.placement_choice import AnyPlace, FollowPlace, NotWhole


@dataclass(frozen=True, slots=True)
class ChosenPlace:
    """Where a launch goes, and what that was decided from."""

    where: FollowPlace | AnyPlace | NotWhole
    found: PlacementRecord | None
    revision: int


class Placements:
    """The places of pools whose nodes must be together."""

    def __init__(self, clock: Clock, store: InstanceStore, offerings: OfferingStore) -> None:
        self._clock = clock
        self._store = store
        self._records = offerings.placements
        self._instances: dict[str, tuple[float, dict[str, InstanceRecord]]] = {}

    async def choose(self, launch: InstanceRecord) -> ChosenPlace:
        """Decide where a launch goes. A gang has claimed the place that it follows."""
        mine = node_key(launch.pool, launch.instance)
        while True:
            found, revision, _ = await self._records.read(placement_key(launch.pool))
            owns = found is not None and found.owner == placement_choice.owner_of(launch)
            others: list[InstanceRecord] = []
            if not owns:
                instances = await self._store.all(launch.pool)
                others = [each for key, each in instances.items() if key != mine]
            where = placement_choice.choose_place(found, launch, others)
            chosen = ChosenPlace(where, found, revision)
            if not isinstance(where, FollowPlace) or owns or not launch.launch.gang:
                return chosen
            if await self.claim(launch, where.place, chosen):
                return chosen

    async def should_leave(
        self,
        launch: InstanceRecord,
        chosen: ChosenPlace,
        offerings: Iterable[Offering],
        probes: Container[str],
    ) -> bool:
        """Return whether a gang that waits for capacity leaves its place at once for another."""
        others = (await self._store.all(launch.pool)).values()
        return placement_choice.should_leave(chosen.found, launch, others, offerings, probes)

    async def instances(self, pool: str) -> Collection[InstanceRecord]:
        """Return a pool's instances, at most FRESH_SECONDS old.

        All launches of a gang read them.
        """
        now = self._clock.monotonic()
        read_at, found = self._instances.get(pool, (-FRESH_SECONDS, {}))
        if now - read_at >= FRESH_SECONDS:
            found = await self._store.all(pool)
            self._instances[pool] = now, found
        return found.values()

    async def claim(self, launch: InstanceRecord, place: Place, chosen: ChosenPlace) -> bool:
        """Claim a place for a launch and its gang; False if another was faster: choose again."""
        record = placement_choice.claim(chosen.found, launch, place, self._clock.now())
        try:
            await self._records.write(placement_key(launch.pool), record, chosen.revision)
        except Conflict:
            return False
        return True
