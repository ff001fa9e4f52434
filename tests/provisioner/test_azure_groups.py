"""Azure's groups of machines and of reservations, and accelerated networking."""

from collections.abc import Callable

import pytest

from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.azure import AzureProvider
from tests.provisioner.azure_server import HERE, AzureServer
from tests.provisioner.provisioner_parts import request

Make = Callable[..., AzureProvider]
SIZE = "Standard_ND96isr_H100_v5"
LAUNCH = "virtualMachines.createOrUpdate"
COMPUTE = f"{HERE}/Microsoft.Compute"


def wanted(name: str = "web-1", **changes: object):
    """Return a request for a launch."""
    return request(name, **({"zone": "1", "instance_type": SIZE} | changes))


def only(azure: AzureServer):
    """Return the only machine there is."""
    [machine] = azure.machines.values()
    return machine


@pytest.mark.parametrize(
    ("options", "changes", "sent"),
    [
        (
            {"scale_set": "ib", "capacity_reservation_group": "/subscriptions/s/h100"},
            {},
            {
                "virtualMachineScaleSet": {"id": f"{COMPUTE}/virtualMachineScaleSets/ib"},
                "capacityReservation": {
                    "capacityReservationGroup": {"id": "/subscriptions/s/h100"}
                },
            },
        ),
        (
            {"availability_set": "ib", "placement_group": "near"},
            {"zone": ""},
            {
                "availabilitySet": {"id": f"{COMPUTE}/availabilitySets/ib"},
                "proximityPlacementGroup": {"id": f"{COMPUTE}/proximityPlacementGroups/near"},
            },
        ),
    ],
)
async def test_a_machine_joins_the_groups_of_the_configuration(
    azure: AzureServer,
    make_azure: Make,
    options: dict[str, str],
    changes: dict[str, str],
    sent: dict[str, object],
) -> None:
    """Groups are named in the same resource group, or by id; the interface is accelerated."""
    provider = make_azure(**options)
    await provider.provision(wanted(**changes))
    made = only(azure)["properties"]
    assert sent == {key: made.get(key) for key in sent}
    [nic] = azure.resources["networkInterfaces"].values()
    assert nic["properties"]["enableAcceleratedNetworking"]


@pytest.mark.parametrize(
    ("market", "priority", "reserved"),
    [
        ("", None, True),
        ("reserved", None, True),
        ("on-demand", None, False),
        ("spot", "Spot", False),
    ],
)
async def test_the_reservation_group_is_a_market_of_its_own(
    azure: AzureServer, make_azure: Make, market: str, priority: str | None, reserved: bool
) -> None:
    """A launch that names no market uses it; on any other market it is not named."""
    provider = make_azure(capacity_reservation_group="h100")
    await provider.provision(wanted(market=market))
    made = only(azure)["properties"]
    assert (priority, reserved) == (made.get("priority"), "capacityReservation" in made)
    with pytest.raises(ProviderError, match="set its `capacity_reservation_group`"):
        await make_azure().provision(wanted("web-2", market="reserved"))
    assert 1 == len(azure.resources["networkInterfaces"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scale_set": "a", "availability_set": "b"}, "remove one"),
        ({"availability_set": "b", "market": "spot"}, "availability_set has no spot"),
        ({"capacity_reservation_group": "b", "market": "spot"}, "has no spot"),
    ],
)
def test_groups_that_exclude_each_other_are_refused(
    make_azure: Make, options: dict[str, str], says: str
) -> None:
    """When the configuration is read, and not at each launch."""
    with pytest.raises(ValueError, match=says):
        make_azure(**options)


async def test_an_availability_set_takes_no_zone_and_a_size_may_refuse_acceleration(
    azure: AzureServer, make_azure: Make
) -> None:
    """The zone before Azure is asked; the size as Azure's refusal says."""
    with pytest.raises(ProviderError, match="an availability set have none"):
        await make_azure(availability_set="ib").provision(wanted())
    assert [] == azure.calls
    azure.refuse(LAUNCH, 400, "VMSizeIsNotPermittedToEnableAcceleratedNetworking")
    with pytest.raises(ProviderError) as refused:
        await make_azure().provision(wanted())
    assert "INVALID" == refused.value.kind
    await make_azure(accelerated_networking=False).provision(wanted())
    [nic] = azure.resources["networkInterfaces"].values()
    assert not nic["properties"]["enableAcceleratedNetworking"]
