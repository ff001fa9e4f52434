"""The host of a node that is replaced for a GPU's XID is reported to its provider."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.saga_params import SagaParams
from schemas.step_data import TerminateInputs
from services.bus.nats.nats_bus import NatsBus
from services.provisioner.providers.gcp import GcpProvider
from services.saga.definitions.saga_steps import TERMINATE
from tests.provisioner.gcp_server import GcpServer
from tests.provisioner.provisioner_parts import command, fake, provision, recorded, request, steps

Make = Callable[..., GcpProvider]
RESERVED = {"reservation": "h100", "report_faulty_hosts": True}
LAUNCH = {"instance_type": "a3-highgpu-8g", "zones": ("us-central1-a",)}


def removal(node: str = "web-1", fault: str = "xid-79") -> Any:
    """The command to terminate a node that is replaced for a fault."""
    return command("replace-1", "terminate", TerminateInputs(pool="web", node=node, fault=fault))


async def test_the_host_is_reported_before_its_instance_is_removed(
    bus: NatsBus, gcp: GcpServer, make_gcp: Make
) -> None:
    """The operation has ended by then: Google drops the report of an instance that is gone."""
    handlers = steps(bus, make_gcp(**RESERVED))
    await handlers.provision(provision("web-1", **LAUNCH))
    gcp.calls.clear()
    await handlers.terminate(removal())
    [(instance, body)] = gcp.faulty.values()
    reason = {"behavior": "UNRECOVERABLE_GPU_ERROR", "description": "xid-79"}
    assert ("web-1", {"disruptionSchedule": "IMMEDIATE", "faultReasons": [reason]}) == (
        instance,
        body,
    )
    reported = gcp.calls.index("instances.reportHostAsFaulty")
    ended = len(gcp.calls) - gcp.calls[::-1].index("zoneOperations.wait") - 1
    assert reported < ended < gcp.calls.index("instances.delete")
    assert not gcp.instances
    await handlers.terminate(removal())
    assert 1 == len(gcp.faulty)


async def test_a_repeated_report_is_the_same_request(gcp: GcpServer, make_gcp: Make) -> None:
    """A crash between report and removal repeats it: Google ignores the same request ID."""
    await make_gcp(**RESERVED).provision(
        request("web-1", zone="us-central1-a", instance_type="a3-highgpu-8g")
    )
    for _ in range(2):
        assert await make_gcp(**RESERVED).report_faulty_host("us-central1-a/web-1", "xid-79")
    assert 1 == len(gcp.faulty)
    assert await make_gcp(**RESERVED).report_faulty_host("us-central1-a/web-1", "xid-48")
    assert 2 == len(gcp.faulty)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"reservation": "h100"}, "xid-79"),
        ({"reservation": "h100", "report_faulty_hosts": True}, ""),
        ({"report_faulty_hosts": True}, "xid-79"),
    ],
)
async def test_nothing_is_reported_otherwise_and_the_instance_goes(
    bus: NatsBus, gcp: GcpServer, make_gcp: Make, options: dict[str, Any], fault: str
) -> None:
    """Unless it is configured, for a fault, in a reservation; a refusal does not stop a removal."""
    handlers = steps(bus, make_gcp(**options))
    await handlers.provision(provision("web-1", **LAUNCH))
    await handlers.terminate(removal(fault=fault))
    assert (not gcp.faulty, not gcp.instances) == (True, True)


async def test_a_provider_that_takes_no_reports_gets_none(bus: NatsBus) -> None:
    """A provider that takes no reports gets none, and its instance goes all the same."""
    handlers = steps(bus, fake())
    await handlers.provision(provision("web-1"))
    await handlers.terminate(removal())
    assert "terminated" == (await recorded(bus, "web-1")).state


@pytest.mark.parametrize(
    ("action", "signature", "fault"),
    [
        ("replace", "xid-79", "xid-79"),
        ("reboot", "xid-79", ""),
        ("replace", "silence", ""),
        ("none", "", ""),
    ],
)
def test_only_a_replacement_for_an_xid_names_its_fault(
    action: Any, signature: str, fault: str
) -> None:
    """A failure other than an XID names no fault.

    The image, the driver or the network may have caused it.
    """
    params = SagaParams(pool="web", node="web-1", action=action, fault_signature=signature)
    assert TERMINATE.inputs is not None
    assert fault == TERMINATE.inputs(params, {}).fault
