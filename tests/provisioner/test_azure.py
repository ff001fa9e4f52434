"""Azure, held to the models of Microsoft's SDK by a server that refuses the rest.

Proven: paths, versions, parameters, fields and values are such as the models know; operations are
followed to their end; lost answers and deaths between requests leave one machine, and its removal
leaves nothing. Not proven: Azure itself.
"""

from collections.abc import Callable

import pytest

from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.azure import AzureProvider
from tests.provisioner.azure_price_list import A100, H100
from tests.provisioner.azure_server import AzureServer
from tests.provisioner.provisioner_parts import FLEET, request, token_of

Make = Callable[..., AzureProvider]
SIZE = "Standard_ND96isr_H100_v5"
LAUNCH = "virtualMachines.createOrUpdate"


def wanted(name: str = "web-1", **changes: object):
    """Return a request for a launch."""
    return request(name, **({"zone": "1", "instance_type": SIZE} | changes))


def only(azure: AzureServer):
    """Return the only machine there is."""
    [machine] = azure.machines.values()
    return machine


# --- requests and answers ------------------------------------------------------------------------


async def test_a_launch_carries_all_that_finds_it_again(
    azure: AzureServer, make_azure: Make
) -> None:
    """Tags, place, size, address and age come back from the launch and from the list."""
    provider = make_azure(
        public_address=True, root_gb=200, security_group="/nsg", identity="/identity"
    )
    made = await provider.provision(
        wanted(labels={"team": "vision"}, ssh_keys=("ssh-ed25519 B",), user_data="#cloud-config")
    )
    [listed] = await provider.list()
    for each in (made, listed):
        assert ("web-1", "web", token_of(), FLEET) == (
            *(each.name, each.pool, each.token, each.fleet),
        )
        assert ("1", "eastus", "192.0.2.9") == (each.zone, each.region, each.address)
        assert (SIZE, "vision", "running") == (each.instance_type, each.tags["team"], each.status)
        assert each.created_at is not None
    system = only(azure)["properties"]["osProfile"]
    assert "I2Nsb3VkLWNvbmZpZw==" == system["customData"]
    [key] = system["linuxConfiguration"]["ssh"]["publicKeys"]
    assert ("ssh-ed25519 B", "/home/navarch/.ssh/authorized_keys") == (key["keyData"], key["path"])


async def test_without_a_public_address_the_private_one_is_reported(
    azure: AzureServer, make_azure: Make
) -> None:
    """The private address is reported, and no public one is made."""
    made = await make_azure().provision(wanted())
    assert ("10.0.0.4", {}) == (made.address, azure.resources["publicIPAddresses"])


async def test_a_removal_takes_disk_interface_and_address_along(
    azure: AzureServer, make_azure: Make
) -> None:
    """The delete options that the launch has set leave nothing that costs."""
    provider = make_azure(public_address=True)
    made = await provider.provision(wanted())
    assert 4 == len(azure.existing)
    await provider.terminate(made.provider_id)
    assert set() == azure.existing


@pytest.mark.parametrize(
    ("market", "price", "expected"),
    [
        ("spot", -1, ("Spot", "Delete", {"maxPrice": -1})),
        ("spot", 12.5, ("Spot", "Delete", {"maxPrice": 12.5})),
        ("on-demand", -1, (None, None, None)),
    ],
)
async def test_a_spot_machine_is_deleted_when_it_is_taken(
    azure: AzureServer, make_azure: Make, market: str, price: float, expected: tuple[object, ...]
) -> None:
    """Not only stopped, when its disk would cost on; and at the price that was set."""
    await make_azure(market=market, max_price=price).provision(wanted())
    said = only(azure)["properties"]
    assert expected == tuple(
        said.get(each) for each in ("priority", "evictionPolicy", "billingProfile")
    )


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ("canonical:ubuntu:22_04-lts:latest", {"publisher": "canonical", "sku": "22_04-lts"}),
        ("/subscriptions/s/images/i", {"id": "/subscriptions/s/images/i"}),
        ("/CommunityGalleries/g/Images/i", {"communityGalleryImageId": None}),
        ("/SharedGalleries/g/Images/i", {"sharedGalleryImageId": None}),
    ],
)
async def test_an_image_is_named_in_any_of_azures_ways(
    azure: AzureServer, make_azure: Make, image: str, reference: dict[str, str | None]
) -> None:
    """An image is named by id, by gallery, or by publisher, offer, sku and version."""
    await make_azure(image=image).provision(wanted())
    sent = only(azure)["properties"]["storageProfile"]["imageReference"]
    assert reference == {key: value and sent[key] for key, value in reference.items()}


async def test_a_launch_that_names_market_price_and_group_is_heard(
    azure: AzureServer, make_azure: Make
) -> None:
    """A launch's own choices precede the provider's; a drought is of the requested market."""
    asked = wanted(market="spot", max_price=3.5, placement_group="near")
    azure.failures = ["SkuNotAvailable"]
    with pytest.raises(ProviderError) as drought:
        await make_azure().provision(asked)
    assert "CAPACITY" == drought.value.kind
    await make_azure().provision(asked)
    sent = only(azure)["properties"]
    assert ("Spot", {"maxPrice": 3.5}) == (sent["priority"], sent["billingProfile"])
    assert sent["proximityPlacementGroup"]["id"].endswith("/proximityPlacementGroups/near")
    await make_azure(market="spot").provision(wanted("web-2", market="on-demand"))
    assert "priority" not in list(azure.machines.values())[1]["properties"]


async def test_pages_are_read_to_the_end(azure: AzureServer, make_azure: Make) -> None:
    """A list that is not whole would forget machines."""
    provider = make_azure()
    for number in range(9):
        await provider.provision(wanted(f"web-{number}"))
    azure.calls.clear()
    assert {f"web-{n}" for n in range(9)} == {each.name for each in await provider.list()}
    assert 3 == azure.calls.count("virtualMachines.list")


@pytest.mark.parametrize(
    ("power", "status"),
    [
        ("starting", "pending"),
        ("running", "running"),
        ("stopping", "stopping"),
        ("stopped", "stopped"),
        ("deallocating", "stopping"),
        ("deallocated", "stopped"),
        ("newly-invented", "running"),
    ],
)
async def test_each_power_state_has_its_status(
    azure: AzureServer, make_azure: Make, power: str, status: str
) -> None:
    """One in a state that we do not know may cost anything."""
    provider = make_azure()
    await provider.provision(wanted())
    azure.run(only(azure), power)
    [listed] = await provider.list()
    assert status == listed.status


async def test_without_rights_on_the_subscription_machines_count_as_running(
    azure: AzureServer, make_azure: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Power states are missing then, nothing else; what is lacking is logged once."""
    provider = make_azure()
    await provider.provision(wanted())
    azure.run(only(azure), "deallocated")
    azure.reads_subscription = False
    for _ in range(2):
        [listed] = await provider.list()
        assert ("running", "web-1") == (listed.status, listed.name)
    assert ["no power states"] == [each.message for each in caplog.records]
    azure.refuse("virtualMachines.listAll", 500, "InternalServerError")
    with pytest.raises(ProviderError, match="InternalServerError"):
        await provider.list()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"region": "westus"}, "add a provider of type azure"),
        ({"zone": "eastus-1"}, "write 1, 2 or 3"),
        ({"name": "Web_1"}, "Azure refuses the name"),
        ({"labels": {"a/b": "x"}}, "label a/b=x of pool web is not valid at Azure"),
        ({"labels": {"a": "x" * 257}}, "at most 256 characters"),
    ],
)
async def test_what_azure_cannot_do_is_refused_before_it_is_asked(
    azure: AzureServer, make_azure: Make, changes: dict[str, object], says: str
) -> None:
    """INVALID names the remedy, and no request goes out."""
    with pytest.raises(ProviderError, match=says) as refused:
        await make_azure().provision(wanted(**changes))
    assert ("INVALID", []) == (refused.value.kind, azure.calls)
    with pytest.raises(ProviderError, match="needs an SSH public key"):
        await make_azure(ssh_key="").provision(wanted())


async def test_a_machine_of_another_launch_under_the_name_is_not_adopted(
    azure: AzureServer, make_azure: Make
) -> None:
    """A machine without our tags is not ours to use or to remove, whatever its state."""
    await make_azure().provision(wanted())
    only(azure)["tags"] = {"team": "other"}
    for state in ("Succeeded", "Failed"):
        only(azure)["properties"] |= {"provisioningState": state, "instanceView": {}}
        with pytest.raises(ProviderError, match="another machine is named"):
            await make_azure().provision(wanted())
    assert "virtualMachines.delete" not in azure.calls


async def test_nothing_but_azure_is_sent_the_token(make_azure: Make) -> None:
    """An address in an answer that leads elsewhere is not followed."""
    provider = make_azure()
    with pytest.raises(ProviderError, match="not an address of Azure"):
        await provider._azure.send("GET", "https://elsewhere.example/monitors/1")


# --- prices ---------------------------------------------------------------------------------------


async def test_prices_are_those_of_the_plain_machine(make_azure: Make) -> None:
    """Prices are by the hour, for Linux, on demand and spot.

    The dearer of two meters counts, and the list is read to the last page.
    """
    found = await make_azure().prices((H100, A100))
    assert [
        (A100, "on-demand", 3.67),
        (H100, "on-demand", 98.32),
        (H100, "spot", 39.33),
    ] == [(each.instance_type, each.market, each.dollars_per_hour) for each in found]
    assert {"eastus"} == {each.region for each in found}


async def test_no_prices_are_asked_for_where_none_are_wanted(
    azure: AzureServer, make_azure: Make
) -> None:
    """No prices are asked for without types or with the list switched off.

    A list that does not answer is an error.
    """
    assert () == await make_azure().prices(())
    switched_off = make_azure(prices_url="")
    assert (False, ()) == (switched_off.capabilities.prices, await switched_off.prices((H100,)))
    for options in ({"prices_url": "http://127.0.0.1:9"}, {"location": "elsewhere"}):
        with pytest.raises(ProviderError):
            await make_azure(**options).prices((H100,))
    assert [] == azure.logins.issued


# --- operations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "market", "kind"),
    [
        ("AllocationFailed", "on-demand", "CAPACITY"),
        ("SkuNotAvailable", "spot", "CAPACITY"),
        ("SkuNotAvailable", "on-demand", "UNSUPPORTED"),
        ("OSProvisioningClientError", "on-demand", "INVALID"),
    ],
)
async def test_an_accepted_launch_that_fails_later_is_reported_and_leaves_nothing(
    azure: AzureServer, make_azure: Make, code: str, market: str, kind: str
) -> None:
    """A failed launch's machine, disk, interface and address are gone when the error is raised."""
    azure.failures = [code]
    with pytest.raises(ProviderError) as failed:
        await make_azure(market=market, public_address=True).provision(wanted())
    assert (kind, set()) == (failed.value.kind, azure.existing)


async def test_a_refused_launch_leaves_neither_interface_nor_address(
    azure: AzureServer, make_azure: Make
) -> None:
    """The interface and address of a refused launch are removed before the refusal is raised."""
    azure.refuse(LAUNCH, 409, "QuotaExceeded")
    with pytest.raises(ProviderError) as refused:
        await make_azure(public_address=True).provision(wanted())
    assert ("QUOTA", set()) == (refused.value.kind, azure.existing)


async def test_an_interface_that_azure_holds_is_removed_when_it_lets_go(
    azure: AzureServer, make_azure: Make
) -> None:
    """A held interface does not hide why the launch failed; until it is free it is listed.

    The next try of the launch uses it.
    """
    provider = make_azure()
    azure.reserved = True
    azure.refuse(LAUNCH, 409, "QuotaExceeded")
    with pytest.raises(ProviderError) as refused:
        await provider.provision(wanted())
    [left] = await provider.list()
    assert ("QUOTA", "stopped") == (refused.value.kind, left.status)
    with pytest.raises(ProviderError, match="NicReservedForAnotherVm") as held:
        await provider.terminate(left.provider_id)
    assert held.value.rule.retry_in_step
    assert "running" == (await provider.provision(wanted())).status
    azure.reserved = False
    await provider.terminate(left.provider_id)
    assert set() == azure.existing


async def test_a_failed_launch_that_cannot_be_cleared_stays_in_doubt(
    azure: AzureServer, make_azure: Make
) -> None:
    """Then it is listed and not adopted, and the next try clears it and launches."""
    provider = make_azure()
    azure.failures = ["AllocationFailed"]
    azure.refuse("virtualMachines.delete", 409, "ScopeLocked")
    with pytest.raises(ProviderError, match=r"AllocationFailed.*ScopeLocked") as doubtful:
        await provider.provision(wanted())
    assert doubtful.value.rule.in_doubt
    [left] = await provider.list()
    assert "stopped" == left.status
    made = await provider.provision(wanted(zone="2"))
    assert ("running", "2", 1) == (made.status, made.zone, len(azure.machines))


async def test_an_operation_is_followed_through_faults_of_its_monitor(
    azure: AzureServer, make_azure: Make
) -> None:
    """A monitor's faults say nothing of the operation; if they do not end, it is in doubt."""
    for status, code in ((503, ""), (429, ""), (404, "NotFound"), (401, "ExpiredToken")):
        azure.refuse("monitor", status, code)
    assert "running" == (await make_azure().provision(wanted())).status
    for _ in range(5):
        azure.refuse("monitor", 503, "ServiceUnavailable")
    with pytest.raises(ProviderError, match="result of an operation is unknown") as lost:
        await make_azure().provision(wanted("web-2"))
    assert lost.value.rule.in_doubt


async def test_a_launch_waits_for_the_removal_of_the_one_before(
    azure: AzureServer, make_azure: Make
) -> None:
    """A machine is listed as stopping until it is gone; then a new one is made."""
    azure.slow_removals = True
    provider = make_azure()
    first = await provider.provision(wanted())
    await provider.terminate(first.provider_id)
    [going] = await provider.list()
    assert "stopping" == going.status
    again = await provider.provision(wanted())
    assert (first.provider_id, "running", 1) == (
        *(again.provider_id, again.status),
        len(azure.machines),
    )


async def test_what_a_crash_left_without_a_machine_is_listed_and_removed(
    azure: AzureServer, make_azure: Make
) -> None:
    """An interface and an address: shown as a stopped instance of their node, which none adopts."""
    provider = make_azure(public_address=True)
    await provider.provision(wanted())
    azure.machines.clear()
    azure.disks.clear()
    for left in (("nic", "ip"), ("ip",)):
        [shown] = await provider.list()
        assert ("web-1", FLEET, "stopped") == (shown.name, shown.fleet, shown.status)
        if "nic" in left:
            azure.resources["networkInterfaces"].clear()
    await make_azure().terminate(shown.provider_id)
    assert set() == azure.existing
    assert [] == await provider.list()


async def test_interfaces_and_addresses_of_others_are_left_alone(
    azure: AzureServer, make_azure: Make
) -> None:
    """An interface or address without a fleet's tag is not listed."""
    await make_azure(public_address=True).provision(wanted())
    azure.machines.clear()
    for kind in azure.resources.values():
        for each in kind.values():
            each["tags"] = {}
    assert [] == await make_azure().list()
