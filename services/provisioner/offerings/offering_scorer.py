"""Gathers what decides about an offering: its price, what blocks it, where the pool's nodes are."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Choice, Offering, Together
from schemas.offering_records import KnownPrice, PricesRecord
from services.primitives.clock import Clock
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.offerings import offering_blocks, offering_choice
from services.provisioner.offerings.offering_catalogue import Candidate, OfferingCatalogue
from services.provisioner.offerings.offering_store import OfferingRecords
from services.provisioner.offerings.scheduler import LaunchOption, Scheduler
from services.provisioner.offerings.scheduler_plugins import score

FRESH_SECONDS: Final = 1.0
IGNORES_INSTANCES: Final = frozenset({"priority", "cost", "availability"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceQuote:
    """What is known of an offering's price."""

    dollars_per_hour: float | None = None
    source: Literal["", "provider", "catalogue"] = ""
    at: datetime | None = None
    reported_available: bool | None = None


class OfferingScorer:
    """Weighs offerings for the launches of one replica."""

    def __init__(self, store: InstanceStore, clock: Clock, catalogue: OfferingCatalogue) -> None:
        """Know types by `catalogue`, and instances by their records."""
        self.catalogue = catalogue
        self._store = store
        self._clock = clock
        self._records: dict[str, InstanceRecord] = {}
        self._read_at: float | None = None

    async def records(self) -> dict[str, InstanceRecord]:
        """Every instance's record, as of a moment ago at most."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= FRESH_SECONDS:
            self._records = await self._store.all()
            self._read_at = now
        return self._records

    def wrote(self, key: str, record: InstanceRecord) -> None:
        """Count a launch of this replica at once."""
        self._records[key] = record

    async def weigh(
        self,
        candidate: Candidate,
        about: offering_blocks.BlockTarget,
        key: str,
        known: OfferingRecords,
        choice: Choice,
        scheduler: Scheduler,
    ) -> offering_choice.ScoredCandidate:
        """One candidate with all that decides about it."""
        offering, now = candidate.offering, self._clock.now()
        priced = self.price(offering, known)
        blocks = offering_blocks.find_blocks(about, known.blocks)
        looks = choice.together or choice.strategy not in IGNORES_INSTANCES
        records = await self.records() if looks else {}
        others = [
            each for name, each in records.items() if name != key and _is_counted(each, about)
        ]
        spec = self.catalogue.spec(offering.provider, offering.instance_type)
        option = LaunchOption(
            pool=about.pool,
            provider=offering.provider,
            kind=self.catalogue.kind(offering.provider),
            region=offering.region,
            zone=offering.zone,
            instance_type=offering.instance_type,
            market=offering.market,
            position=candidate.position,
            gpus=spec.gpus if spec is not None else 0,
            gpu=spec.gpu if spec is not None else "",
            dollars_per_hour=priced.dollars_per_hour,
            price_age_seconds=(now - priced.at).total_seconds() if priced.at else None,
            instances=sum(1 for each in others if each.offering == offering),
            failures=max((each.failures for _, each in blocks), default=0),
            reported_available=priced.reported_available,
        )
        return offering_choice.ScoredCandidate(
            candidate=candidate,
            score=await score(scheduler, option),
            near=sum(1 for each in others if _is_near(each, offering, choice.together)),
            standing=offering_blocks.block_state(blocks, key, now),
            price=priced.dollars_per_hour,
        )

    def price(self, offering: Offering, known: OfferingRecords) -> PriceQuote:
        """What the provider said last, else what the catalogue has."""
        record = known.prices.get(offering.provider)
        told = _quoted_price(record, offering) if record is not None else None
        if told is not None and record is not None and told.dollars_per_hour is not None:
            return PriceQuote(
                dollars_per_hour=told.dollars_per_hour,
                source="provider",
                at=record.at,
                reported_available=told.available,
            )
        dollars = self.catalogue.price(offering)
        return PriceQuote(
            dollars_per_hour=dollars,
            source="catalogue" if dollars is not None else "",
            reported_available=told.available if told is not None else None,
        )


def _quoted_price(record: PricesRecord, offering: Offering) -> KnownPrice | None:
    """What is said of this very offering; of its region, or of its type, where that is all."""
    of_type = [
        each
        for each in record.prices
        if (each.instance_type, each.market) == (offering.instance_type, offering.market)
        and each.region in ("", offering.region)
        and each.zone in ("", offering.zone)
    ]
    exact = sorted(of_type, key=lambda each: (each.zone != "", each.region != ""))
    if exact:
        return exact[-1]
    # The provider chooses the zone: the dearest of those it may choose.
    zones = [
        each
        for each in record.prices
        if not offering.zone
        and (each.instance_type, each.market) == (offering.instance_type, offering.market)
        and offering.region in ("", each.region)
    ]
    return max(zones, key=lambda each: each.dollars_per_hour or 0.0, default=None)


def _is_counted(record: InstanceRecord, about: offering_blocks.BlockTarget) -> bool:
    return record.pool == about.pool and record.state in ("intended", "running")


def _is_near(record: InstanceRecord, offering: Offering, together: Together) -> bool:
    if record.provider != offering.provider or not together:
        return False
    # What is being launched has no place yet but the one that is asked for: a pool's first nodes
    # come all at once, and they above all are to stand together.
    asked = record.offering
    if together == "region":
        return (record.region or (asked.region if asked else "")) == offering.region
    zone = record.zone or (asked.zone if asked else "")
    return bool(offering.zone) and zone == offering.zone
