"""The local provider's instances are recovered as a host would recover them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.provisioner.provider_client.provider import Environment
from services.provisioner.providers import local_gpus
from services.provisioner.providers.local import LocalProvider, stop_all
from tests.provisioner.provisioner_parts import FLEET, SECONDS_MAX
from tests.provisioner.test_local import DUMPING, HOST, appears, killed, pid_of, wanted

Make = Callable[[], LocalProvider]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes providers over one directory, and ends every process at the end."""
    made: list[LocalProvider] = []

    def again() -> LocalProvider:
        environment = Environment(
            name="local", fleet=FLEET, nats_url="nats://127.0.0.1:4222", data_dir=tmp_path
        )
        options = LocalProvider.Options(gpu_count=0)
        made.append(LocalProvider(options=options, environment=environment, command=DUMPING))
        return made[-1]

    yield again
    for each in made:
        await each.close()
    stop_all(tmp_path / "local")


async def booted(place: Path, before: str) -> str:
    """Wait until an instance's agent has another boot, and return it."""
    async with asyncio.timeout(SECONDS_MAX):
        while (boot := reported_boot(place)) in ("", before):
            await asyncio.sleep(0.01)
    return boot


def reported_boot(place: Path) -> str:
    """Return the boot ID of the running agent."""
    lines = (place / "env").read_text().splitlines() if (place / "env").exists() else []
    return next((e.split("=")[1] for e in lines if e.startswith("NAVARCH_BOOT_ID=")), "")


@pytest.mark.parametrize("by", ["provider", "agent", "provider of a dead agent"])
async def test_a_reboot_is_another_boot_of_the_same_instance(make: Make, by: str) -> None:
    """The agent runs again with a new boot id and an empty kernel log; the instance is the same."""
    provider = make()
    made = await provider.provision(wanted())
    place = provider.directory / "web-1"
    await appears(place / "env")
    before, pid = reported_boot(place), await pid_of(place)
    (place / "kmsg").write_bytes(b"3,1,1,-;old\n")
    if by == "agent":
        # As the agent calls it: a program that outlives it.
        started = await asyncio.create_subprocess_exec(*HOST.split(), "reboot", str(place))
        assert 0 == await started.wait()
    else:
        if by != "provider":
            await killed(pid)
        await make().reboot(made)
    after = await booted(place, before)

    assert (place / "boot-id").read_text() == after
    assert b"" == (place / "kmsg").read_bytes()
    assert pid != await pid_of(place)
    (listed,) = await provider.list()
    assert (made.provider_id, "running") == (listed.provider_id, listed.status)
    assert 0o600 == (place / "start.json").stat().st_mode & 0o777


STATE = """count 2
gpu 0 uuid GPU-0
gpu 1 uuid GPU-1
gpu 0 ecc_dbe 1
gpu 1 ecc_dbe 1
gpu 1 remap_pending 1
gpu 1 ecc_sbe 7 # broken
"""
HEALED = "count 2\ngpu 0 uuid GPU-0\ngpu 1 uuid GPU-1\n"


@pytest.mark.parametrize(
    ("orders", "uuids", "left", "problem"),
    [
        ("", ("GPU-1",), "gpu 0 ecc_dbe 1\ngpu 1 ecc_sbe 7 # broken\n", ""),
        ("", (), "gpu 1 ecc_sbe 7 # broken\n", ""),
        ("gpu 1 lost 1\n", ("GPU-1",), None, "GPU 1 is lost"),
        ("gpu 1 lost 1\n", ("GPU-0",), "", ""),
        ("gpu * processes 2\n", ("GPU-0",), None, "In use by another client"),
    ],
)
def test_a_reset_clears_what_a_reset_clears(
    orders: str, uuids: tuple[str, ...], left: str | None, problem: str
) -> None:
    """Counters and pending remaps of the named GPUs; not a lost GPU, nor what is broken."""
    text = STATE + orders
    said = local_gpus.reset_problem(text, uuids)
    assert problem in said
    assert bool(problem) == bool(said)
    if left:
        assert HEALED + left == local_gpus.after_reset(text, uuids)


def test_a_reboot_clears_all_but_what_is_broken() -> None:
    """A reboot clears a lost GPU, failing calls and hanging ones, but not what is broken."""
    text = STATE + "gpu 1 lost 1\nfail nvmlInit 9\nhang * 5\nxid 1 0 79\n"
    assert HEALED + "gpu 1 ecc_sbe 7 # broken\n" == local_gpus.after_reboot(text)
