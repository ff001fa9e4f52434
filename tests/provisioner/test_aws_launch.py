"""The parameters of RunInstances: accepted by the SDK's own model of the API, and by moto."""

from collections.abc import Callable
from typing import Any

import botocore.session
import msgspec
import pytest
from botocore.validate import validate_parameters

from schemas.launch_offers import Market
from schemas.lease_records import BatchedLaunch
from services.provisioner.provider_client.launch_batches import Batch
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import aws, aws_launch
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.aws_launch import DiskOptions, EfaCards
from services.provisioner.providers.aws_launch_requests import LaunchParameters
from tests.provisioner.provisioner_parts import request

Make = Callable[..., AwsProvider]
REGION = "us-east-1"
GROUP = "sg-0123456789abcdef0"
RUN_INSTANCES = (
    botocore.session.get_session()
    .get_service_model("ec2")
    .operation_model("RunInstances")
    .input_shape
)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a reservation": (
        {"capacity_reservation": "cr-1"},
        {
            "CapacityReservationSpecification": {
                "CapacityReservationTarget": {"CapacityReservationId": "cr-1"}
            }
        },
    ),
    "a capacity block": (
        {"capacity_reservation": "cr-1", "capacity_block": True},
        {
            "CapacityReservationSpecification": {
                "CapacityReservationTarget": {"CapacityReservationId": "cr-1"}
            },
            "InstanceMarketOptions": {"MarketType": "capacity-block"},
        },
    ),
    "a group of reservations": (
        {"capacity_reservation": "arn:aws:resource-groups:us-east-1:1:group/h100"},
        {
            "CapacityReservationSpecification": {
                "CapacityReservationTarget": {
                    "CapacityReservationResourceGroupArn": (
                        "arn:aws:resource-groups:us-east-1:1:group/h100"
                    )
                }
            }
        },
    ),
}
IN_CR_1 = {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}
REFUSED = {
    "a block without its reservation": ({"capacity_block": True}, "capacity_reservation"),
    "spot in a reservation": ({"capacity_reservation": "cr-1", "market": "spot"}, "spot"),
    "efa without a group": ({"efa": True}, "security_groups"),
}


ALONE = Batch("token-1", (BatchedLaunch(launch="token-1", node="web-1", token="t1"),))


def accepted(given: dict[str, Any]) -> None:
    """The SDK's model of the API takes the request."""
    validate_parameters(LaunchParameters(given, {}).request(ALONE), RUN_INSTANCES)


def wanted() -> Any:
    """A launch that moto knows."""
    return request("web-1", region=REGION, instance_type="p5.48xlarge")


@pytest.mark.parametrize(("options", "expected"), CASES.values(), ids=CASES)
def test_launch_options_become_parameters_of_the_api(
    make_aws: Make, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Exactly those that EC2 documents; the model refuses unknown ones."""
    given = make_aws(**options)._launch(wanted())
    assert {key: given[key] for key in expected} == expected
    accepted(given)


@pytest.mark.parametrize(
    ("market", "kind", "reserved"),
    [
        ("", None, IN_CR_1),
        ("reserved", None, IN_CR_1),
        ("on-demand", None, None),
        ("spot", "spot", None),
    ],
)
def test_the_reservation_is_a_market_of_its_own(
    make_aws: Make, market: str, kind: str | None, reserved: dict[str, Any] | None
) -> None:
    """One provider serves all three; a launch that names none is in the reservation."""
    provider = make_aws(capacity_reservation="cr-1")
    assert ("reserved", True) == (provider.capabilities.market, provider.capabilities.reserved)
    given = provider._launch(msgspec.structs.replace(wanted(), market=market))
    assert kind == given.get("InstanceMarketOptions", {}).get("MarketType")
    assert reserved == given.get("CapacityReservationSpecification")
    accepted(given)


def test_each_market_has_a_client_token_of_its_own(make_aws: Make) -> None:
    """EC2 refuses one token with other parameters; nothing is reserved where nothing is named."""
    provider = make_aws(capacity_reservation="cr-1")
    markets: tuple[Market, ...] = ("reserved", "spot", "on-demand")
    tokens = {aws._client_token(wanted(), provider.options, each) for each in markets}
    assert len(tokens) == 3
    with pytest.raises(ProviderError, match="set its `capacity_reservation`"):
        make_aws()._launch(msgspec.structs.replace(wanted(), market="reserved"))


@pytest.mark.parametrize(("options", "named"), REFUSED.values(), ids=REFUSED)
def test_options_that_exclude_each_other_are_refused(
    make_aws: Make, options: dict[str, Any], named: str
) -> None:
    """When the configuration is read, and not at each launch."""
    with pytest.raises(ValueError, match=named):
        make_aws(**options)


@pytest.mark.parametrize(
    ("disk", "named"), [({"type": "io2"}, "iops"), ({"type": "gp2", "throughput": 250}, "gp3")]
)
def test_disks_that_ec2_refuses_are_refused_at_once(disk: dict[str, Any], named: str) -> None:
    """The refusal of a disk names the setting that is missing."""
    with pytest.raises(ValueError, match=named):
        DiskOptions(**disk)


@pytest.mark.parametrize(
    ("cards", "efa"),
    [
        (EfaCards(32, 32), [(0, 1), *((card, 0) for card in range(1, 32))]),
        (EfaCards(16, 17), [(card, 0) for card in range(1, 17)]),
        (EfaCards(4, 4), [(0, 1), (1, 0), (2, 0), (3, 0)]),
        (EfaCards(1, 1), [(0, 1)]),
    ],
)
def test_every_efa_interface_of_a_type_is_attached(
    cards: EfaCards, efa: list[tuple[int, int]]
) -> None:
    """One interface for IP, then EFA on every card that has it; subnet and groups move there."""
    given = aws_launch.with_efa({"SubnetId": "subnet-1", "SecurityGroupIds": [GROUP]}, cards)
    first, *others = given["NetworkInterfaces"]
    assert ("interface", 0, 0) == tuple(
        first[key] for key in ("InterfaceType", "NetworkCardIndex", "DeviceIndex")
    )
    assert [(each["NetworkCardIndex"], each["DeviceIndex"]) for each in others] == efa
    assert {each["InterfaceType"] for each in others} == {"efa-only"}
    assert all(each["Groups"] == [GROUP] for each in given["NetworkInterfaces"])
    assert set(given) == {"NetworkInterfaces"}
    validate_parameters(given | {"MinCount": 1, "MaxCount": 1}, RUN_INSTANCES)


async def test_a_launch_with_efa_asks_for_the_types_cards_once(make_aws: Make) -> None:
    """A type without EFA is refused with the remedy, before anything is launched."""
    provider = make_aws(efa=True, security_groups=(GROUP,))
    cards = await provider._cards("p5.48xlarge")
    assert cards.interfaces == 32
    assert cards is await provider._cards("p5.48xlarge")
    with pytest.raises(ProviderError, match="has no EFA"):
        await provider.provision(request("web-2", region=REGION, instance_type="t3.micro"))
    assert await provider.list() == []


async def test_the_disk_and_tags_are_those_of_the_configuration(make_aws: Make) -> None:
    """Size, type and encryption; Navarch's own tags win over those of the same name."""
    disk = DiskOptions(gb=500, type="gp3", iops=6000, throughput=500, encrypted=True)
    provider = make_aws(disk=disk, tags={"cost-center": "7", "Name": "mine"})
    made = await provider.provision(wanted())
    [volume] = (await provider._call("describe_volumes"))["Volumes"]
    assert (500, "gp3", True) == (volume["Size"], volume["VolumeType"], volume["Encrypted"])
    assert (made.tags["cost-center"], made.name) == ("7", "web-1")
