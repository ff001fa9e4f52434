"""Adds up what a machine costs by Google's price list, which has its parts alone. Pure.

The Cloud Billing Catalog has a SKU for each core, GiB of memory and GPU of a machine series: by
region, for standard and for spot machines. A machine's price is their sum, without its disks. SKUs
are recognised by their descriptions, since nothing else of them names a series or a GPU. Where one
of a machine's parts is not found, it has no price.

Source: the discovery document of Cloud Billing v1, and descriptions as the public list has them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from schemas.launch_offers import Market
from schemas.offering_records import OfferingPrice

DESCRIPTION: Final = re.compile(
    r"(?P<spot>Spot Preemptible )?(?P<part>.+?)"
    r"(?P<attached> attached to Spot Preemptible VMs)? running in .+"
)
"""Reservations, commitments and flex-start have other descriptions."""
MARKETS: Final[Mapping[str, Market]] = {"OnDemand": "on-demand", "Preemptible": "spot"}
HOUR: Final = "h"
GIB_HOUR: Final = "GiBy.h"
DOLLARS: Final = "USD"
MIB: Final = 1024
SERIES: Final = (
    ("a2-", "A2 Instance"),
    ("a3-megagpu-", "A3Plus Instance"),
    ("a3-ultragpu-", "A3Ultra Instance"),
    ("a3-highgpu-", "A3 Instance"),
    ("a3-edgegpu-", "A3 Instance"),
    ("a4-", ""),
    ("g2-", "G2 Instance"),
    ("g4-", "G4 Instance"),
)
"""Beginning of a machine type -> of its SKUs; empty: cores and memory are part of its GPUs."""
GPUS: Final[Mapping[str, tuple[str, ...]]] = {
    "nvidia-tesla-a100": ("Nvidia Tesla A100 GPU",),
    "nvidia-a100-80gb": ("Nvidia Tesla A100 80GB GPU",),
    "nvidia-h100-80gb": ("Nvidia H100 80GB GPU",),
    "nvidia-h100-mega-80gb": ("Nvidia H100 80GB Mega GPU", "Nvidia H100 80GB Plus GPU"),
    "nvidia-h200-141gb": ("H200 141GB GPU",),
    "nvidia-b200": ("A4 Nvidia B200 (1 gpu slice)",),
    "nvidia-l4": ("Nvidia L4 GPU",),
    "nvidia-rtx-pro-6000": ("RTX 6000 96GB",),
}
"""Accelerator type -> its SKU; of several names each is used in some regions."""
PARTS: Final = frozenset(
    [f"{each} {part}" for _, each in SERIES for part in ("Core", "Ram") if each]
    + [name for names in GPUS.values() for name in names]
)
"""Of all that is priced here."""


class Money(msgspec.Struct, rename="camel", frozen=True):
    """Holds an amount of money in one currency."""

    currency_code: str = DOLLARS
    units: str = "0"
    nanos: int = 0

    @property
    def amount(self) -> float:
        """Return the amount in its currency; 0 where it is no number."""
        try:
            return int(self.units) + self.nanos / 1e9
        except ValueError:
            return 0.0


class TierRate(msgspec.Struct, rename="camel", frozen=True):
    """Holds a price that applies from some usage on."""

    unit_price: Money = Money()


class PricingExpression(msgspec.Struct, rename="camel", frozen=True):
    """Holds a price for a unit."""

    usage_unit: str = ""
    tiered_rates: tuple[TierRate, ...] = ()


class PricingInfo(msgspec.Struct, rename="camel", frozen=True):
    """Holds a price as of a time."""

    pricing_expression: PricingExpression = PricingExpression()


class Category(msgspec.Struct, rename="camel", frozen=True):
    """Says what kind of use a SKU is of."""

    usage_type: str = ""


class Sku(msgspec.Struct, rename="camel", frozen=True):
    """The fields of an entry that are read."""

    description: str = ""
    category: Category = Category()
    service_regions: tuple[str, ...] = ()
    pricing_info: tuple[PricingInfo, ...] = ()


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine type, and where there is one."""

    name: str
    cores: int = 0
    memory_mib: int = 0
    gpu: str = ""
    """Its accelerator type."""
    gpus: int = 0
    regions: frozenset[str] = frozenset()


Rates = dict[tuple[str, Market, str], float]
"""Region, market and part -> dollars per hour of one core, GiB or GPU."""


def add_rates(rates: Rates, skus: Iterable[Sku]) -> None:
    """Add what a page of the list has; of several for one part the most expensive counts."""
    for sku in skus:
        found = DESCRIPTION.fullmatch(sku.description)
        market = MARKETS.get(sku.category.usage_type)
        if found is None or market is None or found["part"] not in PARTS or not sku.pricing_info:
            continue
        if found["spot"] or found["attached"]:
            # Some spot SKUs have the usage type of standard ones.
            market = "spot"
        unit = GIB_HOUR if found["part"].endswith(" Ram") else HOUR
        dollars = _hourly(sku.pricing_info[-1].pricing_expression, unit)
        for region in sku.service_regions if dollars else ():
            key = (region, market, found["part"])
            rates[key] = max(rates.get(key, 0.0), dollars)


def _hourly(price: PricingExpression, unit: str) -> float:
    """Dollars per hour; 0: it has no such price."""
    if price.usage_unit != unit:
        return 0.0
    found = [each.unit_price for each in price.tiered_rates]
    return max((each.amount for each in found if each.currency_code == DOLLARS), default=0.0)


def machine_prices(machine: Machine, rates: Rates) -> list[OfferingPrice]:
    """Return the prices of a machine type, by region and market."""
    found: list[OfferingPrice] = []
    for region in sorted(machine.regions):
        for market in MARKETS.values():
            dollars = _machine_price(machine, region, market, rates)
            if dollars is not None:
                price = OfferingPrice(
                    region=region,
                    instance_type=machine.name,
                    market=market,
                    dollars_per_hour=round(dollars, 6),
                )
                found.append(price)
    return found


def _machine_price(machine: Machine, region: str, market: Market, rates: Rates) -> float | None:
    """The sum of its parts; None: one of them has no price."""
    series = next((sku for name, sku in SERIES if machine.name.startswith(name)), None)
    gpu = [rates.get((region, market, name), 0.0) for name in GPUS.get(machine.gpu, ())]
    parts: list[tuple[float, float]] = [(machine.gpus, max(gpu, default=0.0))]
    if series:
        parts += [
            (machine.cores, rates.get((region, market, f"{series} Core"), 0.0)),
            (machine.memory_mib / MIB, rates.get((region, market, f"{series} Ram"), 0.0)),
        ]
    if series is None or not all(count and dollars for count, dollars in parts):
        return None
    return sum(count * dollars for count, dollars in parts)
