"""Gathers what the choice of an offering depends on: price, blocks, and where the nodes are."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Choice, Offering, Together
from schemas.offering_records import BlockRecord, OfferingPrice, PricesRecord
from services.primitives.clock import Clock
from services.primitives.plugin_boundary import GuardedPlugin
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.offerings import (
    interruptions,
    offering_blocks,
    offering_choice,
    quotas,
)
from services.provisioner.offerings.offering_catalogue import Candidate, OfferingCatalogue
from services.provisioner.offerings.offering_store import OfferingRecords
from services.provisioner.offerings.scheduler import LaunchOption
from services.provisioner.offerings.scheduler_plugins import score
from services.provisioner.provider_client.provider_errors import ProviderError

FRESH_SECONDS: Final = 1.0
IGNORES_INSTANCES: Final = frozenset({"priority", "cost", "availability"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceQuote:
    """Holds an offering's price and its source."""

    dollars_per_hour: float | None = None
    source: Literal["", "provider", "catalogue"] = ""
    at: datetime | None = None
    reported_available: bool | None = None


class OfferingScorer:
    """Scores offerings for the launches of one replica."""

    def __init__(self, store: InstanceStore, clock: Clock, catalogue: OfferingCatalogue) -> None:
        self.catalogue = catalogue
        self._store = store
        self._clock = clock
        self._records: dict[str, InstanceRecord] = {}
        self._read_at: float | None = None

    async def records(self) -> dict[str, InstanceRecord]:
        """Return every instance's record, at most FRESH_SECONDS old."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= FRESH_SECONDS:
            self._records = await self._store.all()
            self._read_at = now
        return self._records

    def update_record(self, key: str, record: InstanceRecord) -> None:
        """Use a record that this replica has just written."""
        self._records[key] = record

    async def score_candidate(
        self,
        candidate: Candidate,
        target: offering_blocks.BlockTarget,
        key: str,
        known: OfferingRecords,
        choice: Choice,
        scheduler: GuardedPlugin,
    ) -> offering_choice.ScoredCandidate:
        """Return a candidate with what the choice depends on."""
        offering, now = candidate.offering, self._clock.now()
        priced = self.price(offering, known)
        blocks = offering_blocks.find_blocks(target, known.blocks)
        blocks += await self._quota_blocks(target, known)
        looks = choice.together or choice.strategy not in IGNORES_INSTANCES
        records = await self.records() if looks else {}
        others = [
            each for name, each in records.items() if name != key and _is_counted(each, target)
        ]
        spec = self.catalogue.spec(offering.provider, offering.instance_type)
        option = LaunchOption(
            pool=target.pool,
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
            block_state=offering_blocks.block_state(blocks, key, now),
            price=priced.dollars_per_hour,
            interruptions=interruptions.count(
                known.interruptions.get(offering, ()), choice.interruption_seconds, now
            ),
        )

    async def _quota_blocks(
        self, target: offering_blocks.BlockTarget, known: OfferingRecords
    ) -> tuple[tuple[str, BlockRecord], ...]:
        """What a full quota blocks, as an addition to what failed launches have blocked."""
        found = self.quota_block(target, known)
        if found is None or quotas.was_freed(found, (await self.records()).values()):
            return ()
        return ((offering_blocks.block_key("quota", target), found),)

    async def refusal(self, error: ProviderError, offering: Offering) -> ProviderError:
        """Return a launch's error, or capacity where it names a quota that is about to be freed."""
        if error.kind != "QUOTA":
            return error
        records = (await self.records()).values()
        return quotas.refusal(error, offering, records, self._clock.now())

    def quota_block(
        self, target: offering_blocks.BlockTarget, known: OfferingRecords
    ) -> BlockRecord | None:
        """Return what a full quota blocks, as the provider reported it; it may have room since."""
        record = known.prices.get(target.offering.provider)
        return quotas.quota_block(record, target.offering, target.model, self._clock.now())

    def price(self, offering: Offering, known: OfferingRecords) -> PriceQuote:
        """Return the provider's last quote, else the catalogue's price."""
        if offering.market == "reserved":
            # Its price is agreed in advance, and no provider quotes it.
            offering = msgspec.structs.replace(offering, market="on-demand")
        record = known.prices.get(offering.provider)
        quoted = _quoted_price(record, offering) if record is not None else None
        if quoted is not None and record is not None and quoted.dollars_per_hour is not None:
            return PriceQuote(
                dollars_per_hour=quoted.dollars_per_hour,
                source="provider",
                at=record.at,
                reported_available=quoted.available,
            )
        dollars = self.catalogue.price(offering)
        return PriceQuote(
            dollars_per_hour=dollars,
            source="catalogue" if dollars is not None else "",
            reported_available=quoted.available if quoted is not None else None,
        )


def _quoted_price(record: PricesRecord, offering: Offering) -> OfferingPrice | None:
    """Return the quote for this offering, else for its region, else for its type."""
    of_type = [
        each
        for each in record.prices
        if (each.instance_type, each.market) == (offering.instance_type, offering.market)
        and quotas.covers(each.region, offering)
        and each.zone in ("", offering.zone)
    ]
    exact = sorted(of_type, key=lambda each: (each.zone != "", each.region != ""))
    if exact:
        return exact[-1]
    # The provider chooses the zone: the most expensive of those it may choose.
    zones = [
        each
        for each in record.prices
        if not offering.zone
        and (each.instance_type, each.market) == (offering.instance_type, offering.market)
        and offering.region in ("", each.region)
    ]
    return max(zones, key=lambda each: each.dollars_per_hour or 0.0, default=None)


def _is_counted(record: InstanceRecord, target: offering_blocks.BlockTarget) -> bool:
    return record.pool == target.pool and record.state in ("intended", "running")


def _is_near(record: InstanceRecord, offering: Offering, together: Together) -> bool:
    if record.provider != offering.provider or not together:
        return False
    # An instance being launched counts where it was requested: a pool's first nodes are launched
    # all at once, and they above all must be placed together.
    requested = record.offering
    if together == "region":
        return (record.region or (requested.region if requested else "")) == offering.region
    zone = record.zone or (requested.zone if requested else "")
    return bool(offering.zone) and zone == offering.zone
