"""Prices and capacity as providers report them: read, stored, and shown with their age."""

from collections.abc import Callable, Sequence

import pytest

from schemas.instance_type_catalogue import InstanceTypes
from schemas.launch_offers import Offering
from schemas.messages import encode
from schemas.offering_records import OfferingPrice, PricesRecord
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import PoolSpec
from schemas.topology import POOLS
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.offerings.offering_scorer import OfferingScorer
from services.provisioner.offerings.offering_store import OfferingRecords, OfferingStore
from services.provisioner.offerings.price_reader import PriceReader
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.fake import FakeProvider
from services.provisioner.providers.lambda_cloud import LambdaProvider
from tests.provisioner.lambda_server import LambdaServer
from tests.provisioner.provisioner_parts import fake, request

EIGHT = "gpu_8x_h100_sxm5"


class Quoting:
    """Adds the prices of a test to the fake provider."""

    def __init__(self, real: FakeProvider) -> None:
        """Wrap it."""
        self._real = real
        self.said: list[OfferingPrice] = []
        self.asked: list[tuple[str, ...]] = []
        self.broken = False

    def __getattr__(self, name: str) -> object:
        """Everything else passes."""
        return getattr(self._real, name)

    async def prices(self, instance_types: Sequence[str]) -> Sequence[OfferingPrice]:
        """The prices that it reports."""
        self.asked.append(tuple(instance_types))
        if self.broken:
            raise ProviderError("TRANSIENT", "no answer")
        return self.said


async def test_the_last_good_prices_stay_with_their_age(bus: NatsBus) -> None:
    """A provider that cannot say changes nothing; what it had said is shown as old as it is."""
    pool = PoolSpec(provider="fake", instance_type="big", min_nodes=0, max_nodes=1)
    await bus.put(POOLS, pool_key("web"), encode(PoolRecord(name="web", spec=pool, desired=0)))
    clock, provider = SystemClock(), Quoting(fake())
    providers = Providers({"fake": ProviderCalls(provider, call_timeout_seconds=60.0)})  # type: ignore[arg-type]
    catalogue = OfferingCatalogue(InstanceTypes(), providers.traits())
    store = OfferingStore(bus, clock)
    reader = PriceReader(bus, clock, store, providers, catalogue)
    provider.said = [OfferingPrice(instance_type="big", dollars_per_hour=2.0)]
    await reader.read_prices(["fake"])
    provider.broken = True
    await reader.read_prices(["fake"])
    known = await OfferingStore(bus, clock).records()
    record = known.prices["fake"]
    assert (record.prices, record.error) == (tuple(provider.said), "TRANSIENT: no answer")
    assert provider.asked == [("big",)] * 2
    weigher = OfferingScorer(InstanceStore(bus), clock, catalogue)
    price = weigher.price(Offering(provider="fake", instance_type="big"), known)
    assert (price.dollars_per_hour, price.source, price.at) == (2.0, "provider", record.at)


PRICES = (
    OfferingPrice(instance_type="big", dollars_per_hour=9.0, available=False),
    OfferingPrice(instance_type="big", region="r1", dollars_per_hour=8.0, available=True),
    OfferingPrice(
        instance_type="big", region="r1", zone="r1-a", market="spot", dollars_per_hour=3.0
    ),
    OfferingPrice(
        instance_type="big", region="r1", zone="r1-b", market="spot", dollars_per_hour=4.0
    ),
)
PLACES = {
    "of its region": (Offering(provider="p", region="r1", instance_type="big"), 8.0, True),
    "of its type": (Offering(provider="p", region="r2", instance_type="big"), 9.0, False),
    "of its zone": (
        Offering(provider="p", region="r1", zone="r1-a", instance_type="big", market="spot"),
        3.0,
        None,
    ),
    "the dearest, where the provider chooses the zone": (
        Offering(provider="p", region="r1", instance_type="big", market="spot"),
        4.0,
        None,
    ),
}


@pytest.mark.parametrize(("offering", "dollars", "says"), PLACES.values(), ids=PLACES)
def test_what_is_said_of_the_nearest_counts(
    offering: Offering, dollars: float, says: bool | None
) -> None:
    """The price of a zone precedes the region's, which precedes the type's."""
    clock = SystemClock()
    record = PricesRecord(provider="p", at=clock.now(), prices=PRICES)
    weigher = OfferingScorer(None, clock, OfferingCatalogue(InstanceTypes(), {}))  # type: ignore[arg-type]
    price = weigher.price(offering, OfferingRecords(prices={"p": record}))
    assert (price.dollars_per_hour, price.reported_available) == (dollars, says)


async def test_lambda_reports_every_price_and_where_it_has_capacity(
    lambda_api: LambdaServer, make_lambda: Callable[..., LambdaProvider]
) -> None:
    """A region that Lambda does not name has no capacity."""
    lambda_api.having = {EIGHT: ("us-east-1",)}
    found = [each for each in await make_lambda().prices(()) if each.instance_type == EIGHT]
    assert {(each.region, each.available) for each in found} == {("", False), ("us-east-1", True)}
    assert len({each.dollars_per_hour for each in found}) == 1
    assert found[0].dollars_per_hour


async def test_aws_reports_spot_prices_by_zone(make_aws: Callable[..., AwsProvider]) -> None:
    """One for each zone and type, in dollars; without a type nothing is asked."""
    provider = make_aws()
    assert await provider.prices(()) == ()
    priced = await provider.prices(["p5.48xlarge"])
    found = [each for each in priced if each.market == "spot"]
    places = [(each.zone, each.instance_type) for each in found]
    assert places
    assert len(places) == len(set(places))
    for each in found:
        assert each.region == "us-east-1"
        assert each.zone.startswith("us-east-1")
        assert each.dollars_per_hour is not None


async def test_aws_launches_on_the_market_that_was_chosen(
    make_aws: Callable[..., AwsProvider],
) -> None:
    """A launch's market precedes the options, and another market is another token."""
    provider = make_aws()
    kind = {"region": "us-east-1", "instance_type": "p5.48xlarge"}
    spot = await provider.provision(request("web-1", market="spot", max_price=9.5, **kind))
    plain = await provider.provision(request("web-1", market="on-demand", **kind))
    assert spot.provider_id != plain.provider_id
    ids = [spot.provider_id, plain.provider_id]
    found = await provider._call("describe_instances", InstanceIds=ids)
    shown = [each for all_ in found["Reservations"] for each in all_["Instances"]]
    assert {each["InstanceId"]: each.get("InstanceLifecycle") for each in shown} == {
        spot.provider_id: "spot",
        plain.provider_id: None,
    }
