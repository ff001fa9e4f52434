"""Machines of one's own, over SSH servers in this process, with real shells and real files."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from msgspec.structs import replace

from schemas.records import InstanceRecord
from services.provisioner.errors import ProviderError
from services.provisioner.provider import Environment, Instance
from services.provisioner.providers import ssh, ssh_claims, ssh_errors
from services.provisioner.providers.ssh import SshProvider
from services.provisioner.providers.ssh_claims import Look
from services.provisioner.providers.ssh_inventory import Inventory, Machine
from services.provisioner.removal import Standing
from services.provisioner.store import InstanceStore
from services.runtime.errors import ConfigurationError
from services.runtime.nats_bus import NatsBus
from tests.provisioner.machines import Box, Machines, new_key
from tests.provisioner.support import FLEET, provision, request, steps, terminate, until

Make = Callable[..., SshProvider]
ORDERS_MAX = 40


@pytest.fixture
def make(make_ssh: Make) -> Make:
    """Makes the provider anew."""
    return make_ssh


def box_of(owned: Machines, instance: Instance) -> Box:
    """The machine that an instance is."""
    return owned.boxes[instance.host]


async def recorded(bus: NatsBus, node: str = "web-1") -> InstanceRecord:
    """A node's record."""
    found = await InstanceStore(bus).get(f"web.{node}")
    assert found is not None
    return found


# --- claims --------------------------------------------------------------------------------------


async def test_an_instance_is_a_machine_with_its_claim(owned: Machines, make: Make) -> None:
    """Its id names machine and launch, its address the port; the inventory's labels are tags."""
    inventory = owned.inventory(zone="rack-7", labels={"rack": "7"}, gpu_count=8)
    made = await make(machines=inventory).provision(request(labels={"team": "vision"}, gpu_count=8))
    box = box_of(owned, made)
    assert (f"{box.name}:token-of-web-1", f"127.0.0.1:{box.port}") == (
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
    """By type, place and number of GPUs; what is not said is no condition."""
    machine = Machine(**({"host": "gpu-7", "type": "h100"} | place))
    assert fits == machine.fits(request(**({"gpu_count": 0} | asked)))


async def test_a_machine_is_claimed_once(owned: Machines, make: Make) -> None:
    """Twelve launches at two provisioners and eight machines: eight, and four are told why not."""
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

    told = await asyncio.gather(*map(launch, range(12)))
    assert dict.fromkeys(owned.boxes, "held") == owned.claims()
    full = [each for each in told if each.startswith("CAPACITY")]
    assert ["CAPACITY: none of 8 machines of type h100 is free: 8 are claimed"] * 4 == full
    assert 8 == len({each.partition(":")[0] for each in told} - {"CAPACITY"})


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

    async def _order(self, order: ssh_claims.Order, machine: Machine, **more: Any) -> Look:
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
    """Wherever the slower one is overtaken; also where the quicker one had to go elsewhere."""
    for at in range(1, ORDERS_MAX):
        asked = request(f"web-{at}", gpu_count=0)
        slow, quick = Halting(make(), at), make()
        launching = asyncio.create_task(slow.provision(asked))
        halt = asyncio.create_task(slow.halted.wait())
        await asyncio.wait({launching, halt}, return_when=asyncio.FIRST_COMPLETED)
        halt.cancel()
        overtaken = slow.halted.is_set()
        blocked: list[Machine] = []
        if elsewhere and overtaken:
            # What the slower one will try first is somebody's for as long as the quicker one takes.
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
        if not overtaken:
            assert at > 2
            return
    pytest.fail("there are more orders than this test halts")


def preference(machine: Machine, token: str) -> str:
    """In which order a launch tries machines."""
    return ssh._preference(ssh.Sight(machine, Look(state="free")), token)[1]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["drop", "hang"])
async def test_a_machine_that_falls_silent_in_the_middle_is_claimed_once(
    bus: NatsBus, owned: Machines, make: Make, how: str
) -> None:
    """Whichever order has run and was not answered: one instance, and no claim beside it."""
    for number in range(1, 5):
        node = f"web-{number}"
        for box in owned.boxes.values():
            box.expect(**{how: number})
        provider = make(command_timeout=0.5, connect_timeout=0.5)
        outputs = await steps(bus, provider).provision(provision(node))
        assert {outputs.provider_id.partition(":")[0]: "held"} == owned.claims()
        for box in owned.boxes.values():
            box.expect()
        await steps(bus, provider).terminate(terminate(node))
        assert {} == owned.claims()


async def test_what_was_given_back_comes_last(owned: Machines, make: Make) -> None:
    """It may have been given back because it is broken."""
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
    with pytest.raises(ProviderError, match="not claimed by web-1 any more"):
        await provider.reboot(old)
    assert [new.provider_id] == [each.provider_id for each in await provider.list()]


async def test_a_claim_that_cannot_be_read_keeps_its_machine(owned: Machines, make: Make) -> None:
    """It is somebody's, and no fleet's to touch."""
    folder = owned[0].home / "claim"
    folder.mkdir()
    (folder / "held").write_text("token %%%\n")
    [listed] = await make().list()
    assert ("gpu-000:token", "", "running") == (listed.provider_id, listed.fleet, listed.status)


async def test_a_reboot_runs_the_command_on_the_machine(owned: Machines, make: Make) -> None:
    """After the answer, so that it comes through."""
    made = await make().provision(request(gpu_count=0))
    await make().reboot(made)
    file = box_of(owned, made).home / "rebooted"

    async def rebooted() -> bool:
        return file.exists()

    await until(rebooted)
    with pytest.raises(ProviderError, match="has no `reboot_command`"):
        await make(reboot_command="").reboot(made)


# --- wiping --------------------------------------------------------------------------------------


async def test_a_machine_is_free_when_it_is_wiped(owned: Machines, make: Make) -> None:
    """However long that takes, it stays listed, and asking again does not begin it again."""
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
    with pytest.raises(ProviderError, match="0 are claimed, 1 are being given back"):
        await provider.provision(request("web-2", gpu_count=0))
    await asyncio.to_thread((home / "fifo").write_text, "go\n")

    async def free() -> bool:
        return await provider.list() == []

    await until(free)
    assert ["begun", "done"] == (home / "log").read_text().split()


async def test_a_wipe_that_fails_is_told_and_tried_again(owned: Machines, make: Make) -> None:
    """The machine stays claimed until it ends well."""
    inventory = owned.inventory()[:1]
    wipe = '[ -e "$HOME/cured" ] || { echo no such device >&2; exit 3; }'
    provider = make(machines=inventory, wipe_command=wipe)
    made = await provider.provision(request(gpu_count=0))
    said: list[str] = []

    async def told() -> bool:
        try:
            await provider.terminate(made.provider_id)
        except ProviderError as error:
            said.append(str(error))
        return bool(said)

    await until(told)
    ended = "TRANSIENT: gpu-000 is not given back: `wipe_command` ended with 3"
    assert [f"{ended}; it wrote: no such device"] == said
    assert ["stopping"] == [each.status for each in await provider.list()]
    (owned[0].home / "cured").touch()

    async def free() -> bool:
        with_error = asyncio.gather(provider.terminate(made.provider_id), return_exceptions=True)
        await with_error
        return await provider.list() == []

    await until(free)


# --- machines that do not answer -----------------------------------------------------------------


async def test_one_dead_machine_does_not_blind_the_fleet(
    bus: NatsBus, owned: Machines, make: Make
) -> None:
    """Its own instance is not taken for gone; others come and go; it is healed when it is back."""
    provider = make(connect_timeout=0.5)
    for node in ("web-1", "web-2"):
        await steps(bus, provider).provision(provision(node))
    dead = owned.boxes[(await recorded(bus, "web-1")).host]
    await dead.off()
    hidden = [each for each in await provider.list() if each.may_hold]
    assert [(dead.name, f"{dead.name}:", "")] == [
        (each.provider_id, each.may_hold, each.fleet) for each in hidden
    ]

    await steps(bus, provider).terminate(terminate("web-2"))
    await steps(bus, provider).provision(provision("web-3"))
    one = steps(bus, provider)
    await InstanceStore(bus).change("web.web-1", lambda it: it and replace(it, state="terminating"))
    assert not await one.remover.once("web.web-1")
    standing = await one.remover._try(await recorded(bus, "web-1"))
    assert isinstance(standing, Standing)
    assert f"{dead.name} cannot be reached" in standing.reason

    await owned.on(dead)
    await steps(bus, provider).terminate(terminate("web-1"))
    assert "terminated" == (await recorded(bus, "web-1")).state
    assert ["web-3"] == [each.name for each in await provider.list()]


async def test_a_machine_that_never_comes_back_is_taken_out_of_the_inventory(
    bus: NatsBus, owned: Machines, make: Make, tmp_path: Path
) -> None:
    """That says that it is gone; put back, its old claim is seen again, and can be removed."""
    file = tmp_path / "machines.yaml"
    file.write_text(written(owned.inventory()))
    provider = make(inventory=str(file), connect_timeout=0.5)
    await steps(bus, provider).provision(provision("web-1"))
    dead = owned.boxes[(await recorded(bus)).host]
    await dead.off()
    file.write_text(written(each for each in owned.inventory() if each.name != dead.name))
    await steps(bus, provider).terminate(terminate("web-1"))
    assert ("terminated", []) == ((await recorded(bus)).state, await provider.list())

    await owned.on(dead)
    file.write_text(written(owned.inventory()))
    [left] = await provider.list()
    assert (FLEET, "web-1") == (left.fleet, left.name)
    await provider.terminate(left.provider_id)
    assert {} == owned.claims()


async def test_when_no_machine_answers_the_list_is_an_error(owned: Machines, make: Make) -> None:
    """Then it is more likely we who are cut off."""
    provider = make(connect_timeout=0.5)
    for box in owned.boxes.values():
        await box.off()
    with pytest.raises(ProviderError, match="none of 8 machines can be used: gpu-000") as refused:
        await provider.list()
    assert "NETWORK" == refused.value.kind


async def test_a_dead_machine_costs_its_time_out_once(owned: Machines, make: Make) -> None:
    """Who looks at all of them leaves it alone for a while; who wants that very one does not."""
    provider = make(rest=60)
    made = await provider.provision(request(gpu_count=0))
    box = box_of(owned, made)
    box.refuses = True
    for connection in list(box.connections):
        connection.abort()
    before = box.logins
    for _ in range(3):
        assert made.host in [each.name for each in await provider.list() if each.may_hold]
    assert before + 1 == box.logins
    box.refuses = False
    await provider.terminate(made.provider_id)
    assert [] == await provider.list()


async def test_a_connection_that_broke_is_made_anew(owned: Machines, make: Make) -> None:
    """Unseen by whoever asks next; and one is enough for many orders."""
    provider = make()
    for _ in range(3):
        await provider.list()
    assert {1} == {each.logins for each in owned.boxes.values()}
    for box in owned.boxes.values():
        for connection in list(box.connections):
            connection.abort()
    assert [] == await provider.list()
    assert {2} == {each.logins for each in owned.boxes.values()}


# --- host keys -----------------------------------------------------------------------------------


async def test_another_host_key_than_the_first_one_is_refused(
    owned: Machines, make: Make, tmp_path: Path
) -> None:
    """By every provisioner that shares the file; taking the line out allows the new one."""
    assert [] == await make().list()
    box = owned[3]
    await box.off()
    new_key(box.host_key)
    await owned.on(box)
    [hidden] = await make().list()
    assert (box.name, True) == (hidden.name, "AUTH: gpu-003 shows another" in hidden.tags["why"])
    pins = tmp_path / "ssh" / "fake.known_hosts"
    kept = [each for each in pins.read_text().splitlines() if f":{box.port} " not in each]
    assert 7 == len(kept)
    pins.write_text("".join(f"{each}\n" for each in kept))
    assert [] == await make().list()


async def test_the_inventorys_host_key_counts(owned: Machines, make: Make, tmp_path: Path) -> None:
    """From the first connection on, and no other is kept."""
    right = [
        replace(each, host_key=(owned.boxes[each.name].home / "host-key.pub").read_text())
        for each in owned.inventory()
    ]
    wrong = [*right[:-1], replace(right[-1], host_key=right[0].host_key)]
    assert [] == await make(machines=tuple(right)).list()
    assert ["gpu-007"] == [each.name for each in await make(machines=tuple(wrong)).list()]
    assert not (tmp_path / "ssh").exists()


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (asyncssh.HostKeyNotVerifiable("other"), "AUTH"),
        (asyncssh.PermissionDenied("no"), "AUTH"),
        (asyncssh.KeyImportError("bad"), "INVALID"),
        (FileNotFoundError(2, "No such file"), "INVALID"),
        (PermissionError(13, "denied"), "INVALID"),
        (asyncssh.ConnectionLost("gone"), "TRANSIENT"),
        (asyncssh.DisconnectError(11, "bye"), "TRANSIENT"),
        (asyncssh.ChannelOpenError(1, "no"), "TRANSIENT"),
        (TimeoutError(), "NETWORK"),
        (ConnectionRefusedError(111, "refused"), "NETWORK"),
        (OSError(113, "No route to host"), "NETWORK"),
    ],
)
def test_everything_that_a_connection_raises_has_its_kind(raised: Exception, kind: str) -> None:
    """One row each, with the machine's name."""
    error = ssh_errors.of_exception("gpu-7", raised)
    assert (kind, True) == (error.kind, error.message.startswith("gpu-7 "))
    assert "not known here" not in error.message


@pytest.mark.parametrize(
    ("status", "output", "kind", "says"),
    [
        (73, "mkdir: Read-only file system", "UNSUPPORTED", "Read-only file system"),
        (75, "", "TRANSIENT", "lock"),
        (126, "", "INVALID", "may not be run"),
        (127, "flock: not found", "INVALID", "flock: not found"),
        (1, "sudo: a password is required", "AUTH", "set `sudo: false`"),
        (9, "what?", "TRANSIENT", "not known here"),
    ],
)
def test_every_way_in_which_a_script_ends_has_its_kind(
    status: int, output: str, kind: str, says: str
) -> None:
    """One row each; what is not known says so."""
    error = ssh_errors.of_status("gpu-7", status, output)
    assert (kind, True) == (error.kind, says in error.message)


def test_what_is_raised_and_not_known_is_transient() -> None:
    """And says so."""
    error = ssh_errors.of_exception("gpu-7", ZeroDivisionError("x"))
    assert ("TRANSIENT", True) == (error.kind, "not known here" in error.message)


async def test_a_machine_that_cannot_be_written_is_passed_over(owned: Machines, make: Make) -> None:
    """The next one is taken; it is named where none is left."""
    for box in list(owned.boxes.values())[1:]:
        (box.home / "claim").write_text("a file in the way")
    made = await make().provision(request(gpu_count=0))
    assert "gpu-000" == made.host
    with pytest.raises(ProviderError, match=r"1 are claimed, 7 cannot be used \(UNSUPPORTED: gpu"):
        await make().provision(request("web-2", gpu_count=0))


def test_output_of_other_programs_is_overlooked() -> None:
    """Shells greet; an answer without its end is none."""
    greeting = "Welcome!\nnavarch: state free\nnavarch: end\n"
    assert Look(state="free") == ssh_claims.read(greeting)
    assert ssh_claims.read("Welcome!\nnavarch: state free") is None


# --- the inventory -------------------------------------------------------------------------------


def written(machines: Any) -> str:
    """An inventory file."""
    lines = ["machines:"]
    for each in machines:
        lines += [f"  - name: {each.name}", f"    host: {each.host}", f"    port: {each.port}"]
        lines += [f"    type: {each.type}"]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("machines: []\n", ":1: machines: names no machine"),
        ("", ":1: (the whole file): `machines` is missing; add it"),
        ("machines:\n  - host: a\n", ":2: machines.0: `type` is missing; add it"),
        (
            "machines:\n  - host: a\n    typ: x\n",
            ":3: machines.0.typ: unknown key; known here: host",
        ),
        ("machines:\n  - {host: a, type: x}\n  - host: a\n    type: x\n", ":3: machines.1"),
        ("machines:\n  - host: a b\n    type: x\n", ":2: machines.0.name: 'a b' is no name"),
        ("machines:\n  - host: a\n    type: x\n    port: 0\n", ":4: machines.0.port"),
        ("machines: [\n", ":2: not valid YAML"),
    ],
)
def test_what_is_wrong_in_an_inventory_is_said_with_its_place(
    tmp_path: Path, text: str, says: str
) -> None:
    """File, line and key."""
    file = tmp_path / "machines.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        Inventory("racks", (), str(file))
    assert f"{file}{says}" in str(refused.value)


@pytest.mark.parametrize(
    ("machines", "file", "says"),
    [
        ((), "", "either under `machines`, or in the file"),
        ((Machine(host="a", type="x"),), "f", "either under `machines`, or in the file"),
        ((Machine(host="a", type="x"),) * 2, "", "providers.racks.machines.1.name: a is machine 0"),
        ((), "/nowhere/machines.yaml", "providers.racks.inventory: /nowhere"),
    ],
)
def test_machines_are_named_in_one_place(
    machines: tuple[Machine, ...], file: str, says: str
) -> None:
    """And once."""
    with pytest.raises(ConfigurationError, match=says):
        Inventory("racks", machines, file)


async def test_an_inventory_that_is_broken_later_is_an_error_and_no_shorter_list(
    owned: Machines, make: Make, tmp_path: Path
) -> None:
    """Until it is mended, nothing is concluded."""
    file = tmp_path / "machines.yaml"
    file.write_text(written(owned.inventory()))
    provider = make(inventory=str(file))
    await provider.provision(request(gpu_count=0))
    file.write_text("machines: []\n")
    with pytest.raises(ProviderError, match=r"machines\.yaml:1: machines: names no machine") as bad:
        await provider.list()
    assert "INVALID" == bad.value.kind
    file.write_text(written(owned.inventory()))
    assert 1 == len(await provider.list())


def test_a_machine_without_a_key_is_refused(make: Make) -> None:
    """At the start, with the option to set."""
    with pytest.raises(ConfigurationError, match=r"providers\.fake\.key_file: no private key for"):
        make(key_file="")
