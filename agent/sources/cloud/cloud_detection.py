"""Detects the cloud of this host, selects its notice sources, reads its rack and instance ID."""

import asyncio
import logging
import re
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
ID_CHARS_MAX: Final = 200
GCP_PATH: Final = "/computeMetadata/v1/instance"
AZURE_PATH: Final = "/metadata/instance/compute?api-version=2021-02-01"
DMI: Final = Path("/sys/class/dmi/id")
UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PLACEHOLDER_DIGITS_MAX: Final = 9
"""Different digits of a UUID that is no machine's own: `03000200-0400-0500-0006-000700080009`."""
AZURE_ASSET_TAG: Final = "7783-7084-3265-9085-8269-3286-77"
"""The chassis tag of Azure VMs, as opposed to other Microsoft machines."""


Ask = Callable[[str], Awaitable[str]]
"""Reads one value from the metadata service at this address; empty: it has none."""


async def rack_of(cloud: str, base: str = "") -> str:
    """Rack that a cloud's metadata service reports; empty: none.

    AWS reports partitions (separate racks), Google the cluster, rack and host, Azure fault domains
    (hosts that share power and a switch).
    """
    return await _read_once("rack", _RACK.get(cloud), base)


async def provider_id_of(cloud: str, base: str = "") -> str:
    """Instance ID that a cloud's metadata service reports, in its provider's form; empty: none."""
    return await _read_once("instance ID", _PROVIDER_ID.get(cloud), base)


async def _read_once(what: str, ask: Ask | None, base: str) -> str:
    """Read a value at the start, with a short deadline, since a node can do without it."""
    if ask is None:
        return ""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            return await ask(base.rstrip("/"))
    except (TimeoutError, MetadataUnavailable, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.info("the %s is not known: %s", what, error or "no answer")
        return ""


async def _aws(base: str) -> str:
    imds = aws_metadata.Imds(base)
    partition = (await imds.get("placement/partition-number")).decode().strip()
    if not partition.isdigit():
        # In no partition group: a cluster group's nodes may be in any rack.
        return ""
    group = (await imds.get("placement/group-name")).decode().strip()
    return rack_name(group, f"partition-{partition}")


async def _aws_id(base: str) -> str:
    return _word((await aws_metadata.Imds(base).get("instance-id")).decode())


async def _gcp(base: str) -> str:
    return gcp_rack(await _gcp_value(base, "attributes/physical_host"))


async def _gcp_id(base: str) -> str:
    zone = (await _gcp_value(base, "zone")).rpartition("/")[2]
    name = await _gcp_value(base, "name")
    return _word(f"{zone}/{name}") if zone and name else ""


async def _gcp_value(base: str, path: str) -> str:
    url = f"{base or gcp_metadata.BASE}{GCP_PATH}/{path}"
    answer = await fetch_ok(url, headers=gcp_metadata.FLAVOR, seconds=SECONDS_MAX)
    return answer.body.decode().strip()


async def _azure(base: str) -> str:
    return azure_rack(await _azure_compute(base))


async def _azure_id(base: str) -> str:
    compute = await _azure_compute(base)
    return _word(str(compute.get("name") or "").lower()) if isinstance(compute, dict) else ""


async def _azure_compute(base: str) -> Any:
    url = (base or azure_metadata.BASE) + AZURE_PATH
    answer = await fetch_ok(url, headers=azure_metadata.HEADERS, seconds=SECONDS_MAX)
    return msgspec.json.decode(answer.body)


def _word(text: str) -> str:
    """An ID as it was read; empty where that is no ID."""
    text = text.strip()
    return text if text.isprintable() and " " not in text and len(text) <= ID_CHARS_MAX else ""


_RACK: Final[Mapping[str, Ask]] = {"aws": _aws, "gcp": _gcp, "azure": _azure}
_PROVIDER_ID: Final[Mapping[str, Ask]] = {"aws": _aws_id, "gcp": _gcp_id, "azure": _azure_id}


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
    cloud = _cloud(config, dmi)
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
    return config.rack or await rack_of(_cloud(config, dmi), config.cloud_metadata_url)


async def provider_id(config: AgentConfig, dmi: Path = DMI) -> str:
    """Return the instance ID of this host, from the cloud's metadata."""
    return await provider_id_of(_cloud(config, dmi), config.cloud_metadata_url)


def machine_id(dmi: Path = DMI) -> str:
    """Return the UUID that the firmware gives this machine; empty: it gives none of its own.

    Only root may read it. Some vendors give all machines the same one, of few digits.
    """
    found = _read(dmi / "product_uuid").lower()
    digits = set(found) - {"-"}
    return found if UUID.fullmatch(found) and len(digits) > PLACEHOLDER_DIGITS_MAX else ""


def _cloud(config: AgentConfig, dmi: Path) -> str:
    return detect(dmi) if config.cloud == "auto" else config.cloud


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
