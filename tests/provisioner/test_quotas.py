"""Quotas as a provider reports them: where one is full, no launch is requested."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from schemas.enums import InstanceState, ProviderErrorKind
from schemas.instance_records import InstanceRecord
from schemas.instance_type_catalogue import InstanceTypes
from schemas.launch_offers import Offering
from schemas.messages import encode
from schemas.offering_records import OfferingPrice, OfferingQuota, OfferingsQuery, PricesRecord
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_params import LaunchSpec
from schemas.settings import PoolSpec
from schemas.topology import POOLS
from services.bus.nats.nats_bus import NatsBus
from services.cli.text.offering_text import state_text
from services.primitives.clock import SystemClock
from services.provisioner.offerings import quotas
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.offerings.offering_scorer import OfferingScorer
from services.provisioner.offerings.offering_store import OfferingRecords, OfferingStore
from services.provisioner.offerings.price_reader import PriceReader
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.fake import FakeProvider
from services.saga.participant import StepFailure
from tests.provisioner.provisioner_parts import fake, provision, terminate
from tests.provisioner.test_offering_allocator import BOTH, Market
from tests.provisioner.test_offering_queries import POOL, asked

FULL = OfferingQuota(instance_type="big", quota="H100 in r1", limit=16, used=12, takes=8)
SENTENCE = "quota H100 in r1: 12 of 16 used, big takes 8; request an increase"


async def report(
    bus: NatsBus, *full: str, age_seconds: float = 0.0, quota: OfferingQuota = FULL
) -> None:
    """Store that these providers reported a quota, so long ago."""
    clock = SystemClock()
    at = clock.now() - timedelta(seconds=age_seconds)
    for name in full:
        record = PricesRecord(provider=name, at=at, quotas=(quota,), quotas_at=at)
        await OfferingStore(bus, clock).put_prices(record)


async def test_what_has_no_quota_left_is_not_requested(bus: NatsBus) -> None:
    """The next offering is launched; without one, the launch fails with the remedy."""
    market = Market(bus)
    await report(bus, "fake")
    outputs = await market.steps().provision(provision("web-1", choice=BOTH))
    assert "dear" == outputs.provider
    await report(bus, "dear")
    with pytest.raises(StepFailure, match="QUOTA") as failed:
        await market.steps().provision(provision("web-2", choice=BOTH))
    assert SENTENCE in str(failed.value)
    await market.steps().terminate(terminate("web-2"))
    with pytest.raises(StepFailure, match="QUOTA"):
        await market.steps().provision(provision("web-3", choice=BOTH))
    assert [] == market.providers["fake"].calls("provision")
    assert ["web-1"] == market.providers["dear"].calls("provision")


@pytest.mark.parametrize("why", ["there is room", "it is of another market", "it is old"])
async def test_only_a_full_quota_that_was_reported_lately_counts(bus: NatsBus, why: str) -> None:
    """Anything else is asked of the cloud."""
    quota = replace(FULL, used=8) if why == "there is room" else FULL
    quota = replace(quota, market="spot") if why == "it is of another market" else quota
    age = quotas.COUNTS_SECONDS if why == "it is old" else 0.0
    await report(bus, "fake", quota=quota, age_seconds=age)
    outputs = await Market(bus).steps().provision(provision("web-1", choice=BOTH))
    assert "fake" == outputs.provider


async def test_what_was_removed_since_may_have_made_room(bus: NatsBus) -> None:
    """A replacement that terminates first waits for no other reading of the quota."""
    market = Market(bus)
    await market.steps().provision(provision("web-1", choice=BOTH))
    await report(bus, "fake")
    full = await market.steps().provision(provision("web-2", choice=BOTH))
    await market.steps().terminate(terminate("web-1"))
    freed = await market.steps().provision(provision("web-3", choice=BOTH))
    assert ("dear", "fake") == (full.provider, freed.provider)


@pytest.mark.parametrize(
    ("kind", "provider", "state", "age_seconds", "passes"),
    [
        ("QUOTA", "fake", "terminating", 0.0, True),
        ("QUOTA", "fake", "terminating", quotas.REMOVAL_SECONDS_MAX + 1, False),
        ("QUOTA", "dear", "terminating", 0.0, False),
        ("QUOTA", "fake", "running", 0.0, False),
        ("QUOTA", "fake", "terminated", 0.0, False),
        ("AUTH", "fake", "terminating", 0.0, False),
    ],
)
def test_a_quota_that_a_machine_being_removed_still_fills_passes(
    kind: ProviderErrorKind,
    provider: str,
    state: InstanceState,
    age_seconds: float,
    *,
    passes: bool,
) -> None:
    """A successor where the quota is the pool's size waits a moment, and asks for no increase."""
    now = SystemClock().now()
    leaving = InstanceRecord(
        pool="web",
        instance="web-1",
        token="t",
        launch=LaunchSpec(fleet="f", provider=provider, instance_type="big"),
        provider=provider,
        state=state,
        intended_at=now,
        terminating_at=now - timedelta(seconds=age_seconds),
    )
    error = ProviderError(kind, "8 of 8 used")
    found = quotas.refusal(error, Offering(provider="fake", instance_type="big"), [leaving], now)
    assert passes == ((found.kind, found.scope) == ("CAPACITY", "quota"))
    assert passes or found is error


async def test_offerings_show_the_quota(bus: NatsBus) -> None:
    """The view shows it as a block, with what is used, and until when the report counts."""
    await bus.put(POOLS, pool_key("web"), encode(PoolRecord(name="web", spec=POOL, desired=0)))
    await report(bus, "dear")
    found = await asked(bus, Market(bus), OfferingsQuery(provider="dear"))
    [(state, kind, reason)] = [(each.state, each.kind, each.reason) for each in found]
    assert ("blocked", "QUOTA", SENTENCE) == (state, kind, reason)
    assert state_text(found[0], SystemClock().now()).endswith(f"({SENTENCE})")


@pytest.mark.parametrize(
    ("used", "limit", "sentence"),
    [
        (8.0, 8.0, "quota H100 in r1: 8 of 8 used; request an increase"),
        (0.0, 0.0, "quota H100 in r1: 0 of 0 used; request an increase"),
    ],
)
def test_the_sentence_says_what_is_used(used: float, limit: float, sentence: str) -> None:
    """The sentence says what one machine takes only where something is left."""
    assert sentence == quotas.describe(replace(FULL, used=used, limit=limit))


@pytest.mark.parametrize(
    ("region", "offering", "expected"),
    [
        ("", {"region": "us-central1"}, True),
        ("us-central1", {"region": "us-central1", "zone": "us-central1-a"}, True),
        ("us-central1", {"zone": "us-central1-a"}, True),
        ("us-central1", {"zone": "us-east1-b"}, False),
        ("us-central1", {"region": "us-east1", "zone": "us-central1-a"}, False),
        ("us-central1", {}, False),
        ("europe-west1", {"zone": "europe-west10-b"}, False),
        ("us-east-1", {"zone": "us-east-1a"}, True),
    ],
)
def test_an_offering_without_a_region_is_in_that_of_its_zone(
    region: str, offering: dict[str, str], expected: bool
) -> None:
    """An offering without a region is in that of its zone, for quotas and for prices."""
    of = Offering(provider="p", instance_type="big", **offering)
    assert expected == quotas.covers(region, of)
    clock = SystemClock()
    price = OfferingPrice(instance_type="big", region=region, dollars_per_hour=8.0)
    known = OfferingRecords(
        prices={"p": PricesRecord(provider="p", at=clock.now(), prices=(price,))}
    )
    scorer = OfferingScorer(None, clock, OfferingCatalogue(InstanceTypes(), {}))  # type: ignore[arg-type]
    # Where the provider chooses region and zone, any region's price counts.
    assert (expected or not offering) == (scorer.price(of, known).source == "provider")


# --- reading -------------------------------------------------------------------------------------


class Reporting:
    """The fake provider, which reports quotas and no prices."""

    def __init__(self, real: FakeProvider) -> None:
        """Wrap it."""
        self._real = real
        self.asked: list[Offering] = []
        self.broken = False

    def __getattr__(self, name: str) -> object:
        """Everything else passes."""
        return getattr(self._real, name)

    async def quotas(self, offerings: Sequence[Offering]) -> Sequence[OfferingQuota]:
        """Return the quota of each."""
        self.asked = list(offerings)
        if self.broken:
            raise ProviderError("TRANSIENT", "no answer")
        return [FULL]


async def test_quotas_of_what_pools_may_launch_are_read_and_kept(bus: NatsBus) -> None:
    """One that was not reported the last time has room."""
    pool = PoolSpec(
        provider="fake",
        instance_type="big",
        zones=("a", "b"),
        market=("spot", "on-demand"),
        min_nodes=0,
        max_nodes=1,
    )
    await bus.put(POOLS, pool_key("web"), encode(PoolRecord(name="web", spec=pool, desired=0)))
    clock, provider = SystemClock(), Reporting(fake())
    calls = ProviderCalls(provider, call_timeout_seconds=60.0)  # type: ignore[arg-type]
    assert calls.reports_offerings
    providers = Providers({"fake": calls})
    catalogue = OfferingCatalogue(InstanceTypes(), providers.traits())
    reader = PriceReader(bus, clock, OfferingStore(bus, clock), providers, catalogue)
    await reader.read_prices(["fake"])
    record = (await OfferingStore(bus, clock).records()).prices["fake"]
    assert ((FULL,), ()) == (record.quotas, record.prices)
    assert record.quotas_at is not None
    assert [("a", "spot"), ("b", "spot"), ("a", "on-demand"), ("b", "on-demand")] == [
        (each.zone, each.market) for each in provider.asked
    ]
    provider.broken = True
    await reader.read_prices(["fake"])
    record = (await OfferingStore(bus, clock).records()).prices["fake"]
    assert () == record.quotas
    assert () == await ProviderCalls(fake(), call_timeout_seconds=60.0).quotas([])
