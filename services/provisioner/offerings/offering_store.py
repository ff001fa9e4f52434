"""OFFERINGS as the provisioner writes it; what replicas know of each other's failures.

Reads are of a moment ago at most, however many launches ask; whatever is decided on them is guarded
by compare-and-set, and read again where that fails.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from schemas.messages import encode
from schemas.offering_records import BlockRecord, PricesRecord, SpendRecord, prices_key
from schemas.topology import OFFERINGS
from services.bus.port import Bus
from services.bus.record_bucket import RecordBucket
from services.primitives.clock import Clock
from services.primitives.errors import Conflict
from services.provisioner.offerings import offering_blocks

FRESH_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class OfferingRecords:
    """What OFFERINGS holds."""

    blocks: dict[str, BlockRecord] = field(default_factory=dict)
    prices: dict[str, PricesRecord] = field(default_factory=dict)


class OfferingStore:
    """What is known of offerings, shared by all replicas."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Read and write the bucket OFFERINGS of this bus."""
        self._bus = bus
        self._blocks = RecordBucket(bus, OFFERINGS, BlockRecord)
        self._prices = RecordBucket(bus, OFFERINGS, PricesRecord)
        self._spending = RecordBucket(bus, OFFERINGS, SpendRecord)
        self._clock = clock
        self._known = OfferingRecords()
        self._read_at: float | None = None

    async def known(self) -> OfferingRecords:
        """What stood there a moment ago at most."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= FRESH_SECONDS:
            self._known = await self._read()
            self._read_at = now
        return self._known

    def forget(self) -> None:
        """Read again before the next answer."""
        self._read_at = None

    async def _read(self) -> OfferingRecords:
        found = OfferingRecords()
        for entry in await self._bus.entries(OFFERINGS):
            kind = entry.key.partition(".")[0]
            if kind == "blocked":
                found.blocks[entry.key] = self._blocks.decode(entry)
            elif kind == "prices":
                record = self._prices.decode(entry)
                found.prices[record.provider] = record
        return found

    # --- what is blocked ----------------------------------------------------------------------

    async def claim(self, keys: tuple[str, ...], by: str) -> bool:
        """Have these tried by one launch alone; False where another was first."""
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
                await self.release(tuple(taken), by)
                self.forget()
                return False
            taken.append(key)
        return True

    async def release(self, keys: tuple[str, ...], by: str) -> None:
        """Let others try these."""
        for key in keys:
            await self._change(
                key, lambda old: offering_blocks.release_probe(old, by) if old else None
            )

    async def fail(
        self, about: offering_blocks.BlockTarget, failure: offering_blocks.LaunchFailure
    ) -> str:
        """Remember a failure; the key of what it blocks."""
        key = offering_blocks.block_key(
            offering_blocks.block_scope(failure.kind, failure.scope), about
        )
        now = self._clock.now()
        await self._change(
            key, lambda old: offering_blocks.record_failure(old, about, failure, now)
        )
        return key

    async def clear(self, keys: tuple[str, ...]) -> None:
        """Forget what is not so any more."""
        for key in keys:
            await self._bus.delete(OFFERINGS, key)
            self._known.blocks.pop(key, None)

    async def _change(
        self, key: str, decide: Callable[[BlockRecord | None], BlockRecord | None]
    ) -> None:
        record, _, written = await self._blocks.change(key, decide)
        if written and record is not None:
            self._known.blocks[key] = record

    # --- prices and spending ------------------------------------------------------------------

    async def say(self, record: PricesRecord) -> None:
        """Keep what a provider says of its prices."""
        await self._bus.put(OFFERINGS, prices_key(record.provider), encode(record))
        self._known.prices[record.provider] = record

    async def spend(self, key: str) -> tuple[SpendRecord, int]:
        """What launches have reserved, and the revision that guards the next."""
        record, revision, _ = await self._spending.read(key)
        return record or SpendRecord(), revision

    async def reserve(self, key: str, record: SpendRecord, revision: int) -> bool:
        """Write what is reserved; False where another launch was first."""
        try:
            await self._spending.write(key, record, revision)
        except Conflict:
            return False
        return True

    async def unreserve(self, key: str, launch: str) -> None:
        """Give back what a launch has reserved; it does not come about there."""

        def without(old: SpendRecord | None) -> SpendRecord | None:
            if old is None:
                return None
            return SpendRecord(
                reserved={name: each for name, each in old.reserved.items() if name != launch}
            )

        await self._spending.change(key, without)
