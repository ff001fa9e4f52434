"""Detects the cloud of this host, and selects its notice sources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agent.settings import AgentConfig
from agent.sources.cloud import aws_metadata, azure_metadata, gcp_metadata
from agent.sources.cloud.notice_watcher import NoticeSource
from agent.sources.cloud.rack_lookup import rack_of
from services.primitives.clock import Clock

DMI: Final = Path("/sys/class/dmi/id")
AZURE_ASSET_TAG: Final = "7783-7084-3265-9085-8269-3286-77"
"""The chassis tag of Azure VMs, as opposed to other Microsoft machines."""


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
    """Rack of this host: the setting, else from the cloud's metadata."""
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
