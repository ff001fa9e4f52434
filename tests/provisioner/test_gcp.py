"""Compute Engine, held to Google's own discovery document by a server that refuses the rest.

Proven: paths, parameters, fields and values are such as the document knows; operations are read to
their end; lost answers and deaths between calls leave one instance. Not proven: Google itself.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from schemas.duration import Duration, decode_hook
from services.bus.nats.nats_bus import NatsBus
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.gcp import GcpProvider
from services.provisioner.providers.gcp_errors import KINDS, error_of, operation_error
from services.provisioner.providers.gcp_launch import GcpOptions
from services.saga.participant import StepFailure
from tests.provisioner.gcp_server import GcpServer
from tests.provisioner.http_status_table import COMMON
from tests.provisioner.provisioner_parts import (
    FLEET,
    Killed,
    Life,
    Mortal,
    provision,
    request,
    steps,
    token_of,
)

Make = Callable[..., GcpProvider]
ZONE = "us-central1-a"
POINTS_MAX = 40


def wanted(name: str = "web-1", **changes: object):
    """Return a request for a launch."""
    return request(name, **({"zone": ZONE, "instance_type": "a3-highgpu-8g"} | changes))


# --- requests and answers ------------------------------------------------------------------------


async def test_a_launch_carries_all_that_finds_it_again(gcp: GcpServer, make_gcp: Make) -> None:
    """Labels, place, type, address, host and age come back from the launch and from the list."""
    provider = make_gcp(max_run=86_400, service_account="node@p", subnetwork="s", root_gb=200)
    made = await provider.provision(
        wanted(labels={"team": "vision"}, ssh_keys=("ubuntu:ssh-ed25519 A",), user_data="#c")
    )
    [listed] = await provider.list()
    for each in (made, listed):
        assert ("web-1", "web", token_of(), FLEET) == (
            *(each.name, each.pool, each.token, each.fleet),
        )
        assert (f"{ZONE}/web-1", ZONE, "us-central1") == (each.provider_id, each.zone, each.region)
        assert ("192.0.2.9", "block/sub/host-7") == (each.address, each.host)
        assert ("a3-highgpu-8g", "vision") == (each.instance_type, each.tags["team"])
    assert made.created_at is not None
    [sent] = gcp.instances.values()
    assert {"seconds": "86400"} == sent["scheduling"]["maxRunDuration"]
    assert 2 == gcp.calls.count("zoneOperations.wait")


@pytest.mark.parametrize(
    ("options", "instance_type", "family"),
    [
        ({}, "a3-highgpu-8g", "gpu"),
        ({"image": ""}, "a3-highgpu-8g", "ubuntu-accelerator-2204-amd64-with-nvidia-580"),
        ({"image": ""}, "a4x-highgpu-4g", "ubuntu-accelerator-2404-arm64-with-nvidia-570"),
    ],
)
async def test_without_an_image_the_type_decides(
    gcp: GcpServer, make_gcp: Make, options: dict[str, str], instance_type: str, family: str
) -> None:
    """A launch without an image gets Google's own with the driver, for the type's processors."""
    await make_gcp(**options).provision(wanted(instance_type=instance_type))
    [sent] = gcp.instances.values()
    assert sent["disks"][0]["initializeParams"]["sourceImage"].endswith(f"/family/{family}")


@pytest.mark.parametrize(
    ("options", "instance_type", "sent"),
    [
        ({}, "a3-highgpu-8g", {"disk": "pd-balanced", "model": "STANDARD"}),
        ({}, "a4-highgpu-8g", {"disk": "hyperdisk-balanced", "model": "STANDARD"}),
        ({"disk_type": "pd-ssd"}, "a2-ultragpu-8g", {"disk": "pd-ssd", "model": "STANDARD"}),
        (
            {"reservation": "h100", "provisioning": "reservation-bound"},
            "a3-ultragpu-8g",
            {
                "disk": "hyperdisk-balanced",
                "model": "RESERVATION_BOUND",
                "action": "DELETE",
                "affinity": ("SPECIFIC_RESERVATION", ["h100"]),
            },
        ),
        (
            {"reservation": "projects/other/reservations/h100"},
            "a3-highgpu-8g",
            {
                "disk": "pd-balanced",
                "model": "STANDARD",
                "affinity": ("SPECIFIC_RESERVATION", ["projects/other/reservations/h100"]),
            },
        ),
        (
            {"provisioning": "flex-start", "max_run": Duration(86_400)},
            "a3-megagpu-8g",
            {
                "disk": "pd-balanced",
                "model": "FLEX_START",
                "action": "DELETE",
                "affinity": ("NO_RESERVATION", None),
            },
        ),
    ],
)
async def test_reserved_and_flexible_capacity_is_asked_for_as_google_documents(
    gcp: GcpServer, make_gcp: Make, options: dict[str, Any], instance_type: str, sent: Any
) -> None:
    """The strict server accepts it, and the disk is one that the series takes."""
    await make_gcp(**options).provision(wanted(instance_type=instance_type))
    [body] = gcp.instances.values()
    disk = body["disks"][0]["initializeParams"]["diskType"]
    found = {"disk": disk.rpartition("/")[2], "model": body["scheduling"]["provisioningModel"]}
    if action := body["scheduling"].get("instanceTerminationAction"):
        found["action"] = action
    if affinity := body.get("reservationAffinity"):
        found["affinity"] = (affinity["consumeReservationType"], affinity.get("values"))
    assert found == sent


@pytest.mark.parametrize(
    ("options", "market", "model", "reserved"),
    [
        ({"reservation": "h100"}, "", "STANDARD", "SPECIFIC_RESERVATION"),
        ({"reservation": "h100"}, "on-demand", "STANDARD", None),
        ({"reservation": "h100"}, "spot", "SPOT", None),
        ({"reservation": "h100", "provisioning": "reservation-bound"}, "spot", "SPOT", None),
        (
            {"reservation": "h100", "provisioning": "reservation-bound"},
            *("reserved", "RESERVATION_BOUND", "SPECIFIC_RESERVATION"),
        ),
        (
            {"provisioning": "flex-start", "max_run": Duration(3600)},
            *("on-demand", "FLEX_START", "NO_RESERVATION"),
        ),
        ({"provisioning": "flex-start", "max_run": Duration(3600)}, "spot", "SPOT", None),
    ],
)
async def test_the_reservation_is_a_market_of_its_own(
    gcp: GcpServer,
    make_gcp: Make,
    options: dict[str, Any],
    market: str,
    model: str,
    reserved: str | None,
) -> None:
    """A launch that names no market uses it; on any other it is not named, nor its model."""
    await make_gcp(**options).provision(wanted(market=market))
    [body] = gcp.instances.values()
    assert model == body["scheduling"]["provisioningModel"]
    assert reserved == body.get("reservationAffinity", {}).get("consumeReservationType")


async def test_nothing_is_reserved_where_no_reservation_is_named(
    gcp: GcpServer, make_gcp: Make
) -> None:
    """Refused before Google is asked."""
    with pytest.raises(ProviderError, match="set its `reservation`"):
        await make_gcp().provision(wanted(market="reserved"))
    assert [] == gcp.calls


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "Specified reservation 'h' does not have available resources for the request.",
            "CAPACITY",
        ),
        ("No available resources in specified reservations 'h'", "CAPACITY"),
        ("Cannot use reservation, it requires reservation to be in READY state", "CAPACITY"),
        ("Specified reservations 'h' do not exist", "INVALID"),
        ("Constraint constraints/compute.vmExternalIpAccess violated for project", "INVALID"),
    ],
)
def test_a_full_reservation_is_no_capacity_and_a_wrong_one_is_invalid(text: str, kind: str) -> None:
    """Google gives both the same code, in either form of an error."""
    failed = operation_error(
        {"error": {"errors": [{"code": "CONDITION_NOT_MET", "message": text}]}}
    )
    reasons = [{"reason": "conditionNotMet"}]
    refused = error_of(412, {"error": {"message": text, "errors": reasons}})
    assert failed is not None
    assert (kind, kind) == (failed.kind, refused.kind)


async def test_interfaces_and_gpus_are_attached_in_order(gcp: GcpServer, make_gcp: Make) -> None:
    """The first interface has the public address; labels of the node's own are kept."""
    options = {
        "networks": [{"network": f"global/networks/gpu-{n}", "nic_type": "GVNIC"} for n in (1, 2)],
        "accelerators": [{"type": "nvidia-tesla-t4", "count": 4}],
        "labels": {"cost-center": "7", "navarch-pool": "other"},
    }
    given = msgspec.convert({"project": "p"} | options, GcpOptions, dec_hook=decode_hook)
    changes = {name: getattr(given, name) for name in options}
    made = await make_gcp(**changes).provision(wanted(instance_type="n1-standard-16"))
    [body] = gcp.instances.values()
    assert ["GVNIC", "GVNIC"] == [each["nicType"] for each in body["networkInterfaces"][1:]]
    assert "accessConfigs" in body["networkInterfaces"][0]
    assert [4] == [each["acceleratorCount"] for each in body["guestAccelerators"]]
    assert ("web", "7") == (made.pool, body["labels"]["cost-center"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"provisioning": "flex-start"}, "max_run"),
        ({"provisioning": "reservation-bound"}, "reservation"),
        ({"provisioning": "reservation-bound", "market": "spot", "reservation": "r"}, "spot"),
        (
            {"provisioning": "flex-start", "max_run": Duration(60), "reservation": "r"},
            "flex-start takes no",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], named: str) -> None:
    """When the configuration is read, and not at each launch."""
    with pytest.raises(ValueError, match=named):
        GcpOptions(project="p", **options)


@pytest.mark.parametrize(
    ("market", "model", "action"), [("spot", "SPOT", "DELETE"), ("on-demand", "STANDARD", None)]
)
async def test_a_spot_instance_leaves_nothing_behind(
    gcp: GcpServer, make_gcp: Make, market: str, model: str, action: str | None
) -> None:
    """Deleted, not stopped, when it is taken; the disk goes with it in any case."""
    await make_gcp(market=market).provision(wanted())
    [sent] = gcp.instances.values()
    scheduling = sent["scheduling"]
    assert (model, action) == (
        scheduling["provisioningModel"],
        scheduling.get("instanceTerminationAction"),
    )
    assert all(each["autoDelete"] for each in sent["disks"])


async def test_pages_are_read_to_the_end_and_a_zone_that_is_missing_is_an_error(
    gcp: GcpServer, make_gcp: Make
) -> None:
    """A list that is not whole would forget instances."""
    provider = make_gcp()
    for number in range(12):
        await provider.provision(wanted(f"web-{number}"))
    assert {f"web-{n}" for n in range(12)} == {each.name for each in await provider.list()}
    gcp.unreachable = ["zones/us-east1-b"]
    with pytest.raises(ProviderError, match="no answer from") as refused:
        await provider.list()
    assert "TRANSIENT" == refused.value.kind


async def test_what_google_says_of_an_instance_in_words_that_we_lack_still_counts(
    gcp: GcpServer, make_gcp: Make
) -> None:
    """A stopped one costs its disk; one in a state that we do not know may cost anything."""
    provider = make_gcp()
    for number, status in enumerate(("TERMINATED", "STOPPING", "NEWLY_INVENTED")):
        await provider.provision(wanted(f"web-{number}"))
        gcp.instances[ZONE, f"web-{number}"]["status"] = status
    assert ["stopped", "stopping", "running"] == [each.status for each in await provider.list()]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"zone": ""}, "names no `zones`"),
        ({"name": "7-web-1"}, "must begin with a letter"),
        ({"labels": {"Team": "x"}}, "label Team=x of pool web is not valid at Google"),
    ],
)
async def test_what_google_cannot_do_is_refused_before_it_is_asked(
    gcp: GcpServer, make_gcp: Make, changes: dict[str, object], says: str
) -> None:
    """INVALID names the remedy, and no request goes out."""
    with pytest.raises(ProviderError, match=says) as refused:
        await make_gcp().provision(wanted(**changes))
    assert ("INVALID", []) == (refused.value.kind, gcp.calls)


async def test_an_instance_of_another_launch_under_the_name_is_not_adopted(
    gcp: GcpServer, make_gcp: Make
) -> None:
    """An instance without our labels is not ours to use or to remove."""
    await make_gcp().provision(replace(wanted(), fleet="another-fleet"))
    with pytest.raises(ProviderError, match="another instance in"):
        await make_gcp().provision(wanted())
    assert 1 == len(gcp.instances)


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "kind"), KINDS.items())
def test_every_known_code_has_its_kind(code: str, kind: str) -> None:
    """Each known error code has one row, which gives its kind in both forms of an error."""
    failed = operation_error({"error": {"errors": [{"code": "ODD"}, {"code": code}]}})
    refused = error_of(418, {"error": {"message": "m", "errors": [{"reason": code}]}})
    assert failed is not None
    assert (kind, kind) == (failed.kind, refused.kind)


@pytest.mark.parametrize(
    ("status", "kind", "unknown"),
    [
        *COMMON,
        (400, "INVALID", False),
    ],
)
def test_an_unknown_reason_goes_by_its_status(status: int, kind: str, unknown: bool) -> None:
    """Where that says nothing either it is transient, and says so."""
    error = error_of(status, {})
    assert (kind, unknown) == (error.kind, "not known here" in error.message)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", "CAPACITY"),
        ("QUOTA_EXCEEDED", "QUOTA"),
        ("NEW", "TRANSIENT"),
    ],
)
async def test_an_accepted_launch_that_fails_later_is_a_failure(
    gcp: GcpServer, make_gcp: Make, code: str, kind: str
) -> None:
    """The operation reports it, and nothing exists."""
    gcp.failures = [code]
    with pytest.raises(ProviderError) as failed:
        await make_gcp().provision(wanted())
    assert (kind, {}) == (failed.value.kind, gcp.instances)


# --- through the provisioner ---------------------------------------------------------------------


def launch(node: str, **changes: object):
    """Return the provision step's command."""
    return provision(node, **({"instance_type": "a3-highgpu-8g", "zones": (ZONE,)} | changes))


async def test_a_launch_killed_between_any_two_requests_makes_one_instance(
    bus: NatsBus, gcp: GcpServer, make_gcp: Make
) -> None:
    """Repeated by another process, it adopts the instance."""
    for point in range(1, POINTS_MAX):
        node = f"web-{point}"
        dying = make_gcp()
        dying._compute._client = Mortal(dying._client, Life(point), {"request", "post", "get"})
        try:
            await steps(bus, dying).provision(launch(node))
        except Killed:
            outputs = await steps(bus, make_gcp()).provision(launch(node))
            assert [outputs.provider_id] == [f"{z}/{n}" for z, n in gcp.instances if n == node]
        else:
            assert point > 8
            break
    else:
        pytest.fail("the launch has more points than this test tries")


async def test_a_launch_whose_answer_is_lost_is_adopted(
    bus: NatsBus, gcp: GcpServer, make_gcp: Make
) -> None:
    """A 503 after the fact: one instance, and it is ours."""
    gcp.refuse("instances.insert", 503, "backendError", after_success=True)
    outputs = await steps(bus, make_gcp()).provision(launch("web-1"))
    assert ([(ZONE, "web-1")], f"{ZONE}/web-1") == (list(gcp.instances), outputs.provider_id)


@pytest.mark.usefixtures("hopeless")
async def test_without_capacity_in_one_zone_the_next_is_taken(
    bus: NatsBus, gcp: GcpServer, make_gcp: Make
) -> None:
    """The next zone is taken; without capacity in any the step fails with the kind."""
    gcp.failures = ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    outputs = await steps(bus, make_gcp()).provision(launch("web-1", zones=(ZONE, "us-central1-b")))
    assert "us-central1-b/web-1" == outputs.provider_id
    gcp.failures = ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    with pytest.raises(StepFailure) as failed:
        await steps(bus, make_gcp()).provision(launch("web-2"))
    assert ("CAPACITY", 1) == (failed.value.error, len(gcp.instances))
