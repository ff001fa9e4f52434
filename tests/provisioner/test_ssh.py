"""SSH servers in this process are the machines, with real shells and real files."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from services.bus.nats.nats_bus import NatsBus
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import ssh, ssh_claims
from services.provisioner.providers.ssh import SshProvider
from services.provisioner.providers.ssh_claims import ClaimReport
from services.provisioner.providers.ssh_inventory import InventoryMachine
from tests.provisioner.provisioner_parts import (
    FLEET,
    provision,
    request,
    steps,
    terminate,
    token_of,
    until,
)
from tests.provisioner.ssh_machines import Machines

Make = Callable[..., SshProvider]
ORDERS_MAX = 40


@pytest.fixture
def make(make_ssh: Make) -> Make:
    """Makes the provider again."""
    return make_ssh


# --- claims --------------------------------------------------------------------------------------


async def test_an_instance_is_a_machine_with_its_claim(owned: Machines, make: Make) -> None:
    """An instance's id names machine and launch, its address the port.

    The inventory's labels are tags.
    """
    inventory = owned.inventory(zone="rack-7", labels={"rack": "7"}, gpu_count=8)
    made = await make(machines=inventory).provision(request(labels={"team": "vision"}, gpu_count=8))
    box = owned.boxes[made.host]
    assert (f"{box.name}:{token_of()}", f"127.0.0.1:{box.port}") == (
        made.provider_id,
        made.address,
    )
    assert ("rack-7", "7", "vision") == (made.zone, made.tags["rack"], made.tags["team"])
    assert {box.name: "held"} == owned.claims()
    assert 0o700 == (box.home / "claim").stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("place", "asked", "fits"),
    [
        ({}, {"region": "here", "zone": "a"}, True),
        ({"region": "here", "zone": "a"}, {}, True),
        ({"region": "here", "zone": "a"}, {"region": "here"}, True),
        ({"region": "here", "zone": "a"}, {"region": "here", "zone": "b"}, False),
        ({"region": "here"}, {"region": "there"}, False),
        ({"gpu_count": 4}, {"gpu_count": 8}, False),
        ({"gpu_count": 8}, {"gpu_count": 4}, True),
        ({"type": "a100"}, {}, False),
    ],
)
def test_a_machine_fits_or_does_not(place: Any, asked: Any, fits: bool) -> None:
    """A machine fits by type, place and number of GPUs; an unset value is no condition."""
    machine = InventoryMachine(**({"host": "gpu-7", "type": "h100"} | place))
    assert fits == machine.fits(request(**({"gpu_count": 0} | asked)))


async def test_a_machine_is_claimed_once(owned: Machines, make: Make) -> None:
    """Twelve launches at two provisioners and eight machines: eight; four are refused."""
    providers = [make(), make()]

    async def launch(number: int) -> str:
        for _ in range(20):
            try:
                made = await providers[number % 2].provision(request(f"web-{number}", gpu_count=0))
            except ProviderError as error:
                if error.kind == "CAPACITY":
                    return str(error)
            else:
                return made.provider_id
        raise AssertionError("no end to it")

    results = await asyncio.gather(*map(launch, range(12)))
    assert dict.fromkeys(owned.boxes, "held") == owned.claims()
    full = [each for each in results if each.startswith("CAPACITY")]
    assert ["CAPACITY: none of 8 machines of type h100 is free: 8 are claimed"] * 4 == full
    assert 8 == len({each.partition(":")[0] for each in results} - {"CAPACITY"})


class Halting(SshProvider):
    """Halts before one of its orders, until it is let go."""

    def __init__(self, real: SshProvider, at: int) -> None:
        environment = Environment(
            name=real.name, fleet=FLEET, nats_url="", data_dir=real._links._pins.parents[1]
        )
        super().__init__(options=real.options, environment=environment)
        self.left = at
        self.halted = asyncio.Event()
        self.go_on = asyncio.Event()

    async def _order(
        self, order: ssh_claims.ClaimCommand, machine: InventoryMachine, **more: Any
    ) -> ClaimReport:
        if order != "look":
            self.left -= 1
            if self.left == 0:
                self.halted.set()
                await self.go_on.wait()
        return await super()._order(order, machine, **more)


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same-machine", "another-machine"])
async def test_two_that_launch_one_token_make_one_instance(
    owned: Machines, make: Make, *, elsewhere: bool
) -> None:
    """The slower launch is superseded anywhere, even where the quicker one went elsewhere."""
    for at in range(1, ORDERS_MAX):
        asked = request(f"web-{at}", gpu_count=0)
        slow, quick = Halting(make(), at), make()
        launching = asyncio.create_task(slow.provision(asked))
        halt = asyncio.create_task(slow.halted.wait())
        await asyncio.wait({launching, halt}, return_when=asyncio.FIRST_COMPLETED)
        halt.cancel()
        superseded = slow.halted.is_set()
        blocked: list[InventoryMachine] = []
        if elsewhere and superseded:
            # What the slower one tries first is claimed while the quicker one takes its machine.
            for each in sorted(
                owned.inventory(), key=lambda machine: preference(machine, asked.token)
            )[:1]:
                look = await quick._order("take", each, token="other")
                blocked += [each] if look.token == "other" else []
        first = await quick.provision(asked)
        for each in blocked:
            await quick._order("drop", each, token="other")
        slow.go_on.set()
        second = await launching
        listed = await quick.list()
        assert (first.provider_id, [first.provider_id]) == (
            second.provider_id,
            [each.provider_id for each in listed],
        )
        await quick.terminate(first.provider_id)
        await slow.close()
        if not superseded:
            assert at > 2
            return
    pytest.fail("there are more orders than this test halts")


def preference(machine: InventoryMachine, token: str) -> str:
    """Return the key by which a launch orders machines."""
    return ssh._preference(ssh.MachineReport(machine, ClaimReport(state="free")), token)[1]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["drop", "hang"])
async def test_a_machine_that_falls_silent_in_the_middle_is_claimed_once(
    bus: NatsBus, owned: Machines, make: Make, how: str
) -> None:
    """There is one instance and no claim beside it, whichever order ran without an answer."""
    for number in range(1, 5):
        node = f"web-{number}"
        for box in owned.boxes.values():
            box.expect(**{how: number})
        provider = make(command_timeout=1.0, connect_timeout=1.0)
        outputs = await steps(bus, provider).provision(provision(node))
        assert {outputs.provider_id.partition(":")[0]: "held"} == owned.claims()
        for box in owned.boxes.values():
            box.expect()
        await steps(bus, provider).terminate(terminate(node))
        assert {} == owned.claims()


async def test_what_was_given_back_comes_last(owned: Machines, make: Make) -> None:
    """A machine that was given back may be broken, so it comes last."""
    provider = make(machines=owned.inventory()[:4])
    first = await provider.provision(request(gpu_count=0))
    await provider.terminate(first.provider_id)
    made = [await provider.provision(request(f"web-{each}", gpu_count=0)) for each in range(4)]
    assert first.host == made[-1].host


async def test_a_late_removal_does_not_touch_the_next_claim(owned: Machines, make: Make) -> None:
    """The id names the launch, so a machine's next holder is safe."""
    inventory = owned.inventory()[:1]
    provider = make(machines=inventory)
    old = await provider.provision(request("web-1", gpu_count=0))
    await provider.terminate(old.provider_id)
    new = await provider.provision(request("web-2", gpu_count=0))
    await provider.terminate(old.provider_id)
    with pytest.raises(ProviderError, match="no longer claimed by web-1"):
        await provider.reboot(old)
    assert [new.provider_id] == [each.provider_id for each in await provider.list()]


async def test_a_claim_that_cannot_be_read_keeps_its_machine(owned: Machines, make: Make) -> None:
    """A machine with an unreadable claim is claimed, and no fleet may touch it."""
    folder = owned[0].home / "claim"
    folder.mkdir()
    (folder / "held").write_text("token %%%\n")
    [listed] = await make().list()
    assert ("gpu-000:token", "", "running") == (listed.provider_id, listed.fleet, listed.status)


async def test_a_reboot_runs_the_command_on_the_machine(owned: Machines, make: Make) -> None:
    """The command runs after the answer, so that the answer comes through."""
    made = await make().provision(request(gpu_count=0))
    await make().reboot(made)
    file = owned.boxes[made.host].home / "rebooted"

    async def rebooted() -> bool:
        return file.exists()

    await until(rebooted)
    with pytest.raises(ProviderError, match="has no `reboot_command`"):
        await make(reboot_command="").reboot(made)


# --- wiping --------------------------------------------------------------------------------------


async def test_a_machine_is_free_when_it_is_wiped(owned: Machines, make: Make) -> None:
    """A machine is listed while it is wiped; another request does not begin the wipe again."""
    inventory = owned.inventory()[:1]
    home = owned[0].home
    wipe = 'echo begun >> "$HOME/log"; read -r _ < "$HOME/fifo"; echo done >> "$HOME/log"'
    os.mkfifo(home / "fifo")
    provider = make(machines=inventory, wipe_command=wipe)
    made = await provider.provision(request(gpu_count=0))
    for _ in range(3):
        await provider.terminate(made.provider_id)
    [listed] = await provider.list()
    assert ("stopping", made.provider_id) == (listed.status, listed.provider_id)
    with pytest.raises(ProviderError, match="0 are claimed, 1 are being released"):
        await provider.provision(request("web-2", gpu_count=0))
    await asyncio.to_thread((home / "fifo").write_text, "go\n")

    async def free() -> bool:
        return await provider.list() == []

    await until(free)
    assert ["begun", "done"] == (home / "log").read_text().split()


async def test_a_failed_wipe_is_reported_and_tried_again(owned: Machines, make: Make) -> None:
    """The machine stays claimed until it ends well."""
    inventory = owned.inventory()[:1]
    wipe = '[ -e "$HOME/repaired" ] || { echo no such device >&2; exit 3; }'
    provider = make(machines=inventory, wipe_command=wipe)
    made = await provider.provision(request(gpu_count=0))
    said: list[str] = []

    async def reported() -> bool:
        try:
            await provider.terminate(made.provider_id)
        except ProviderError as error:
            said.append(str(error))
        return bool(said)

    await until(reported)
    ended = "TRANSIENT: gpu-000 is not released: `wipe_command` ended with 3"
    assert [f"{ended}; it wrote: no such device"] == said
    assert ["stopping"] == [each.status for each in await provider.list()]
    (owned[0].home / "repaired").touch()

    async def free() -> bool:
        with_error = asyncio.gather(provider.terminate(made.provider_id), return_exceptions=True)
        await with_error
        return await provider.list() == []

    await until(free)
