"""Makes Azure's request bodies for one node, and reads instances from its answers. Pure.

A node is a machine, its disk, its network interface and optionally a public address, all named
after it; Azure deletes the others with the machine.
"""

import base64
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.launch_offers import Market, OpenMarket
from schemas.settings import FilePath, Setting
from services.provisioner.instances.instance_tags import (
    FLEET_TAG,
    short_name,
    tags_of,
    unique_name,
    with_tags,
)
from services.provisioner.provider_client.provider import Instance, InstanceStatus, ProvisionRequest
from services.provisioner.providers.request_checks import (
    check_labels,
    check_region,
    invalid,
    ssh_keys,
)

NAME: Final = re.compile(r"[a-z0-9][-a-z0-9]{0,62}")
NIC: Final = "-nic"
ADDRESS: Final = "-ip"
DISK: Final = "-disk"
ZONE: Final = re.compile(r"[1-9][0-9]?")
URN_PARTS: Final = 4
LABEL_NAME: Final = re.compile(r"[^<>%&\\?/]{1,512}")
LABEL_VALUE: Final = re.compile(r".{0,256}", re.DOTALL)
LABELS_MAX: Final = 50
PROVISIONING: Final = "ProvisioningState/failed/"

POWER: Final[dict[str, InstanceStatus]] = {
    "PowerState/starting": "pending",
    "PowerState/running": "running",
    "PowerState/stopping": "stopping",
    "PowerState/stopped": "stopped",
    "PowerState/deallocating": "stopping",
    "PowerState/deallocated": "stopped",
}
"""Azure's power state -> ours; a stopped machine costs as much as a running one."""
STATES: Final[dict[str, InstanceStatus]] = {
    "Creating": "pending",
    "Deleting": "stopping",
    "Failed": "stopped",
}
"""Provisioning state -> ours, without a power state; any other state counts as running."""


class AzureOptions(Setting, frozen=True, kw_only=True):
    """Configures the provider by subscription, resource group and location.

    `providers: {azure: {subscription: …, resource_group: gpus, location: eastus, …}}`.
    """

    subscription: str
    """Id of the subscription that pays for the nodes."""
    resource_group: str
    """For the nodes, and for no other provider; must exist."""
    location: str
    """The region: `eastus`."""
    image: str
    """Resource id of an image, or `publisher:offer:sku:version`."""
    subnet: str
    """Resource id."""
    tenant: str = ""
    """Of the service principal; empty: what Azure's environment variables say, then the managed
    identity of this machine, then the login of the Azure CLI."""
    client_id: str = ""
    """Application id of the service principal; without `tenant` that of a managed identity."""
    client_secret_env: str = "AZURE_CLIENT_SECRET"  # noqa: S105 - a variable's name
    """Environment variable that holds the principal's secret."""
    client_secret_file: FilePath = ""
    """File that holds it instead."""
    market: OpenMarket = "on-demand"
    """The market of pools that name none; with a `capacity_reservation_group`: `reserved`."""
    max_price: Annotated[float, msgspec.Meta(ge=-1)] = -1
    """Spot only, in dollars per hour; -1: up to the on-demand price."""
    admin_user: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "navarch"
    """The login user that each node is created with."""
    ssh_key: str = ""
    """Public key, for pools that name none under `ssh_keys`; Azure needs one."""
    security_group: str = ""
    """Resource id; empty: the subnet's own rules."""
    accelerated_networking: bool = True
    """Of the network interface; some older sizes refuse it."""
    public_address: bool = False
    """Whether nodes get a public address."""
    placement_group: str = ""
    """Name or resource id of a proximity placement group, for pools that name none."""
    scale_set: str = ""
    """Name or resource id of a flexible scale set. InfiniBand connects only nodes of one set."""
    availability_set: str = ""
    """Instead of a scale set; its nodes have no zone and are never spot."""
    capacity_reservation_group: str = ""
    """Name or resource id: the market `reserved`."""
    identity: str = ""
    """Resource id of the user-assigned identity that the node itself runs as; empty: none."""
    root_gb: Annotated[int, msgspec.Meta(ge=0, le=4095)] = 0
    """0: the size of the image."""
    disk_type: Literal["Premium_LRS", "StandardSSD_LRS", "Standard_LRS"] = "Premium_LRS"
    """Kind of the root disk."""
    disk_encryption_set: str = ""
    """Name or resource id of the set with the root disk's key; empty: the platform's own key."""
    base_url: str = "https://management.azure.com"
    """Address of the Resource Manager; it differs outside the public cloud."""
    audience: str = "https://management.azure.com"
    """Audience of the tokens; it differs outside the public cloud."""
    prices_url: str = "https://prices.azure.com"
    """Azure's public price list; empty: prices are not read."""
    login_url: str = "https://login.microsoftonline.com"
    """Where tokens are requested, by https; it differs outside the public cloud."""
    metadata_url: str = "http://169.254.169.254"
    """Where the managed identity's tokens are requested."""
    timeout: Duration = Duration(30)
    """Time limit of one request; an operation may take as long as the launch."""
    poll_interval: Duration = Duration(5)
    """Between two polls of an operation, unless Azure names another time."""

    def __post_init__(self) -> None:
        """Refuse what Azure would refuse at each launch."""
        if self.scale_set and self.availability_set:
            raise ValueError("a node is in a scale_set or in an availability_set; remove one")
        if self.market == "spot":
            for name in ("availability_set", "capacity_reservation_group"):
                if getattr(self, name):
                    raise ValueError(f"{name} has no spot machines; remove one of both")


# --- requests ------------------------------------------------------------------------------------


def check(request: ProvisionRequest, options: AzureOptions, provider: str) -> None:
    """Raise INVALID with the remedy if Azure cannot do what the pool needs."""
    check_region(request, options.location, provider, "azure")
    if request.zone and not ZONE.fullmatch(request.zone):
        raise invalid(f"zone {request.zone!r} of pool {request.pool}: at Azure write 1, 2 or 3")
    if request.zone and options.availability_set:
        raise invalid(
            f"pool {request.pool} names zones, and nodes of an availability set have none; remove "
            "`zones`, or use a scale_set"
        )
    if not NAME.fullmatch(unique_name(request)):
        raise invalid(f"Azure refuses the name {request.name!r}; rename the pool")
    if not ssh_keys(request, options.ssh_key):
        raise invalid(
            f"Azure needs an SSH public key and pool {request.pool} names none; set `ssh_keys` of "
            f"the pool, or `ssh_key` of provider {provider}"
        )
    tags = tags_of(request)
    if len(tags) > LABELS_MAX:
        raise invalid(f"pool {request.pool} has too many labels for Azure")
    rule = "at Azure: no % & / < > ? \\ in its name, at most 256 characters in its value"
    check_labels(tags, (LABEL_NAME, LABEL_VALUE), request.pool, rule)


def address_body(request: ProvisionRequest, options: AzureOptions) -> dict[str, Any]:
    """Return the body of a public address."""
    return {
        "location": options.location,
        "tags": tags_of(request),
        "sku": {"name": "Standard"},
        "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"},
    }


def nic_body(request: ProvisionRequest, options: AzureOptions, address_id: str) -> dict[str, Any]:
    """Return the body of a network interface, with a public address if `address_id` is set."""
    inner: dict[str, Any] = {
        "subnet": {"id": options.subnet},
        "privateIPAllocationMethod": "Dynamic",
    }
    if address_id:
        inner["publicIPAddress"] = {"id": address_id, "properties": {"deleteOption": "Delete"}}
    outer: dict[str, Any] = {
        "ipConfigurations": [{"name": "primary", "properties": inner}],
        "enableAcceleratedNetworking": options.accelerated_networking,
    }
    if options.security_group:
        outer["networkSecurityGroup"] = {"id": options.security_group}
    return {"location": options.location, "tags": tags_of(request), "properties": outer}


def machine_body(
    request: ProvisionRequest, options: AzureOptions, nic_id: str, market: Market
) -> dict[str, Any]:
    """Return the body of the machine."""
    system: dict[str, Any] = {
        "computerName": short_name(request),
        "adminUsername": options.admin_user,
        "linuxConfiguration": {
            "disablePasswordAuthentication": True,
            "ssh": {
                "publicKeys": [
                    {"path": f"/home/{options.admin_user}/.ssh/authorized_keys", "keyData": key}
                    for key in ssh_keys(request, options.ssh_key)
                ]
            },
        },
    }
    if request.user_data:
        system["customData"] = base64.b64encode(request.user_data.encode()).decode()
    properties: dict[str, Any] = {
        "hardwareProfile": {"vmSize": request.instance_type},
        "storageProfile": {
            "imageReference": _image(options.image),
            "osDisk": _disk(request, options),
        },
        "osProfile": system,
        "networkProfile": {
            "networkInterfaces": [
                {"id": nic_id, "properties": {"primary": True, "deleteOption": "Delete"}}
            ]
        },
    }
    if market == "spot":
        properties |= {
            "priority": "Spot",
            "evictionPolicy": "Delete",
            "billingProfile": {"maxPrice": request.max_price or options.max_price},
        }
    body: dict[str, Any] = {
        "location": options.location,
        "tags": tags_of(request),
        "properties": properties | _groups(request, options, market),
    }
    if request.zone:
        body["zones"] = [request.zone]
    if options.identity:
        body["identity"] = {
            "type": "UserAssigned",
            "userAssignedIdentities": {options.identity: {}},
        }
    return body


def _disk(request: ProvisionRequest, options: AzureOptions) -> dict[str, Any]:
    """Return the root disk, which is deleted with its machine."""
    managed: dict[str, Any] = {"storageAccountType": options.disk_type}
    if keys := options.disk_encryption_set:
        managed["diskEncryptionSet"] = _reference(options, "diskEncryptionSets", keys)
    return {
        "name": f"{unique_name(request)}{DISK}",
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "managedDisk": managed,
        **({"diskSizeGB": options.root_gb} if options.root_gb else {}),
    }


def _reference(options: AzureOptions, kind: str, named: str) -> dict[str, str]:
    """Refer to a resource by its ID, or by its name in this resource group."""
    here = f"/subscriptions/{options.subscription}/resourceGroups/{options.resource_group}"
    path = f"{here}/providers/Microsoft.Compute/{kind}/{named}"
    return {"id": named if named.startswith("/") else path}


def _groups(request: ProvisionRequest, options: AzureOptions, market: Market) -> dict[str, Any]:
    """Return which groups of machines, and of reservations, a machine belongs to."""
    found: dict[str, Any] = {}
    if group := request.placement_group or options.placement_group:
        found["proximityPlacementGroup"] = _reference(options, "proximityPlacementGroups", group)
    if group := options.scale_set:
        found["virtualMachineScaleSet"] = _reference(options, "virtualMachineScaleSets", group)
    if group := options.availability_set:
        found["availabilitySet"] = _reference(options, "availabilitySets", group)
    if market == "reserved":
        held = _reference(options, "capacityReservationGroups", options.capacity_reservation_group)
        found["capacityReservation"] = {"capacityReservationGroup": held}
    return found


def _image(image: str) -> dict[str, str]:
    parts = image.split(":")
    if len(parts) == URN_PARTS and not image.startswith("/"):
        return dict(zip(("publisher", "offer", "sku", "version"), parts, strict=True))
    lowered = image.lower()
    if lowered.startswith("/communitygalleries/"):
        return {"communityGalleryImageId": image}
    if lowered.startswith("/sharedgalleries/"):
        return {"sharedGalleryImageId": image}
    return {"id": image}


# --- answers -------------------------------------------------------------------------------------


def state_of(machine: Any) -> str:
    """Return a machine's provisioning state."""
    return str(machine.get("properties", {}).get("provisioningState", ""))


def failure_of(machine: Any) -> dict[str, Any]:
    """Return why a machine failed, as the body of an error."""
    for each in _statuses(machine):
        code = str(each.get("code", ""))
        if code.startswith(PROVISIONING):
            text = each.get("message") or each.get("displayStatus", "")
            return {"error": {"code": code.removeprefix(PROVISIONING), "message": text}}
    return {"error": {"code": "", "message": "the machine failed and names no reason"}}


def instances(
    machines: Iterable[Any], nics: Iterable[Any], addresses: Iterable[Any]
) -> list[Instance]:
    """Return every machine, and every interface or address of a fleet without its machine.

    Such a leftover is listed as a stopped instance, which can be removed and is not adopted.
    """
    by_nic = {_key(each): each for each in nics}
    by_address = {_key(each): each for each in addresses}
    found = {each["name"].lower(): instance(each, by_nic, by_address) for each in machines}
    for suffix, leftovers in ((NIC, by_nic), (ADDRESS, by_address)):
        for each in leftovers.values():
            name = each["name"].lower()
            machine = name.removesuffix(suffix)
            if name.endswith(suffix) and machine not in found:
                found[machine] = with_tags(
                    Instance(
                        name=machine,
                        provider_id=machine,
                        status="stopped",
                        region=each.get("location", ""),
                    ),
                    each.get("tags") or {},
                )
    return [each for each in found.values() if FLEET_TAG in each.tags]


def with_views(machines: Iterable[Any], viewed: Iterable[Any]) -> list[Any]:
    """Return the machines of a list, each with its view, which only another list has."""
    views = {_key(each): each.get("properties", {}).get("instanceView") for each in viewed}
    return [
        each | {"properties": each.get("properties", {}) | {"instanceView": views.get(_key(each))}}
        for each in machines
    ]


def instance(machine: Any, nics: dict[str, Any], addresses: dict[str, Any]) -> Instance:
    """Return a machine as an instance, with its address if its interface is given."""
    properties = machine.get("properties", {})
    created = properties.get("timeCreated")
    made = Instance(
        name=machine["name"],
        provider_id=machine["name"].lower(),
        status=_status(machine),
        instance_type=properties.get("hardwareProfile", {}).get("vmSize", ""),
        region=machine.get("location", ""),
        zone=next(iter(machine.get("zones") or ()), ""),
        address=_address(properties, nics, addresses),
        created_at=_moment(created) if created else None,
    )
    return with_tags(made, machine.get("tags") or {})


def _status(machine: Any) -> InstanceStatus:
    state = state_of(machine)
    if state == "Deleting":
        return "stopping"
    for each in _statuses(machine):
        if str(each.get("code", "")).startswith("PowerState/"):
            # A machine in an unknown state exists.
            return POWER.get(each["code"], "running")
    return STATES.get(state, "running")


def _statuses(machine: Any) -> list[Any]:
    view = machine.get("properties", {}).get("instanceView") or {}
    return list(view.get("statuses") or ())


def _address(properties: Any, nics: dict[str, Any], addresses: dict[str, Any]) -> str:
    """Return the public, else the private address of the first interface."""
    named = properties.get("networkProfile", {}).get("networkInterfaces") or [{}]
    nic = nics.get(str(named[0].get("id", "")).lower(), {})
    configurations = nic.get("properties", {}).get("ipConfigurations") or [{}]
    inner = configurations[0].get("properties", {})
    public = addresses.get(str((inner.get("publicIPAddress") or {}).get("id", "")).lower(), {})
    outside: str = public.get("properties", {}).get("ipAddress") or ""
    inside: str = inner.get("privateIPAddress") or ""
    return outside or inside


def _key(resource: Any) -> str:
    """Return an ID for comparison: their case differs between answers."""
    return str(resource.get("id", "")).lower()


def _moment(text: str) -> datetime:
    """Parse a time; Azure writes seven digits of a second."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
