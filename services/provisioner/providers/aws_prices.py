"""Prices at AWS: spot by zone, from EC2, and on-demand by instance type, from the price list.

The price list is a service of three regions, for all others too. Its prices change seldom, so each
type is asked for every few hours only.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from schemas.launch_offers import Market
from schemas.offering_records import OfferingPrice
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.aws_clients import PRICE_LIST, AwsClients
from services.provisioner.providers.missing_right import MissingRight

SPOT_PAGES_MAX: Final = 20
SPOT_PRODUCT: Final = "Linux/UNIX"
ON_DEMAND_SECONDS: Final = 6 * 3600.0
"""How long an on-demand price is kept."""
ELSEWHERE: Final = ("cn-", "us-gov-", "us-iso", "eusc-")
"""Regions of partitions whose prices the price list of the public regions lacks."""
MEANT: Final = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
"""Attributes of the product that is launched here."""
NO_RIGHT: Final = "AccessDeniedException"


class AwsPrices:
    """Reads the prices of one region."""

    def __init__(self, clients: AwsClients) -> None:
        self._clients = clients
        self._on_demand: dict[str, tuple[float, float | None]] = {}
        """Type -> when its price was read, and the price; None: the list has none."""
        self._missing_right = MissingRight("no on-demand prices")

    async def read(self, instance_types: Sequence[str]) -> tuple[OfferingPrice, ...]:
        """Return the on-demand price of each type, and its spot prices by zone."""
        if not instance_types:
            return ()
        dollars = await self._list_prices(instance_types)
        priced = [self._price(each, dollars[each]) for each in instance_types if each in dollars]
        return (*priced, *await self._spot(instance_types))

    async def _spot(self, instance_types: Sequence[str]) -> list[OfferingPrice]:
        found: dict[tuple[str, str], OfferingPrice] = {}
        read = 0
        pages = self._clients.pages(
            *("ec2", "describe_spot_price_history"),
            InstanceTypes=list(instance_types),
            ProductDescriptions=[SPOT_PRODUCT],
            StartTime=datetime.now(UTC),
        )
        async for page in pages:
            for each in page["SpotPriceHistory"]:
                zone, kind = each["AvailabilityZone"], each["InstanceType"]
                price = self._price(kind, float(each["SpotPrice"]), zone, "spot")
                found.setdefault((zone, kind), price)  # the newest comes first
            read += 1
            if read == SPOT_PAGES_MAX:
                break
        return list(found.values())

    async def _list_prices(self, instance_types: Sequence[str]) -> Mapping[str, float]:
        """Return the on-demand prices that are known; none without the right to the list."""
        if self._clients.region.startswith(ELSEWHERE):
            return {}
        now = asyncio.get_running_loop().time()
        for each in instance_types:
            known = self._on_demand.get(each)
            if known is None or now - known[0] >= ON_DEMAND_SECONDS:
                try:
                    self._on_demand[each] = (now, await self._list_price(each))
                except ProviderError as error:
                    if error.code != NO_RIGHT:
                        raise
                    self._missing_right.log("pricing:GetProducts", error)
                    break
        found = {each: self._on_demand.get(each, (0.0, None))[1] for each in instance_types}
        return {each: dollars for each, dollars in found.items() if dollars is not None}

    async def _list_price(self, instance_type: str) -> float | None:
        wanted = MEANT | {"regionCode": self._clients.region, "instanceType": instance_type}
        filters = [
            {"Type": "TERM_MATCH", "Field": field, "Value": value}
            for field, value in wanted.items()
        ]
        answer = await self._clients.call(
            PRICE_LIST, "get_products", ServiceCode="AmazonEC2", Filters=filters
        )
        return hourly_price(answer["PriceList"])

    def _price(
        self, instance_type: str, dollars: float, zone: str = "", market: Market = "on-demand"
    ) -> OfferingPrice:
        return OfferingPrice(
            region=self._clients.region,
            zone=zone,
            instance_type=instance_type,
            market=market,
            dollars_per_hour=dollars,
        )


def hourly_price(products: Iterable[str]) -> float | None:
    """Return the highest hourly price in dollars of products of the price list; None: none."""
    dimensions = [
        dimension
        for product in products
        for term in msgspec.json.decode(product).get("terms", {}).get("OnDemand", {}).values()
        for dimension in term.get("priceDimensions", {}).values()
    ]
    found = [_dollars(each) for each in dimensions if each.get("unit") == "Hrs"]
    return max((each for each in found if each > 0), default=None)


def _dollars(dimension: Mapping[str, Any]) -> float:
    try:
        return float(dimension.get("pricePerUnit", {}).get("USD", 0))
    except ValueError:
        return 0.0
