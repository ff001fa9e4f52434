"""`navarch offerings` gets its answer from the provisioner and formats it."""

from datetime import UTC, datetime, timedelta

import msgspec

from schemas.fleet_queries import Page
from schemas.messages import encode
from schemas.offering_records import (
    OfferingPrice,
    OfferingsQuery,
    OfferingUse,
    OfferingView,
    PricesRecord,
)
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import PoolSpec, ProviderChoice
from schemas.topology import POOLS
from services.bus.nats.nats_bus import NatsBus
from services.cli.text.offering_text import (
    no_offerings,
    offering_rows,
    price_text,
    state_text,
)
from services.primitives.clock import SystemClock
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.offerings.offering_queries import answer_offerings
from services.provisioner.offerings.offering_scorer import OfferingScorer
from services.provisioner.offerings.offering_store import OfferingStore
from services.settings.provider_choices import choice_of
from tests.provisioner.provisioner_parts import provision
from tests.provisioner.test_offering_allocator import TYPES, Market

POOL = PoolSpec(
    provider="fake",
    instance_type="h100-8x",
    providers=(
        ProviderChoice(name="fake", zones=("a", "b")),
        ProviderChoice(name="dear"),
    ),
    min_nodes=0,
    max_nodes=9,
)


async def asked(bus: NatsBus, market: Market, query: OfferingsQuery) -> list[OfferingView]:
    """Return a fresh replica's answer, all pages together."""
    store, clock = InstanceStore(bus), SystemClock()
    sites = OfferingCatalogue(TYPES, market.traits())
    weigher = OfferingScorer(store, clock, sites)
    answer = answer_offerings(bus, store, OfferingStore(bus, clock), weigher)
    found: list[OfferingView] = []
    while True:
        page = msgspec.json.decode(await answer(msgspec.json.encode(query), {}), type=Page)
        found += [msgspec.json.decode(each, type=OfferingView) for each in page.items]
        if not page.next:
            return found
        query = msgspec.structs.replace(query, after=page.next)


async def test_offerings_are_shown_with_price_state_and_use(bus: NatsBus) -> None:
    """Offerings are in the pool's order, with blocks, use and the provider's price."""
    record = PoolRecord(name="web", spec=POOL, desired=0)
    await bus.put(POOLS, pool_key("web"), encode(record))
    market = Market(bus)
    market.order("fake", "CAPACITY", zone="a")
    await market.steps().provision(provision("web-1", choice=choice_of(POOL)))
    said = PricesRecord(
        provider="dear",
        at=datetime.now(UTC),
        prices=(OfferingPrice(instance_type="big", dollars_per_hour=4.5, available=True),),
    )
    await OfferingStore(bus, SystemClock()).put_prices(said)
    found = await asked(bus, market, OfferingsQuery(limit=1))
    assert [(each.zone, each.state, each.dollars_per_hour) for each in found] == [
        ("a", "exhausted", 3.0),
        ("b", "available", 3.0),
        ("", "available", 4.5),
    ]
    assert [each.price_from for each in found] == ["catalogue", "catalogue", "provider"]
    assert found[0].kind == "CAPACITY"
    assert found[0].probe_at is not None
    assert found[1].used_by == (OfferingUse(pool="web", instances=1),)
    assert {each.abstract for each in found} == {("h100-8x",)}
    assert found[2].reported_available
    only = await asked(bus, market, OfferingsQuery(provider="dear"))
    assert only == found[2:]
    assert await asked(bus, market, OfferingsQuery(instance_type="h100-8x")) == found
    assert await asked(bus, market, OfferingsQuery(pool="job")) == []


async def test_the_catalogue_is_shown_where_it_is_asked_for(bus: NatsBus) -> None:
    """Offerings that no pool names are shown too, so that a person and `navarch up` know them."""
    market = Market(bus)
    assert await asked(bus, market, OfferingsQuery()) == []
    found = await asked(bus, market, OfferingsQuery(everything=True))
    assert [(each.provider, each.gpus, each.dollars_per_hour) for each in found] == [
        ("fake", 8, 3.0),
        ("dear", 8, 5.0),
    ]


NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)


def test_an_offering_reads_as_a_person_would_say_it() -> None:
    """An exhausted offering shows since when it is so, its probe, and its price's age.

    The probe is shown as the node that makes it, or as its time.
    """
    plain = OfferingView(provider="aws", zone="us-east-1a", instance_type="p5.48xlarge")
    assert state_text(plain, NOW) == "available"
    assert price_text(plain, NOW) == "not known"
    gone = msgspec.structs.replace(
        plain,
        state="exhausted",
        kind="CAPACITY",
        since=NOW - timedelta(seconds=90),
        failures=3,
        probe_at=NOW + timedelta(seconds=20),
        dollars_per_hour=55.04,
        price_from="provider",
        price_at=NOW - timedelta(seconds=90),
        gpus=8,
        gpu="H100",
        used_by=(OfferingUse(pool="web", instances=2), OfferingUse(pool="job")),
    )
    [row] = offering_rows([gone], NOW)
    assert row[:7] == (
        "aws",
        "us-east-1a",
        "p5.48xlarge",
        "8 H100",
        "on-demand",
        "55.04",
        "1.5 min ago",
    )
    assert row[7].startswith("exhausted since ")
    assert ", 3 tries, next try " in row[7]
    assert row[8] == "web 2, job 0"
    tried = msgspec.structs.replace(gone, probe="web.web-7-abcd", state="blocked", reason="denied")
    assert state_text(tried, NOW).endswith(", web-7-abcd tries it now (denied)")


def test_an_empty_list_does_not_advise_the_option_that_was_given() -> None:
    """`--all` is advised only without it."""
    assert "--all" in no_offerings("", everything=False)
    assert "--all" in no_offerings("--type x", everything=False)
    said = no_offerings("--type x", everything=True)
    assert said.startswith("The catalogue has no offering that matches --type x")
    assert "--all" not in said
