"""Makes what is launched at Google: options and description of an instance; its upkeep. Pure.

Source: Google's discovery document of Compute Engine, and its pages on disks of machine series,
reservations, flex-start and multiple network interfaces.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.launch_offers import Market, OpenMarket
from schemas.settings import FilePath, Setting
from services.provisioner.instances.instance_tags import tags_of
from services.provisioner.provider_client.provider import ProvisionRequest, ScheduledEvent

IMAGE_X86: Final = "ubuntu-accelerator-2204-amd64-with-nvidia-580"
IMAGE_ARM: Final = "ubuntu-accelerator-2404-arm64-with-nvidia-570"
ARM_TYPES: Final = "a4x-"
HYPERDISK_SERIES: Final = ("a3-ultragpu-", "a4-", "a4x-", "g4-")
"""They accept no persistent disk; Google's own default is a type that newer series refuse."""
NETWORKS_MAX: Final = 15
"""An instance has 16 interfaces at most."""
MODELS: Final = {
    "": "STANDARD",
    "flex-start": "FLEX_START",
    "reservation-bound": "RESERVATION_BOUND",
}


def upcoming_maintenance(instances: Iterable[tuple[str, Any]]) -> list[ScheduledEvent]:
    """The maintenance that is announced for instances, given with their provider IDs.

    A VM with GPUs cannot be moved while it runs: it is stopped as long as the maintenance lasts.
    """
    found: list[ScheduledEvent] = []
    for provider_id, instance in instances:
        about = instance.get("resourceStatus", {}).get("upcomingMaintenance", {})
        starts = _moment(about.get("windowStartTime"))
        if starts is None:
            continue
        kind = str(about.get("type", "")).lower() or "unknown_type"
        found.append(
            ScheduledEvent(
                provider_id=provider_id,
                event=f"{starts:%Y%m%dT%H%M}",
                action=f"{kind}-maintenance",
                text=f"Google Cloud announces {kind} maintenance of its host",
                effect="retire",
                starts_at=starts,
                ends_at=_moment(about.get("windowEndTime")),
            )
        )
    return found


def _moment(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


class NetworkOptions(Setting, frozen=True, kw_only=True):
    """Configures one more network interface."""

    network: str
    """Name of the network, or its path."""
    subnetwork: str = ""
    """Its subnetwork in the region; empty: that of an automatic network."""
    nic_type: Literal["", "GVNIC", "MRDMA", "IRDMA"] = ""
    """MRDMA: an RDMA interface of A3 Ultra and later; empty: Google chooses."""


class AcceleratorOptions(Setting, frozen=True, kw_only=True):
    """Configures GPUs of one type."""

    type: str
    """`nvidia-tesla-t4`."""
    count: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    """Of each node."""


class GcpOptions(Setting, frozen=True, kw_only=True):
    """Configures `providers: {gcp: {type: gcp, project: my-project, image: …}}`."""

    project: str
    """Id of the project that pays for the nodes."""
    image: str = ""
    """Image or image family: `projects/my-project/global/images/family/gpu-node`. Empty:
    Google's Ubuntu with the NVIDIA driver, which lacks the agent: see `user_data`."""
    credentials_file: FilePath = ""
    """A service account's key, a federation or an impersonation; empty: the application default
    credentials, which end with the metadata server of the machine this runs on."""
    market: OpenMarket = "on-demand"
    """The market of pools that name none; with a `reservation` that is `reserved`."""
    network: str = "global/networks/default"
    """Network of the nodes."""
    subnetwork: str = ""
    """Subnetwork of the nodes; empty: Google chooses by network and region."""
    public_address: bool = True
    """Whether nodes get a public address."""
    service_account: str = ""
    """That the node itself runs as; empty: none."""
    root_gb: Annotated[int, msgspec.Meta(ge=10, le=65_536)] = 100
    """Size of the root disk, in GB."""
    disk_type: str = ""
    """`pd-ssd`, `hyperdisk-balanced`; empty: one that the machine series accepts."""
    disk_kms_key: str = ""
    """Key of the root disk, `projects/…/locations/…/keyRings/…/cryptoKeys/…`; empty: Google's own.
    """
    networks: Annotated[tuple[NetworkOptions, ...], msgspec.Meta(max_length=NETWORKS_MAX)] = ()
    """More interfaces, after that of `network`: for GPUDirect one network for each."""
    accelerators: tuple[AcceleratorOptions, ...] = ()
    """GPUs to attach, for machine types that have none of their own (N1)."""
    reservation: str = ""
    """A reservation's name, or `projects/OWNER/reservations/NAME`: the market `reserved`."""
    provisioning: Literal["", "flex-start", "reservation-bound"] = ""
    """flex-start: short-lived capacity, which needs `max_run`. reservation-bound: the node ends
    with its `reservation`. Empty: as the market says."""
    report_faulty_hosts: bool = False
    """Report the host of a node that is replaced for an XID, which takes it out of the reservation
    for repair. Only for nodes of a reservation."""
    labels: dict[str, str] = {}  # noqa: RUF012 - msgspec makes each its own
    """More labels of the nodes, for the project's own accounting."""
    max_run: Duration = Duration(0)
    """After this Google itself deletes the instance; 0s: never."""
    prices_url: str = "https://cloudbilling.googleapis.com"
    """Address of the Cloud Billing API, whose price list is read; empty: prices are not read."""
    base_url: str = "https://compute.googleapis.com/compute/v1"
    """Address of the Compute Engine API."""
    metadata_url: str = "http://metadata.google.internal"
    """Where tokens are requested if there is no file with credentials."""
    timeout: Duration = Duration(30)
    """Of one request; waiting for an operation takes as long as the launch may."""
    wait_timeout: Duration = Duration(130)
    """Of one request that waits for an operation; Google holds it two minutes at most."""

    def __post_init__(self) -> None:
        """Refuse what Google would refuse at each launch."""
        if self.provisioning and self.market == "spot":
            raise ValueError(f"{self.provisioning} has no spot instances; remove one of both")
        if self.provisioning == "flex-start" and not self.max_run:
            raise ValueError("flex-start needs `max_run`, at most 168h")
        if self.provisioning == "flex-start" and self.reservation:
            raise ValueError("flex-start takes no capacity of a reservation; remove one of both")
        if self.provisioning == "reservation-bound" and not self.reservation:
            raise ValueError("reservation-bound needs `reservation`")


def launch_body(request: ProvisionRequest, options: GcpOptions, market: Market) -> dict[str, Any]:
    """Return the body of `instances.insert`."""
    metadata = [{"key": "ssh-keys", "value": "\n".join(request.ssh_keys)}]
    metadata += [{"key": "user-data", "value": request.user_data}]
    key = options.disk_kms_key
    body: dict[str, Any] = {
        "name": request.name,
        "machineType": f"zones/{request.zone}/machineTypes/{request.instance_type}",
        "labels": options.labels | tags_of(request),
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                **({"diskEncryptionKey": {"kmsKeyName": key}} if key else {}),
                "initializeParams": {
                    "sourceImage": options.image or _default_image(request.instance_type),
                    "diskSizeGb": str(options.root_gb),
                    "diskType": f"zones/{request.zone}/diskTypes/{_disk_type(request, options)}",
                },
            }
        ],
        "networkInterfaces": [_first_interface(options), *map(_interface, options.networks)],
        "scheduling": _scheduling(market, options),
        "metadata": {"items": [each for each in metadata if each["value"]]},
    }
    return body | {key: each for key, each in _extras(request, options, market).items() if each}


def region_of_zone(zone: str) -> str:
    """Return the region of a zone, as `us-central1` of `us-central1-a`."""
    return zone.rpartition("-")[0]


def _extras(request: ProvisionRequest, options: GcpOptions, market: Market) -> dict[str, Any]:
    """What few launches have; empty values are left out."""
    region = request.region or region_of_zone(request.zone)
    policy = f"projects/{options.project}/regions/{region}/resourcePolicies/"
    scope = "https://www.googleapis.com/auth/cloud-platform"
    account = {"email": options.service_account, "scopes": [scope]}
    return {
        "guestAccelerators": [
            {
                "acceleratorType": f"zones/{request.zone}/acceleratorTypes/{each.type}",
                "acceleratorCount": each.count,
            }
            for each in options.accelerators
        ],
        "reservationAffinity": _affinity(options, market),
        "resourcePolicies": [policy + request.placement_group] if request.placement_group else [],
        "serviceAccounts": [account] if options.service_account else [],
    }


def _first_interface(options: GcpOptions) -> dict[str, Any]:
    interface: dict[str, Any] = {"network": options.network}
    if options.subnetwork:
        interface["subnetwork"] = options.subnetwork
    if options.public_address:
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return interface


def _default_image(instance_type: str) -> str:
    """Google's image with the driver, for the processors of an instance type."""
    family = IMAGE_ARM if instance_type.startswith(ARM_TYPES) else IMAGE_X86
    return f"projects/ubuntu-os-accelerator-images/global/images/family/{family}"


def _disk_type(request: ProvisionRequest, options: GcpOptions) -> str:
    newer = request.instance_type.startswith(HYPERDISK_SERIES)
    return options.disk_type or ("hyperdisk-balanced" if newer else "pd-balanced")


def _interface(network: NetworkOptions) -> dict[str, Any]:
    named = {"subnetwork": network.subnetwork, "nicType": network.nic_type}
    return {"network": network.network} | {key: each for key, each in named.items() if each}


def _affinity(options: GcpOptions, market: Market) -> dict[str, Any]:
    if _provisioning(options, market) == "flex-start":
        return {"consumeReservationType": "NO_RESERVATION"}
    if market != "reserved":
        return {}
    return {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [options.reservation],
    }


def _provisioning(options: GcpOptions, market: Market) -> str:
    """The option, on the market that it is about."""
    of: Market = "reserved" if options.provisioning == "reservation-bound" else "on-demand"
    return options.provisioning if market == of else ""


def _scheduling(market: Market, options: GcpOptions) -> dict[str, Any]:
    spot, provisioning = market == "spot", _provisioning(options, market)
    scheduling: dict[str, Any] = {
        # GPUs cannot be moved to another host while they run.
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": not spot and provisioning != "flex-start",
        "provisioningModel": "SPOT" if spot else MODELS[provisioning],
    }
    if spot or options.max_run or provisioning:
        scheduling["instanceTerminationAction"] = "DELETE"
    if options.max_run:
        scheduling["maxRunDuration"] = {"seconds": str(int(options.max_run))}
    return scheduling
