"""The provider `ssh` on real sshds: the conformance suite, and claims that outlive connections."""

import getpass
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from schemas.duration import Duration
from services.provisioner.conformance import ProviderConformance
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.ssh import SshProvider
from services.provisioner.providers.ssh_inventory import InventoryMachine
from tests.provisioner.provisioner_parts import request
from tests.real.sshd import SSHD, new_key, real_sshd
from tests.support.inprocess import eventually

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(SSHD is None, reason="no sshd here: apt-get install openssh-server"),
]
MACHINES = 8
Make = Callable[..., SshProvider]


@dataclass(frozen=True)
class Racks:
    """Holds all machines: their folders by name, and their inventory."""

    folders: dict[str, Path]
    inventory: tuple[InventoryMachine, ...]
    key: Path

    def claims(self) -> list[str]:
        """Return the names of the machines that are claimed."""
        return sorted(
            name for name, each in self.folders.items() if (each / "home/claim/held").exists()
        )


@pytest.fixture
async def racks(tmp_path: Path) -> AsyncIterator[Racks]:
    """Run eight sshds."""
    key = tmp_path / "key"
    new_key(key)
    async with AsyncExitStack() as stack:
        folders, machines = {}, []
        for number in range(MACHINES):
            name = f"gpu-{number}"
            folders[name] = tmp_path / name
            folders[name].mkdir()
            port = await stack.enter_async_context(real_sshd(folders[name], key))
            machines.append(InventoryMachine(name=name, host="127.0.0.1", port=port, type="h100"))
        yield Racks(folders, tuple(machines), key)


@pytest.fixture
async def make(racks: Racks, tmp_path: Path) -> AsyncIterator[Make]:
    """Creates the provider again. Reboots are simulated: the machine is this one."""
    made: list[SshProvider] = []
    environment = Environment(name="racks", fleet="fleet-one", nats_url="", data_dir=tmp_path)

    def again(**changes: Any) -> SshProvider:
        plain = {
            "machines": racks.inventory,
            "user": getpass.getuser(),
            "key_file": str(racks.key),
            "sudo": False,
            "claim_folder": "~/claim",
            "reboot_command": 'echo reboot >> "$HOME/rebooted"',
            "rest": Duration(0),
        }
        options = SshProvider.Options(**(plain | changes))
        made.append(SshProvider(options=options, environment=environment))
        return made[-1]

    yield again
    for each in made:
        await each.close()


class TestContract(ProviderConformance):
    """Runs the conformance suite on the sshds."""

    @pytest.fixture
    def make(self, make: Make) -> Make:
        return make


async def test_claim_outlives_the_connection(racks: Racks, make: Make) -> None:
    """The sessions' own sshds are killed: the claim remains, and the next launch finds it."""
    provider = make()
    made = await provider.provision(request(gpu_count=0))
    assert [made.host] == racks.claims()
    for each in racks.folders.values():
        listener = int((each / "sshd.pid").read_text())
        for child in children(listener):
            os.kill(child, signal.SIGKILL)
    assert [made.provider_id] == [each.provider_id for each in await provider.list()]
    await provider.terminate(made.provider_id)
    assert [] == racks.claims()


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


async def test_wipe_continues_without_a_connection(racks: Racks, make: Make) -> None:
    """A wipe outlives the session that started it, and frees the machine by itself."""
    wipe = 'read -r _ < "$HOME/fifo" && echo "$PWD" > "$HOME/wiped"'
    provider = make(machines=racks.inventory[:1], wipe_command=wipe)
    home = racks.folders["gpu-0"] / "home"
    os.mkfifo(home / "fifo")
    made = await provider.provision(request(gpu_count=0))
    await provider.terminate(made.provider_id)
    await provider.close()
    later = make(machines=racks.inventory[:1])
    assert ["stopping"] == [each.status for each in await later.list()]
    with pytest.raises(ProviderError, match="1 are being released"):
        await later.provision(request("web-2", gpu_count=0))
    descriptor = os.open(home / "fifo", os.O_WRONLY)
    os.write(descriptor, b"go\n")
    os.close(descriptor)

    async def free() -> bool:
        return await later.list() == []

    await eventually(free)
    assert "/" == (home / "wiped").read_text().strip()
