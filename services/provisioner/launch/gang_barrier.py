"""The launches of a gang succeed together, or fail together: none ends while others are missing.

One compare-and-set of PlacementRecord says which, so the same holds for every launch at every
replica. Where they fail, the undo of each saga removes the instance; a launch that is undone while
its gang is not whole ends the gang.
"""

import logging
from typing import Final

from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.node_records import node_key
from schemas.offering_records import PlacementRecord, placement_key
from schemas.step_data import ProvisionInputs
from services.primitives.clock import Clock
from services.primitives.errors import Retry
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.launch.launcher import SUPERSEDED, IsSuperseded
from services.provisioner.offerings import placement_choice
from services.provisioner.offerings.offering_store import OfferingStore
from services.provisioner.offerings.placements import ChosenPlace, Placements
from services.saga.participant import StepFailure

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""How often a launch looks whether its gang is whole."""
SUPERSEDED_LOOKS: Final = 5
"""Looks between two reads of whether its saga has gone on without it."""
SLACK_SECONDS: Final = 15.0
"""A launch waits this much longer than another may take, which then says why it failed."""


class GangBarrier:
    """Waits for gangs to be whole."""

    def __init__(
        self,
        clock: Clock,
        store: InstanceStore,
        offerings: OfferingStore,
        placements: Placements,
    ) -> None:
        self._clock = clock
        self._store = store
        self._records = offerings.placements
        self._placements = placements

    async def await_whole(self, inputs: ProvisionInputs, is_superseded: IsSuperseded) -> None:
        """Wait until every instance of the launch's gang runs; StepFailure if one does not."""
        if not placement_choice.must_be_together(inputs.launch):
            return
        until = self._clock.monotonic() + inputs.launch.gather_seconds + SLACK_SECONDS
        looks = 0
        while not await self._is_whole(inputs):
            looks += 1
            if looks % SUPERSEDED_LOOKS == 0 and await is_superseded():
                raise StepFailure(SUPERSEDED)
            if self._clock.monotonic() >= until:
                raise StepFailure("the others were not launched in time", error="CAPACITY")
            await self._clock.sleep(LOOK_SECONDS)

    async def _is_whole(self, inputs: ProvisionInputs) -> bool:
        mine = await self._store.get(node_key(inputs.pool, inputs.node))
        if mine is None:
            # INSTANCES is lost: to fail would give back a gang that is there.
            raise Retry(f"INSTANCES has no record of {inputs.node}; its launch is repeated")
        if mine.state != "running":
            raise StepFailure(f"the instance {inputs.node} was removed")
        key, owner = placement_key(inputs.pool), placement_choice.owner_of(mine)
        instances = await self._placements.instances(inputs.pool)
        found, revision, _ = await self._records.change(
            key, lambda old: placement_choice.whole(old, owner, instances)
        )
        if found is None and mine.offering is not None:
            # OFFERINGS was lost: what runs says where the gang is.
            together = inputs.launch.choice.together if inputs.launch.choice is not None else ""
            place = placement_choice.place_of(mine.offering, together)
            lost = ChosenPlace(placement_choice.AnyPlace(), None, revision)
            await self._placements.claim(mine, place, lost)
            return False
        if found is None or found.owner != owner:
            if inputs.launch.gang:
                raise StepFailure("the other launches of its gang were given up", error="CAPACITY")
            return True  # a single launch, where the pool's other nodes are
        if found.state == "failed":
            raise StepFailure(found.reason, error=found.error)
        return found.state == "placed"

    async def fail(self, inputs: ProvisionInputs, reason: str, error: str) -> None:
        """Record that a launch failed or is undone; that ends its gang, unless it was whole."""
        if not placement_choice.must_be_together(inputs.launch):
            return
        owner = inputs.launch.gang or inputs.node
        instances: list[InstanceRecord] = list((await self._store.all(inputs.pool)).values())

        def decide(old: PlacementRecord | None) -> PlacementRecord | None:
            return placement_choice.failed(
                old, owner, instances, reason=reason, error=error, now=self._clock.now()
            )

        if (await self._records.change(placement_key(inputs.pool), decide)).written:
            log.warning("not launched whole", extra={"gang": owner, "reason": reason})


def bounded(inputs: ProvisionInputs) -> ProvisionInputs:
    """The inputs of a launch that takes no longer than its gang may. Pure."""
    launch = inputs.launch
    if not launch.gang:
        return inputs
    return replace(inputs, timeout_seconds=min(inputs.timeout_seconds, launch.gather_seconds))
