"""Reads Google's machines, the price list of their parts, and quotas of GPUs.

Compute Engine counts GPUs by model, in each region, apart for standard and for spot machines, and
those of older models in all regions together. A spot machine takes the standard quota where the
project has none of its own for spot. What is reserved was counted when it was reserved.

Models that Compute Engine counts by family (H100 and later, on demand) are not among its answers:
their quotas are in another API, which does not say how much is used.
"""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from schemas.launch_offers import Market, Offering
from schemas.offering_records import OfferingPrice, OfferingQuota
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.gcp_http import GcpApi
from services.provisioner.providers.gcp_launch import region_of_zone
from services.provisioner.providers.gcp_skus import (
    Machine,
    Rates,
    Sku,
    add_rates,
    machine_prices,
)
from services.provisioner.providers.missing_right import MissingRight
from services.provisioner.providers.provider_http import convert

KEPT_SECONDS: Final = 6 * 3600.0
COMPUTE_ENGINE: Final = "services/6F81-5844-456A"
SKUS_PAGE: Final = 2000
SKU_PAGES_MAX: Final = 100
SKU_FIELDS: Final = (
    "nextPageToken,skus(description,category/usageType,serviceRegions,"
    "pricingInfo/pricingExpression(usageUnit,tieredRates/unitPrice))"
)
MACHINES_PAGE: Final = 500
MACHINE_PAGES_MAX: Final = 20
RIGHT_TO_MACHINES: Final = "compute.machineTypes.list"
REGIONS_MAX: Final = 20
"""Asked in one reading; further ones count as having room."""
RIGHTS: Final = "compute.regions.get, compute.projects.get, compute.machineTypes.list"
FIELDS: Final = "quotas"
EVERYWHERE: Final = "GPUS_ALL_REGIONS"
METRICS: Final[Mapping[str, str]] = {
    "nvidia-tesla-p100": "NVIDIA_P100_GPUS",
    "nvidia-tesla-p4": "NVIDIA_P4_GPUS",
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
    "nvidia-h100-mega-80gb": "NVIDIA_H100_MEGA_GPUS",
    "nvidia-h200-141gb": "NVIDIA_H200_GPUS",
    "nvidia-b200": "NVIDIA_B200_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
}
"""Accelerator type -> the metric that counts it."""


class SkuPage(msgspec.Struct, rename="camel", frozen=True):
    """Holds a page of the price list."""

    skus: tuple[Sku, ...] = ()
    next_page_token: str = ""


class Accelerator(msgspec.Struct, rename="camel", frozen=True):
    """Says how many GPUs a machine type has, and which."""

    guest_accelerator_type: str = ""
    guest_accelerator_count: int = 0


class MachineType(msgspec.Struct, rename="camel", frozen=True):
    """Describes a machine type in a zone."""

    name: str
    guest_cpus: int = 0
    memory_mb: int = 0
    accelerators: tuple[Accelerator, ...] = ()


class GcpMachines:
    """Machine types of a project, kept for hours."""

    def __init__(self, compute: GcpApi) -> None:
        """`compute`: calls of the project."""
        self._compute = compute
        self._known: dict[str, tuple[float, Machine]] = {}
        """Name -> when it was read, and what it is."""

    async def read(self, names: Sequence[str]) -> list[Machine]:
        """Return these types; one that Google does not have is in no region."""
        now = asyncio.get_running_loop().time()
        missing = [
            each
            for each in names
            if each not in self._known or now - self._known[each][0] >= KEPT_SECONDS
        ]
        if missing:
            found = await self._read(missing)
            self._known |= {each: (now, found.get(each, Machine(name=each))) for each in missing}
        return [self._known[each][1] for each in names]

    async def _read(self, names: Sequence[str]) -> Mapping[str, Machine]:
        found: dict[str, Machine] = {}
        quoted = ('"' + each.replace('"', "") + '"' for each in names)
        query: dict[str, Any] = {"filter": " OR ".join(f"(name = {each})" for each in quoted)}
        for _ in range(MACHINE_PAGES_MAX):
            page = await self._compute.call(
                "GET", "aggregated/machineTypes", maxResults=MACHINES_PAGE, **query
            )
            if page.get("unreachables"):
                raise ProviderError("TRANSIENT", f"no answer from {page['unreachables']}")
            for scope, listed in page.get("items", {}).items():
                region = region_of_zone(str(scope).removeprefix("zones/"))
                for each in listed.get("machineTypes", ()):
                    made = _machine(each, region, found)
                    found[made.name] = made
            if not page.get("nextPageToken"):
                break
            query["pageToken"] = page["nextPageToken"]
        return found


def _machine(listed: Any, region: str, known: Mapping[str, Machine]) -> Machine:
    """A machine type, with one more region."""
    read = convert(listed, MachineType)
    gpu = read.accelerators[0] if read.accelerators else Accelerator()
    regions = known[read.name].regions if read.name in known else frozenset[str]()
    return Machine(
        name=read.name,
        cores=read.guest_cpus,
        memory_mib=read.memory_mb,
        gpu=gpu.guest_accelerator_type,
        gpus=gpu.guest_accelerator_count,
        regions=regions | {region},
    )


class GcpPrices:
    """Prices of machine types, in every region that has them.

    The list is of all regions and has tens of thousands of entries; its prices change seldom. So
    both are read every few hours only.
    """

    def __init__(self, machines: GcpMachines, billing: GcpApi, right: str) -> None:
        """`right`: what an account needs to read the list."""
        self._machines = machines
        self._billing = billing
        self._right = right
        self._rates: tuple[float, Rates] | None = None
        self._missing_right = MissingRight("no prices of Google")

    async def read(self, instance_types: Sequence[str]) -> tuple[OfferingPrice, ...]:
        """Return on-demand and spot prices; none without the right to read them."""
        if not instance_types:
            return ()
        try:
            machines = await self._machines.read(instance_types)
        except ProviderError as error:
            refused = error.status == HTTPStatus.FORBIDDEN
            return self._without(error, RIGHT_TO_MACHINES, lacking=refused)
        try:
            rates = await self._current_rates()
        except ProviderError as error:
            return self._without(error, self._right, lacking=error.kind == "AUTH")
        return tuple(price for each in machines for price in machine_prices(each, rates))

    def _without(self, error: ProviderError, right: str, *, lacking: bool) -> tuple[()]:
        """No prices where a right is lacking, which is logged once; else raise the error."""
        if not lacking:
            raise error
        self._missing_right.log(right, error)
        return ()

    async def _current_rates(self) -> Rates:
        now = asyncio.get_running_loop().time()
        if self._rates is None or now - self._rates[0] >= KEPT_SECONDS:
            self._rates = (now, await self._read_rates())
        return self._rates[1]

    async def _read_rates(self) -> Rates:
        rates: Rates = {}
        query: dict[str, Any] = {"pageSize": SKUS_PAGE, "currencyCode": "USD", "fields": SKU_FIELDS}
        for _ in range(SKU_PAGES_MAX):
            answer = await self._billing.call("GET", f"v1/{COMPUTE_ENGINE}/skus", **query)
            page = convert(answer, SkuPage)
            add_rates(rates, page.skus)
            if not page.next_page_token:
                return rates
            query["pageToken"] = page.next_page_token
        raise ProviderError("TRANSIENT", f"the price list has more than {SKU_PAGES_MAX} pages")


class Quota(msgspec.Struct, frozen=True):
    """One quota of an answer; without a limit it is none."""

    metric: str = ""
    limit: float = -1.0
    usage: float = 0.0


class QuotaList(msgspec.Struct, frozen=True):
    """The quotas of a region or project."""

    quotas: tuple[Quota, ...] = ()


def region_of(offering: Offering) -> str:
    """Return the region of an offering."""
    return offering.region or region_of_zone(offering.zone)


def tightest(
    machine: Machine,
    market: Market,
    regional: Mapping[str, Quota],
    project: Mapping[str, Quota],
    *,
    flexible: bool,
) -> Quota | None:
    """The quota with the least room for a machine type; None: none is known.

    `flexible`: on demand means flex-start, which takes the quota of spot machines.
    """
    metric = METRICS.get(machine.gpu, "")
    spot = regional.get(f"PREEMPTIBLE_{metric}")
    if (market == "spot" or (flexible and market == "on-demand")) and spot and spot.limit:
        return spot
    own = regional.get(metric)
    if market == "reserved" or own is None:
        return None
    found = [own, *(each for each in [project.get(EVERYWHERE)] if each is not None)]
    return min(found, key=lambda each: each.limit - each.usage)


class GcpQuotas:
    """Reads the quotas of a project."""

    def __init__(
        self, compute: GcpApi, machines: GcpMachines, project: str, *, flexible: bool
    ) -> None:
        self._compute = compute
        self._machines = machines
        self._project = project
        self._flexible = flexible
        self._missing_right = MissingRight("no quotas")

    async def read(self, offerings: Sequence[Offering]) -> tuple[OfferingQuota, ...]:
        """Return the quota with the least room of each offering; none without the right to it."""
        if not offerings:
            return ()
        try:
            return tuple(await self._read(offerings))
        except ProviderError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            self._missing_right.log(RIGHTS, error)
            return ()

    async def _read(self, offerings: Sequence[Offering]) -> list[OfferingQuota]:
        names = list(dict.fromkeys(each.instance_type for each in offerings))
        machines = {each.name: each for each in await self._machines.read(names)}
        regions = list(dict.fromkeys(filter(None, map(region_of, offerings))))[:REGIONS_MAX]
        regional = {each: await self._quotas(f"regions/{each}") for each in regions}
        project = await self._quotas("")
        found: dict[tuple[str, str, Market], OfferingQuota] = {}
        for each in offerings:
            region, name = region_of(each), each.instance_type
            least = tightest(
                machines[name],
                each.market,
                regional.get(region, {}),
                project,
                flexible=self._flexible,
            )
            if least is not None:
                found[region, name, each.market] = self._quota(machines[name], each, least)
        return list(found.values())

    async def _quotas(self, path: str) -> dict[str, Quota]:
        answer = await self._compute.call("GET", path, fields=FIELDS)
        found = convert(answer, QuotaList).quotas
        return {each.metric: each for each in found if each.limit >= 0}

    def _quota(self, machine: Machine, of: Offering, least: Quota) -> OfferingQuota:
        everywhere = least.metric == EVERYWHERE
        where = f"project {self._project}" if everywhere else region_of(of)
        return OfferingQuota(
            region=region_of(of),
            instance_type=machine.name,
            market=of.market,
            quota=f"{least.metric} in {where}",
            limit=least.limit,
            used=least.usage,
            takes=machine.gpus,
        )
