"""The bucket OFFERINGS: blocks, prices and reserved spending, shared by all replicas.

Reads are cached for a second, however many launches ask. Writes are compare-and-set, and read again
on a conflict.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from schemas.launch_offers import Offering
from schemas.messages import encode
from schemas.offering_records import (
    INTERRUPTIONS_KEY,
    BlockRecord,
    Interruption,
    InterruptionsRecord,
    PlacementRecord,
    PricesRecord,
    SpendRecord,
    prices_key,
)
from schemas.topology import OFFERINGS
from services.bus.port import Bus
from services.bus.record_bucket import RecordBucket
from services.primitives.clock import Clock
from services.primitives.errors import Conflict, UnreadableRecord
from services.provisioner.offerings import interruptions, offering_blocks, spend

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class OfferingRecords:
    """Holds the contents of OFFERINGS."""

    blocks: dict[str, BlockRecord] = field(default_factory=dict)
    prices: dict[str, PricesRecord] = field(default_factory=dict)
    interruptions: dict[Offering, list[Interruption]] = field(default_factory=dict)


class OfferingStore:
    """Reads and changes OFFERINGS."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._blocks = RecordBucket(bus, OFFERINGS, BlockRecord, replaceable=True)
        self._prices = RecordBucket(bus, OFFERINGS, PricesRecord)
        self._interruptions = RecordBucket(bus, OFFERINGS, InterruptionsRecord, replaceable=True)
        # What is reserved is unknown without it: launches under a cap wait for an operator.
        self._spending = RecordBucket(bus, OFFERINGS, SpendRecord)
        self.placements = RecordBucket(bus, OFFERINGS, PlacementRecord, replaceable=True)
        self._clock = clock
        self._contents = OfferingRecords()
        self._read_at: float | None = None

    async def records(self) -> OfferingRecords:
        """Return the contents, at most FRESH_SECONDS old."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= FRESH_SECONDS:
            self._contents = await self._read()
            self._read_at = now
        return self._contents

    def invalidate(self) -> None:
        """Read again before the next answer."""
        self._read_at = None

    async def _read(self) -> OfferingRecords:
        found = OfferingRecords()
        for entry in await self._bus.entries(OFFERINGS):
            kind = entry.key.partition(".")[0]
            try:
                if kind == "blocked":
                    found.blocks[entry.key] = self._blocks.decode(entry)
                elif kind == "prices":
                    record = self._prices.decode(entry)
                    found.prices[record.provider] = record
                elif kind == INTERRUPTIONS_KEY:
                    for each in self._interruptions.decode(entry).recent:
                        found.interruptions.setdefault(each.offering, []).append(each)
            except UnreadableRecord as error:
                # Both are observed again: launches go on without it.
                log.error("%s", error)  # noqa: TRY400 - the text is the whole story
        return found

    # --- blocks -------------------------------------------------------------------------------

    async def claim_probes(self, keys: tuple[str, ...], by: str) -> bool:
        """Claim the probes of these blocks for one launch; False if another one was first."""
        taken: list[str] = []
        for key in keys:
            won = False

            def decide(old: BlockRecord | None) -> BlockRecord | None:
                nonlocal won
                claimed = (
                    offering_blocks.claim_probe(old, by, self._clock.now())
                    if old is not None
                    else None
                )
                won = claimed is not None or old is None
                return claimed

            await self._change(key, decide)
            if not won:
                await self.release_probes(tuple(taken), by)
                self.invalidate()
                return False
            taken.append(key)
        return True

    async def release_probes(self, keys: tuple[str, ...], by: str) -> None:
        """Release these probes."""
        for key in keys:
            await self._change(
                key, lambda old: offering_blocks.release_probe(old, by) if old else None
            )

    async def record_failure(
        self, target: offering_blocks.BlockTarget, failure: offering_blocks.LaunchFailure
    ) -> str:
        """Record a failure; return the key of the block."""
        key = offering_blocks.block_key(
            offering_blocks.block_scope(failure.kind, failure.scope), target
        )
        now = self._clock.now()
        await self._change(
            key, lambda old: offering_blocks.record_failure(old, target, failure, now)
        )
        return key

    async def delete_blocks(self, keys: tuple[str, ...]) -> None:
        """Delete blocks that no longer apply."""
        for key in keys:
            await self._bus.delete(OFFERINGS, key)
            self._contents.blocks.pop(key, None)

    async def _change(
        self, key: str, decide: Callable[[BlockRecord | None], BlockRecord | None]
    ) -> None:
        record, _, written = await self._blocks.change(key, decide)
        if written and record is not None:
            self._contents.blocks[key] = record

    # --- interruptions ------------------------------------------------------------------------

    async def record_interruption(self, offering: Offering, instance: str) -> None:
        """Record that the cloud took away a spot instance; once for each."""
        more = partial(
            interruptions.with_interruption,
            offering=offering,
            instance=instance,
            now=self._clock.now(),
        )
        _, _, written = await self._interruptions.change(INTERRUPTIONS_KEY, more)
        if written:
            self.invalidate()

    # --- prices and spending ------------------------------------------------------------------

    async def put_prices(self, record: PricesRecord) -> None:
        """Store a provider's prices."""
        await self._bus.put(OFFERINGS, prices_key(record.provider), encode(record))
        self._contents.prices[record.provider] = record

    async def read_spend(self, key: str) -> tuple[SpendRecord, int]:
        """Return what launches have reserved, and the revision for the next write."""
        record, revision, _ = await self._spending.read(key)
        return record or SpendRecord(), revision

    async def reserve(self, key: str, record: SpendRecord, revision: int) -> bool:
        """Write what is reserved; False if another launch was first."""
        try:
            await self._spending.write(key, record, revision)
        except Conflict:
            return False
        return True

    async def unreserve(self, key: str, launch: str, offering: Offering) -> None:
        """Release what a launch has reserved for an offering that refused it."""
        await self._spending.change(
            key, lambda old: old and spend.without_reservation(old, launch, offering)
        )
