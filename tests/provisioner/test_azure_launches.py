"""Azure through the provisioner: deaths and lost answers leave one machine, its removal nothing.

`test_every_crash.py` tries every provider so; here Azure itself lists what exists, disks,
interfaces and addresses included.
"""

import asyncio
from collections.abc import Callable

import pytest

from schemas.duration import Duration
from services.bus.nats.nats_bus import NatsBus
from services.provisioner.providers.azure import AzureProvider
from services.saga.participant import StepFailure
from tests.provisioner.azure_server import AzureServer
from tests.provisioner.faulty_transports import LosingTransport, MortalTransport
from tests.provisioner.provisioner_parts import Killed, Life, provision, request, steps, terminate

Make = Callable[..., AzureProvider]
SIZE = "Standard_ND96isr_H100_v5"
LAUNCH = "virtualMachines.createOrUpdate"
REQUESTS_MAX = 40
AFTER_EACH_REQUEST = range(2, 2 * REQUESTS_MAX, 2)
"""Moments of a life; before the next request is the same, as far as Azure is concerned."""


def wanted(name: str = "web-1", **changes: object):
    """Return a request for a launch."""
    return request(name, **({"zone": "1", "instance_type": SIZE} | changes))


def only(azure: AzureServer):
    """Return the only machine there is."""
    [machine] = azure.machines.values()
    return machine


def launch(node: str, **changes: object):
    """Return the provision step's command."""
    return provision(node, **({"instance_type": SIZE, "zones": ("1",)} | changes))


async def test_a_launch_killed_anywhere_and_undone_leaves_nothing(
    bus: NatsBus, azure: AzureServer, make_azure: Make
) -> None:
    """Not even an interface that was made for a machine that never was."""
    for point in AFTER_EACH_REQUEST:
        node = f"web-{point}"
        killed = False
        try:
            await steps(
                bus, make_azure(MortalTransport(Life(point)), public_address=True)
            ).provision(launch(node))
        except Killed:
            killed = True
        await steps(bus, make_azure()).provision_undo(provision(node))
        assert set() == azure.existing
        if not killed:
            return
    pytest.fail("the launch has more points than this test tries")


async def test_a_launch_of_which_any_answer_is_lost_makes_one_machine(
    bus: NatsBus, azure: AzureServer, make_azure: Make
) -> None:
    """Each request in turn takes effect and seems to time out; its removal leaves nothing."""
    for number in range(1, REQUESTS_MAX):
        losing = LosingTransport(number)
        outputs = await steps(bus, make_azure(losing, public_address=True)).provision(
            launch(f"web-{number}")
        )
        assert [outputs.provider_id] == list(azure.machines)
        await steps(bus, make_azure()).terminate(terminate(f"web-{number}"))
        assert set() == azure.existing
        if not losing.lost:
            assert number > 10
            return
    pytest.fail("the launch has more requests than this test tries")


@pytest.mark.parametrize("lost", ["answer", "silence"])
async def test_a_launch_that_is_accepted_and_not_answered_is_adopted(
    bus: NatsBus, azure: AzureServer, make_azure: Make, lost: str
) -> None:
    """A 503 after the fact, or no answer ever: one machine, and it is ours; the network is slow."""
    azure.latency = 0.005
    if lost == "answer":
        azure.refuse(LAUNCH, 503, "ServiceUnavailable", after_success=True)
    else:
        azure.silent.add(LAUNCH)
    outputs = await steps(bus, make_azure(timeout=Duration(0.3))).provision(launch("web-1"))
    assert [outputs.provider_id] == list(azure.machines)
    assert 1 == azure.calls.count(LAUNCH)


@pytest.mark.usefixtures("hopeless")
async def test_without_capacity_in_one_zone_the_next_is_taken(
    bus: NatsBus, azure: AzureServer, make_azure: Make
) -> None:
    """The next zone is taken under the same name, which the failed machine has given up.

    Without capacity in any zone the step fails.
    """
    azure.failures = ["ZonalAllocationFailed"]
    outputs = await steps(bus, make_azure()).provision(launch("web-1", zones=("1", "2")))
    assert ("2", ["2"]) == (outputs.zone, only(azure)["zones"])
    azure.failures = ["AllocationFailed"]
    with pytest.raises(StepFailure) as failed:
        await steps(bus, make_azure()).provision(launch("web-2"))
    assert ("CAPACITY", 1) == (failed.value.error, len(azure.machines))


async def test_launches_and_removals_at_once_leave_what_is_listed(
    azure: AzureServer, make_azure: Make
) -> None:
    """An interface that goes under a launch's hands is made again."""
    provider = make_azure()
    for number in range(4):
        asked = wanted(f"web-{number}")
        made = await provider.provision(asked)
        await provider.terminate(made.provider_id)
        await asyncio.gather(
            provider.provision(asked), *(provider.terminate(made.provider_id) for _ in range(3))
        )
    for each in await provider.list():
        await provider.terminate(each.provider_id)
    assert set() == azure.existing
