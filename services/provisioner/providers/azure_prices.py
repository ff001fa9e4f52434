"""Makes queries of Azure's public price list, and reads prices from their answers. Pure.

The list has every meter of every service: for a machine size in a region the on-demand price and
the current spot price, for Linux and for Windows.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from schemas.launch_offers import Market
from schemas.offering_records import OfferingPrice

PATH: Final = "/api/retail/prices"
VERSION: Final = "2023-01-01-preview"
SIZES_MAX: Final = 15
"""In one query, because the filter is part of the URL."""
HOUR: Final = "1 Hour"
DOLLARS: Final = "USD"
OTHERS: Final = ("Windows", "CloudServices", "Dedicated Host")
"""Names of products other than the plain machine that is launched here."""
OLD_SPOT: Final = "Low Priority"
SPOT: Final = "Spot"


def price_queries(region: str, sizes: Sequence[str]) -> Iterable[dict[str, str]]:
    """Return the queries for these sizes."""
    for first in range(0, len(sizes), SIZES_MAX):
        quoted = (each.replace("'", "''") for each in sizes[first : first + SIZES_MAX])
        some = " or ".join(f"armSkuName eq '{each}'" for each in quoted)
        condition = (
            "serviceName eq 'Virtual Machines' and priceType eq 'Consumption' "
            f"and armRegionName eq '{region}' and ({some})"
        )
        yield {"api-version": VERSION, "currencyCode": DOLLARS, "$filter": condition}


def parse_prices(region: str, items: Iterable[Any]) -> tuple[OfferingPrice, ...]:
    """Return the prices of these entries; the most expensive meter of a size counts."""
    found: dict[tuple[str, Market], float] = {}
    for each in items:
        plain = each.get("unitOfMeasure") == HOUR and each.get("currencyCode") == DOLLARS
        size, sku = str(each.get("armSkuName", "")), str(each.get("skuName", ""))
        product = str(each.get("productName", ""))
        dollars = each.get("retailPrice")
        if not plain or not size or OLD_SPOT in sku or not isinstance(dollars, int | float):
            continue
        if any(other in product for other in OTHERS) or dollars <= 0:
            continue
        key: tuple[str, Market] = (size, "spot" if SPOT in sku else "on-demand")
        found[key] = max(found.get(key, 0.0), float(dollars))
    return tuple(
        OfferingPrice(region=region, instance_type=size, market=market, dollars_per_hour=dollars)
        for (size, market), dollars in sorted(found.items())
    )
