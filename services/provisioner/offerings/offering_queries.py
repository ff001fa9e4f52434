"""Answers the offerings query: where capacity may come from, its price, and what is blocked."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from schemas.fleet_queries import Page
from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from schemas.messages import decoder, encode
from schemas.offering_records import BlockRecord, OfferingsQuery, OfferingUse, OfferingView
from schemas.pool_records import PoolRecord, pool_key
from schemas.topology import POOLS
from services.bus.bucket_mirror import readable
from services.bus.port import Bus, Endpoint, Headers
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.offerings import offering_blocks, quotas
from services.provisioner.offerings.offering_catalogue import OTHERS, OfferingCatalogue, candidates
from services.provisioner.offerings.offering_scorer import OfferingScorer
from services.provisioner.offerings.offering_store import OfferingRecords, OfferingStore
from services.settings.provider_choices import choices_of

SHOWN_MAX: Final = 5000

_pool: Final = decoder(PoolRecord)

Uses = dict[Offering, dict[str, offering_blocks.BlockTarget]]
"""Offering -> pool that may launch it -> what may block it there."""


def answer_offerings(
    bus: Bus, store: InstanceStore, offerings: OfferingStore, scorer: OfferingScorer
) -> Endpoint:
    """Answer the offerings query; those that pools name come first."""

    async def answer(data: bytes, _: Headers) -> bytes:
        query = msgspec.json.decode(data or b"{}", type=OfferingsQuery)
        entries = await bus.entries(POOLS, pool_key("*"))
        uses = launchable_offerings(
            [record for _, record in readable(entries, _pool)], scorer.catalogue
        )
        if query.everything:
            uses |= {
                each: {} for each in _catalogue_offerings(scorer.catalogue) if each not in uses
            }
        known = await offerings.records()
        records = await store.all()
        for record in records.values():
            if record.offering is not None and record.state != "terminated":
                uses.setdefault(record.offering, {})
        views = [
            offering_view(offering, pools, known, records, scorer)
            for offering, pools in uses.items()
        ]
        wanted = [each for each in views if _matches(each, query, scorer.catalogue)][:SHOWN_MAX]
        begin = int(query.after or 0)
        page = wanted[begin : begin + query.limit]
        more = begin + len(page) < len(wanted)
        items = tuple(msgspec.Raw(encode(each)) for each in page)
        return encode(Page(items=items, next=str(begin + len(page)) if more else ""))

    return answer


def launchable_offerings(pools: Iterable[PoolRecord], catalogue: OfferingCatalogue) -> Uses:
    """Return what the pools may launch, in their order."""
    found: Uses = {}
    chosen = ((each, choice) for each in pools for choice in choices_of(each.spec))
    for pool, choice in chosen:
        configuration = offering_blocks.configuration_digest(
            msgspec.json.encode(choice, order="deterministic")
        )
        for each in candidates(choice, catalogue):
            of = each.offering
            target = catalogue.target(of, pool.name, configuration)
            found.setdefault(of, {})[pool.name] = target
    return found


def offering_view(
    offering: Offering,
    pools: Mapping[str, offering_blocks.BlockTarget],
    known: OfferingRecords,
    records: Mapping[str, InstanceRecord],
    scorer: OfferingScorer,
) -> OfferingView:
    """Return one offering as operators see it."""
    catalogue = scorer.catalogue
    blocks = {
        key: each
        for target in pools.values() or [catalogue.target(offering, "")]
        for key, each in offering_blocks.find_blocks(target, known.blocks)
    }
    full = scorer.quota_block(catalogue.target(offering, ""), known)
    if full is not None and not quotas.was_freed(full, records.values()):
        blocks["quota"] = full
    spec = catalogue.spec(offering.provider, offering.instance_type)
    price = scorer.price(offering, known)
    here = [
        each.pool
        for each in records.values()
        if each.offering == offering and each.state != "terminated"
    ]
    uses = (
        OfferingUse(pool=name, instances=here.count(name))
        for name in {**pools} | dict.fromkeys(here)
    )
    taken = known.interruptions.get(offering, ())
    found = OfferingView(
        provider=offering.provider,
        plugin=catalogue.kind(offering.provider),
        region=offering.region,
        zone=offering.zone,
        instance_type=offering.instance_type,
        market=offering.market,
        abstract=catalogue.abstract(offering.provider, offering.instance_type),
        gpus=spec.gpus if spec is not None else 0,
        gpu=spec.gpu if spec is not None else "",
        dollars_per_hour=price.dollars_per_hour,
        price_from=price.source,
        price_at=price.at,
        reported_available=price.reported_available,
        fixed_capacity=catalogue.has_fixed_capacity(offering.provider),
        interruptions=len(taken),
        interrupted_at=max((each.at for each in taken), default=None),
        used_by=tuple(uses),
    )
    return _with_block(found, list(blocks.values()))


def _with_block(found: OfferingView, blocks: list[BlockRecord]) -> OfferingView:
    if not blocks:
        return found
    worst = max(blocks, key=lambda each: each.probe_at)
    return replace(
        found,
        state="exhausted" if worst.kind == "CAPACITY" else "blocked",
        kind=worst.kind,
        reason=worst.reason,
        since=worst.since,
        failures=worst.failures,
        probe_at=worst.probe_at,
        probe=worst.probe,
    )


def _catalogue_offerings(catalogue: OfferingCatalogue) -> Iterable[Offering]:
    for provider, site in catalogue.sites.items():
        types = {
            **catalogue.types.types.get(site.kind, {}),
            **catalogue.types.types.get(provider, {}),
        }
        for instance_type in types:
            if instance_type != OTHERS:
                yield Offering(
                    provider=provider,
                    region=site.region,
                    instance_type=instance_type,
                    market=site.market,
                )


def _matches(each: OfferingView, query: OfferingsQuery, catalogue: OfferingCatalogue) -> bool:
    return (
        query.provider in ("", each.provider, catalogue.kind(each.provider))
        and query.instance_type in ("", each.instance_type, *each.abstract)
        and (not query.pool or any(use.pool == query.pool for use in each.used_by))
    )
