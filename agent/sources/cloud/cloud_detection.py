"""Detects the cloud of this host, selects its notice sources, and reads its rack."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.settings import AgentConfig
from agent.sources.cloud import aws_metadata, azure_metadata, gcp_metadata
from agent.sources.cloud.metadata_http import MetadataUnavailable, fetch_ok
from agent.sources.cloud.notice_watcher import NoticeSource
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

SECONDS_MAX: Final = 1.0
RACK_CHARS_MAX: Final = 128
GCP_PATH: Final = "/computeMetadata/v1/instance/attributes/physical_host"
AZURE_PATH: Final = "/metadata/instance/compute?api-version=2021-02-01"
DMI: Final = Path("/sys/class/dmi/id")
AZURE_ASSET_TAG: Final = "7783-7084-3265-9085-8269-3286-77"
"""The chassis tag of Azure VMs, as opposed to other Microsoft machines."""


async def rack_of(cloud: str, base: str = "") -> str:
    """Rack that a cloud's metadata service reports; empty: none.

    Read once at the start with a short deadline, since a node needs no rack. AWS reports partitions
    (separate racks), Google the cluster, rack and host, Azure fault domains (hosts that share power
    and a switch).
    """
    ask = _ASK.get(cloud)
    if ask is None:
        return ""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            return await ask(base.rstrip("/"))
    except (TimeoutError, MetadataUnavailable, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.info("the rack is not known: %s", error or "no answer")
        return ""


async def _aws(base: str) -> str:
    imds = aws_metadata.Imds(base)
    partition = (await imds.get("placement/partition-number")).decode().strip()
    if not partition.isdigit():
        # In no partition group: a cluster group's nodes may be in any rack.
        return ""
    group = (await imds.get("placement/group-name")).decode().strip()
    return rack_name(group, f"partition-{partition}")


async def _gcp(base: str) -> str:
    url = (base or gcp_metadata.BASE) + GCP_PATH
    answer = await fetch_ok(url, headers=gcp_metadata.FLAVOR, seconds=SECONDS_MAX)
    return gcp_rack(answer.body.decode())


async def _azure(base: str) -> str:
    url = (base or azure_metadata.BASE) + AZURE_PATH
    answer = await fetch_ok(url, headers=azure_metadata.HEADERS, seconds=SECONDS_MAX)
    return azure_rack(msgspec.json.decode(answer.body))


_ASK: Final[Mapping[str, Callable[[str], Awaitable[str]]]] = {
    "aws": _aws,
    "gcp": _gcp,
    "azure": _azure,
}


def gcp_rack(physical_host: str) -> str:
    """Read `/cluster/rack/host`; another form names no rack."""
    parts = physical_host.strip().strip("/").split("/")
    return rack_name(*parts[:2]) if len(parts) == 3 and all(parts) else ""  # noqa: PLR2004


def azure_rack(compute: Any) -> str:
    """Read the fault domain, which is one of a placement group or scale set."""
    if not isinstance(compute, dict):
        return ""
    domain = str(compute.get("platformFaultDomain") or "").strip()
    group = str(compute.get("placementGroupId") or compute.get("vmScaleSetName") or "").strip()
    return rack_name(group, f"fault-domain-{domain}") if domain and group else ""


def rack_name(*parts: str) -> str:
    """Join the parts of a rack's name into one printable word."""
    joined = "/".join(part for part in parts if part)
    return "".join(c if c.isprintable() and c != " " else "-" for c in joined)[:RACK_CHARS_MAX]


def notice_sources(config: AgentConfig, clock: Clock, dmi: Path = DMI) -> Sequence[NoticeSource]:
    """Notice sources of the cloud; none outside the known clouds."""
    cloud = detect(dmi) if config.cloud == "auto" else config.cloud
    base, interval = config.cloud_metadata_url, float(config.cloud_interval)
    match cloud:
        case "aws":
            return aws_metadata.notice_sources(base, interval)
        case "gcp":
            return gcp_metadata.notice_sources(base, clock)
        case "azure":
            return azure_metadata.notice_sources(base, interval)
        case _:
            return ()


async def rack(config: AgentConfig, dmi: Path = DMI) -> str:
    """Return the rack of this host: of the setting, else of the cloud's metadata."""
    if config.rack:
        return config.rack
    cloud = detect(dmi) if config.cloud == "auto" else config.cloud
    return await rack_of(cloud, config.cloud_metadata_url)


def detect(dmi: Path) -> str:
    """Detect the cloud from the firmware's machine data; empty: none."""
    if _read(dmi / "sys_vendor") == "Amazon EC2":
        return "aws"
    if _read(dmi / "product_name") == "Google Compute Engine":
        return "gcp"
    return "azure" if _read(dmi / "chassis_asset_tag") == AZURE_ASSET_TAG else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
