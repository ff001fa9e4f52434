"""Makes the parameters of RunInstances, part by part. Pure.

Sources: the EC2 API reference (RunInstances, DescribeInstanceTypes) and the EC2 user guide's pages
on EFA, Capacity Reservations and Capacity Blocks.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from schemas.settings import Setting
from services.provisioner.provider_client.provider import ProvisionRequest

ARM_TYPES: Final = ("g5g.", "p6e-")
ARN: Final = "arn:"


class DiskOptions(Setting, frozen=True, kw_only=True):
    """The root volume; it is deleted with its instance."""

    gb: Annotated[int, msgspec.Meta(ge=0, le=65_536)] = 0
    """Gibibytes; 0: the size of the image."""
    type: Literal["", "gp2", "gp3", "io1", "io2"] = ""
    """Empty: gp3."""
    iops: Annotated[int, msgspec.Meta(ge=0, le=256_000)] = 0
    """0: what the type has without a price of its own; io1 and io2 need it."""
    throughput: Annotated[int, msgspec.Meta(ge=0, le=2_000)] = 0
    """MiB/s, of gp3 alone; 0: what it has without a price of its own."""
    encrypted: bool = False
    """With `kms_key`, or the account's default key."""
    kms_key: str = ""
    """ID or ARN of the key."""

    def __post_init__(self) -> None:
        """Refuse what EC2 would refuse at each launch."""
        if self.type in ("io1", "io2") and not self.iops:
            raise ValueError(f"{self.type} needs `iops`")
        if self.throughput and self.type not in ("", "gp3"):
            raise ValueError(f"{self.type} has no `throughput`; only gp3 has")

    @property
    def is_set(self) -> bool:
        """Return whether the volume differs from what the image says."""
        return self != DiskOptions()


class EfaCards(NamedTuple):
    """Says how much of an instance type's network is requested."""

    interfaces: int
    """EFA interfaces at most; 0: it has no EFA."""
    cards: int


def default_image(instance_type: str) -> str:
    """Return AWS's newest image with the driver, for the processors of an instance type.

    EC2 looks it up at the launch, with the caller's right to ssm:GetParameters.
    """
    processors = "arm64" if instance_type.startswith(ARM_TYPES) else "x86_64"
    image = f"{processors}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    return f"resolve:ssm:/aws/service/deeplearning/ami/{image}"


def place(
    request: ProvisionRequest,
    subnets: Mapping[str, str],
    security_groups: Sequence[str],
    placement_group: str,
) -> dict[str, Any]:
    """Zone, placement group, subnet and security groups."""
    placement: dict[str, str] = {}
    if request.zone:
        placement["AvailabilityZone"] = request.zone
    if group := request.placement_group or placement_group:
        placement["GroupName"] = group
    given: dict[str, Any] = {"Placement": placement} if placement else {}
    subnet = subnets.get(request.zone) or next(iter(subnets.values()), "")
    given |= {"SubnetId": subnet} if subnet else {}
    return given | ({"SecurityGroupIds": list(security_groups)} if security_groups else {})


def market(name: str, pool_price: float, provider_price: str) -> dict[str, Any]:
    """Return how an instance is paid; prices in dollars per hour, 0 and empty: none given."""
    if name != "spot":
        return {}
    max_price = f"{pool_price:g}" if pool_price else provider_price
    spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    spot |= {"MaxPrice": max_price} if max_price else {}
    return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": spot}}


def reservation(target: str, *, block: bool) -> dict[str, Any]:
    """The reservation in which alone it may run."""
    key = (
        "CapacityReservationResourceGroupArn" if target.startswith(ARN) else "CapacityReservationId"
    )
    given: dict[str, Any] = {
        "CapacityReservationSpecification": {"CapacityReservationTarget": {key: target}}
    }
    return given | ({"InstanceMarketOptions": {"MarketType": "capacity-block"}} if block else {})


def machine(instance_profile: str, disk: DiskOptions, root_device: str) -> dict[str, Any]:
    """Return the parameters for the role of the node itself, and for its root volume."""
    given: dict[str, Any] = {}
    if instance_profile:
        given["IamInstanceProfile"] = {"Name": instance_profile}
    if disk.is_set:
        volume = {
            "VolumeSize": disk.gb,
            "VolumeType": disk.type or "gp3",
            "Iops": disk.iops,
            "Throughput": disk.throughput,
            "Encrypted": disk.encrypted or bool(disk.kms_key),
            "KmsKeyId": disk.kms_key,
        }
        ebs = {"DeleteOnTermination": True} | {name: each for name, each in volume.items() if each}
        given["BlockDeviceMappings"] = [{"DeviceName": root_device, "Ebs": ebs}]
    return given


def efa_cards(network: Mapping[str, Any]) -> EfaCards:
    """Read NetworkInfo of DescribeInstanceTypes."""
    if not network.get("EfaSupported"):
        return EfaCards(0, 1)
    interfaces = int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1))
    return EfaCards(interfaces, int(network.get("MaximumNetworkCards", 1)))


def with_efa(given: Mapping[str, Any], cards: EfaCards) -> dict[str, Any]:
    """Return the launch with an interface for IP on the first card, and EFA interfaces on all.

    The first card has EFA unless the type has fewer EFA interfaces than cards. Subnet and security
    groups belong to the interfaces then, as EC2 takes them at one place alone.
    """
    common: dict[str, Any] = {"DeleteOnTermination": True}
    common |= {"SubnetId": given["SubnetId"]} if "SubnetId" in given else {}
    common |= {"Groups": given["SecurityGroupIds"]} if "SecurityGroupIds" in given else {}
    places = [(0, 1)] if cards.interfaces >= cards.cards else []
    places += [(card, 0) for card in range(1, cards.cards)]
    interfaces = [{"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"} | common]
    interfaces += [
        {"NetworkCardIndex": card, "DeviceIndex": device, "InterfaceType": "efa-only"} | common
        for card, device in places[: cards.interfaces]
    ]
    kept = {key: each for key, each in given.items() if key not in ("SubnetId", "SecurityGroupIds")}
    return kept | {"NetworkInterfaces": interfaces}
