"""Machines of one's own that do not answer, or that are others than they were."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from services.bus.nats.nats_bus import NatsBus
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.ssh import SshProvider
from services.provisioner.removal.remover import NotRemoved
from tests.provisioner.provisioner_parts import (
    FLEET,
    provision,
    recorded,
    request,
    steps,
    terminate,
)
from tests.provisioner.ssh_machines import Machines, new_key, written

Make = Callable[..., SshProvider]


@pytest.fixture
def make(make_ssh: Make) -> Make:
    """Makes the provider again."""
    return make_ssh


# --- machines that do not answer -----------------------------------------------------------------


async def test_one_dead_machine_does_not_blind_the_fleet(
    bus: NatsBus, owned: Machines, make: Make
) -> None:
    """A dead machine's instance is not taken for gone, while others come and go.

    The machine is healed when it is back.
    """
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
    assert not await one.remover.try_removal("web.web-1")
    result = await one.remover._try_removal("web.web-1", await recorded(bus, "web-1"), again=False)
    assert isinstance(result, NotRemoved)
    assert f"{dead.name} cannot be reached" in result.reason

    await owned.on(dead)
    await steps(bus, provider).terminate(terminate("web-1"))
    assert "terminated" == (await recorded(bus, "web-1")).state
    assert ["web-3"] == [each.name for each in await provider.list()]


async def test_a_machine_that_never_comes_back_is_taken_out_of_the_inventory(
    bus: NatsBus, owned: Machines, make: Make, tmp_path: Path
) -> None:
    """A machine outside the inventory is gone; put back, its old claim can be removed."""
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
    """A list leaves a dead machine alone for a while; a call that needs that very one does not."""
    provider = make(rest=60)
    made = await provider.provision(request(gpu_count=0))
    box = owned.boxes[made.host]
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


async def test_a_broken_connection_is_opened_again(owned: Machines, make: Make) -> None:
    """The next caller notices nothing; and one connection serves many commands."""
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
    """Each provisioner that shares the file refuses another key; removing the line allows it."""
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
    """The inventory's host key counts from the first connection on, and no other is kept."""
    right = [
        replace(each, host_key=(owned.boxes[each.name].home / "host-key.pub").read_text())
        for each in owned.inventory()
    ]
    wrong = [*right[:-1], replace(right[-1], host_key=right[0].host_key)]
    assert [] == await make(machines=tuple(right)).list()
    assert ["gpu-007"] == [each.name for each in await make(machines=tuple(wrong)).list()]
    assert not (tmp_path / "ssh").exists()
