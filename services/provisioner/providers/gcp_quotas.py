"""Google's quotas of GPUs: what a project may have in a region, and in all of them.

Compute Engine counts GPUs by model, in each region, apart for standard and for spot machines, and
those of older models in all regions together. A spot machine takes the standard quota where the
project has none of its own for spot. What is reserved was counted when it was reserved.

Models that Compute Engine counts by family (H100 and later, on demand) are not among its answers:
their quotas are in another API, which does not say how much is used.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from schemas.launch_offers import Market, Offering
from schemas.offering_records import OfferingQuota
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.gcp_http import GcpApi
from services.provisioner.providers.gcp_launch import region_of_zone
from services.provisioner.providers.gcp_prices import GcpMachines
from services.provisioner.providers.gcp_skus import Machine
from services.provisioner.providers.missing_right import MissingRight
from services.provisioner.providers.provider_http import convert

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


class Quota(msgspec.Struct, frozen=True):
    """One quota of an answer; without a limit it is none."""

    metric: str = ""
    limit: float = -1.0
    usage: float = 0.0


class QuotaList(msgspec.Struct, frozen=True):
    """The quotas of a region or project."""

    quotas: tuple[Quota, ...] = ()


def region_of(offering: Offering) -> str:
    """The region of an offering."""
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
