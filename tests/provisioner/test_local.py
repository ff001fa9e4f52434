"""The local provider: one process per directory, whichever process is killed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from services.bus.nats.credentials_file import CREDENTIALS, is_of_node, life
from services.bus.nats.nats_accounts import (
    Key,
    agent_token,
    new_seed,
    read_agent_keys,
    rejoin_token,
)
from services.bus.nats.nats_bus import NatsBus
from services.cli.nats_config_files import SIGNING_FILE, write_accounts
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import local_process as process
from services.provisioner.providers.local import LocalProvider, stop_all
from services.provisioner.providers.local_gpus import compiler
from tests.provisioner.provisioner_parts import (
    FLEET,
    SECONDS_MAX,
    provision,
    request,
    steps,
    terminate,
    until,
)

SLEEP = ("/bin/sleep", "1000")
DUMP = 'cd "$NAVARCH_EXIT_WITHOUT" && env >env.new && mv env.new env && exec sleep 1000'
DUMPING = ("/bin/sh", "-c", DUMP)
HOST = f"{sys.executable} -m services.provisioner.providers.local_host"
STUBBORN = ("/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
Make = Callable[..., LocalProvider]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes providers over one directory, and ends every process at the end."""
    made: list[LocalProvider] = []

    def again(
        command: tuple[str, ...] = SLEEP, name: str = "local", signing: str = ""
    ) -> LocalProvider:
        environment = Environment(
            name=name,
            fleet=FLEET,
            nats_url="nats://127.0.0.1:4222",
            data_dir=tmp_path,
            agent_signing_file=signing,
        )
        options = LocalProvider.Options(gpu_count=0, variables={"EXTRA": "1"})
        made.append(LocalProvider(options=options, environment=environment, command=command))
        return made[-1]

    yield again
    for each in made:
        await each.close()
    stop_all(tmp_path / "local")


def wanted(name: str = "web-1", **changes: object):
    """Return a request without GPUs."""
    return request(name, **({"gpu_count": 0} | changes))


async def appears(path: Path) -> Path:
    """Wait for a file."""
    async with asyncio.timeout(SECONDS_MAX):
        while not path.exists():
            await asyncio.sleep(0.01)
    return path


async def pid_of(place: Path) -> int:
    """The process of an instance, once it has said its number."""
    async with asyncio.timeout(SECONDS_MAX):
        while not (text := (await appears(place / "pid")).read_text()).endswith("\n"):
            await asyncio.sleep(0.01)
    return int(text)


async def killed(pid: int) -> None:
    """End a process by force, and wait until it is gone: only then is its lock free."""
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(SECONDS_MAX):
        while lives(pid):
            await asyncio.sleep(0)


def lives(pid: int) -> bool:
    """Return whether a process runs (its remains do not count)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in {"Z", "X"}


async def test_an_agent_gets_its_whole_environment(make: Make, tmp_path: Path) -> None:
    """Place, bus, its files and its intervals come by the environment."""
    provider = make(DUMPING)
    await provider.provision(wanted())
    place = tmp_path / "local" / "web-1"
    lines = (await appears(place / "env")).read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines)
    assert environment["NAVARCH_BOOT_ID"] == (place / "boot-id").read_text()
    assert {name: value for name, value in environment.items() if name.startswith("NAVARCH_")} == {
        "NAVARCH_NATS_URL": "nats://127.0.0.1:4222",
        "NAVARCH_POOL": "web",
        "NAVARCH_NODE": "web-1",
        "NAVARCH_INSTANCE": "web-1",
        "NAVARCH_ADDRESS": "127.0.0.1",
        "NAVARCH_KMSG": str(place / "kmsg"),
        "NAVARCH_NVML_STATE": str(place / "nvml-state"),
        "NAVARCH_STATE_DIR": str(place / "state"),
        "NAVARCH_BOOT_ID": environment["NAVARCH_BOOT_ID"],
        "NAVARCH_GPU_COUNT": "0",
        "NAVARCH_HEARTBEAT_INTERVAL": "10s",
        "NAVARCH_HEARTBEAT_TTL": "30s",
        "NAVARCH_SAMPLE_INTERVAL": "1s",
        "NAVARCH_TELEMETRY_INTERVAL": "15s",
        "NAVARCH_EXIT_WITHOUT": str(place),
        "NAVARCH_DRILLS": "allowed",
        "NAVARCH_RESET_COMMAND": f"{HOST} nvidia-smi",
        "NAVARCH_REBOOT_COMMAND": f"{HOST} reboot {place}",
    }
    assert environment["EXTRA"] == "1"
    assert (place / "kmsg").read_bytes() == b""


@pytest.mark.skipif(compiler() is None, reason="no C compiler for the simulated GPUs")
async def test_an_agent_finds_simulated_gpus(make: Make, tmp_path: Path) -> None:
    """The library is built once, and the state file names as many GPUs as were asked for."""
    await make(DUMPING).provision(wanted(gpu_count=2))
    place = tmp_path / "local" / "web-1"
    environment = (await appears(place / "env")).read_text()
    library = next(
        line for line in environment.splitlines() if line.startswith("NAVARCH_NVML_LIBRARY=")
    )
    assert Path(library.split("=", 1)[1]).exists()
    assert (place / "nvml-state").read_text().startswith("count 2\n")


async def test_a_dead_agent_is_started_again_by_the_same_launch(make: Make, tmp_path: Path) -> None:
    """A directory without a living process counts as not up; its boot stays the same."""
    provider = make()
    await provider.provision(wanted())
    place = tmp_path / "local" / "web-1"
    boot, first = (place / "boot-id").read_text(), await pid_of(place)
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(SECONDS_MAX):
        while (await provider.list())[0].status != "stopped" or Path(f"/proc/{first}").exists():
            await asyncio.sleep(0.01)
    await make().provision(wanted())

    async def running() -> bool:
        return [each.status for each in await provider.list()] == ["running"]

    await until(running)
    assert (place / "boot-id").read_text() == boot


async def test_a_launch_interrupted_before_the_agents_start_is_no_instance(make: Make) -> None:
    """Such an instance is not adopted: the repeated launch starts the agent."""
    provider = make()
    place = provider.directory / "web-1"
    place.parent.mkdir(parents=True)
    provider._make(place, wanted())
    assert await provider.list() == []
    assert (await provider.provision(wanted())).status == "running"
    assert [each.status for each in await provider.list()] == ["running"]
    await pid_of(place)


async def test_a_number_that_another_process_was_given_is_never_killed(
    make: Make, tmp_path: Path
) -> None:
    """A process number on file is believed only while the instance's lock is held."""
    await make().provision(wanted())
    place = tmp_path / "local" / "web-1"
    await killed(await pid_of(place))
    bystander = await asyncio.create_subprocess_exec(*SLEEP)
    (place / "pid").write_text(f"{bystander.pid}\n")
    await make().terminate("web-1")
    assert lives(bystander.pid)
    bystander.kill()
    await bystander.wait()


async def test_an_agent_that_will_not_end_is_killed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL comes after the grace; the instance is gone only then."""
    monkeypatch.setattr(process.RunningProcess.end, "__defaults__", (0.1,))
    provider = make(STUBBORN)
    await provider.provision(wanted())
    place = tmp_path / "local" / "web-1"
    pid = await pid_of(place)
    async with asyncio.timeout(SECONDS_MAX):
        while "up" not in (place / "agent.log").read_text():
            await asyncio.sleep(0.01)
    await provider.terminate("web-1")
    assert not lives(pid)
    assert await provider.list() == []


async def test_what_was_terminated_is_kept_for_a_while(make: Make, tmp_path: Path) -> None:
    """The last twenty are put aside with their logs; older ones go."""
    provider = make()
    for number in range(23):
        await provider.provision(wanted(f"web-{number}"))
        await provider.terminate(f"web-{number}")
    kept = {each.name for each in (tmp_path / "local").iterdir() if "web" in each.name}
    assert kept == {f".terminated-web-{number}" for number in range(3, 23)}


async def test_a_name_of_another_fleet_is_refused(make: Make) -> None:
    """Two fleets over one directory cannot take each other's instances for their own."""
    await make().provision(wanted())
    with pytest.raises(ProviderError) as refused:
        await make().provision(wanted(token="another"))
    assert refused.value.kind == "INVALID"


async def test_two_providers_over_one_directory_list_their_own(make: Make) -> None:
    """Each lists what it made."""
    await make().provision(wanted())
    assert await make(name="other").list() == []


@pytest.mark.parametrize("name", ["../out", ".hidden", "a/b"])
async def test_a_name_that_leads_elsewhere_is_refused(make: Make, name: str) -> None:
    """An instance's name stays within the directory."""
    for call in (make().provision(wanted(name)), make().terminate(name)):
        with pytest.raises(ProviderError) as refused:
            await call
        assert refused.value.kind == "INVALID"


async def test_instances_stop_and_start_with_their_host(make: Make, tmp_path: Path) -> None:
    """`stop_all` ends every agent and counts them; `resume` starts those, as a new boot."""
    provider = make()
    for number in range(3):
        await provider.provision(wanted(f"web-{number}"))
    crashed, place = tmp_path / "local" / "web-0", tmp_path / "local" / "web-1"
    await killed(await pid_of(crashed))
    pids = [await pid_of(tmp_path / "local" / f"web-{n}") for n in (1, 2)]
    boot = (place / "boot-id").read_text()
    assert stop_all(tmp_path / "local") == 2
    assert not any(lives(pid) for pid in pids)
    assert stop_all(tmp_path / "local") == 0
    assert stop_all(tmp_path / "nowhere") == 0
    (place / "kmsg").write_bytes(b"3,1,1,-;old\n")
    again = make()
    await again.resume()
    wanted_statuses = {"web-0": "stopped", "web-1": "running", "web-2": "running"}

    async def resumed() -> bool:
        return {each.name: each.status for each in await again.list()} == wanted_statuses

    await until(resumed)
    assert (place / "boot-id").read_text() != boot
    assert (place / "kmsg").read_bytes() == b""


async def test_instances_that_ended_with_their_container_are_started_again(
    make: Make, tmp_path: Path
) -> None:
    """Nothing stopped them in order, as when an engine restarts; what crashed alone stays ended."""
    provider, folder = make(), tmp_path / "local"
    for name in ("crashed", "restarted"):
        await provider.provision(wanted(name))
        await killed(await pid_of(folder / name))
    (folder / "restarted" / "host").write_text("another life of process 1")
    await make().resume()

    async def resumed() -> bool:
        found = {each.name: each.status for each in await provider.list()}
        return found == {"crashed": "stopped", "restarted": "running"}

    await until(resumed)


KILLED = """
import asyncio, json, os, sys
from pathlib import Path
from schemas.settings import AgentSettings
from services.provisioner.instances.instance_decisions import launch_token
from services.provisioner.provider_client.provider import Environment, ProvisionRequest
from services.provisioner.providers import local, local_process
data = json.loads(sys.argv[1])
point, calls = data["point"], 0
def mortal(module, name):
    real = getattr(module, name)
    def call(*args, **kwargs):
        global calls
        for when in ("before", "after"):
            calls += 1
            if calls == point:
                os.kill(os.getpid(), 9)
            if when == "before":
                result = real(*args, **kwargs)
        return result
    setattr(module, name, call)
mortal(local.shutil, "rmtree")
mortal(local, "write_state")
mortal(local_process.os, "posix_spawn")
mortal(local_process, "is_alive")
mortal(local_process, "spawn")
rename = Path.rename
class P: rename = staticmethod(rename)
mortal(P, "rename")
Path.rename = lambda self, target: P.rename(self, target)
environment = Environment(name="local", fleet="fleet-one", nats_url="nats://127.0.0.1:4222",
                          data_dir=Path(data["dir"]))
provider = local.LocalProvider(options=local.LocalProvider.Options(gpu_count=0),
                               environment=environment, command=("/bin/sleep", "1000"))
request = ProvisionRequest(name="web-1", fleet="fleet-one", pool="web", node="web-1",
                           token=launch_token("fleet-one", "web", "web-1"), instance_type="h100")
if data["call"] == "provision":
    asyncio.run(provider.provision(request))
else:
    asyncio.run(provider.terminate("web-1"))
print(calls)
"""


def shows(pid: int, directory: Path) -> bool:
    """Return whether a process says that it was started for an instance under this directory."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"NAVARCH_EXIT_WITHOUT={directory}".encode() in environment


async def alone(pid: int, directory: Path) -> None:
    """Wait until this process is the only sleeper: between two programs it has no environment."""
    async with asyncio.timeout(SECONDS_MAX):
        while sleepers(directory) != [pid]:
            await asyncio.sleep(0.01)


def sleepers(directory: Path) -> list[int]:
    """Every living process that was started for an instance under this directory."""
    pids = [int(each.name) for each in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if shows(pid, directory) and lives(pid)]


async def killed_at(point: int, call: str, directory: Path) -> bool:
    """Run a provisioner's call in a process that kills itself at a point; whether it did."""
    data = json.dumps({"point": point, "call": call, "dir": str(directory)})
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, data, stdout=asyncio.subprocess.PIPE
    )
    await child.communicate()
    assert child.returncode in {0, -signal.SIGKILL}
    return child.returncode != 0


@pytest.mark.parametrize("call", ["provision", "terminate"])
async def test_a_provisioner_killed_anywhere_leaves_one_agent_or_none(
    make: Make, tmp_path: Path, call: str
) -> None:
    """SIGKILL strikes at any point: the repetition ends with exactly what was asked for."""
    directory = tmp_path / "local"
    for point in range(1, 30):
        if call == "terminate":
            await make().provision(wanted())
        killed = await killed_at(point, call, tmp_path)
        assert len(sleepers(directory)) <= 1
        if call == "provision":
            await make().provision(wanted())
            pid = await pid_of(directory / "web-1")
            await alone(pid, directory)
        await make().terminate("web-1")
        assert sleepers(directory) == []
        assert await make().list() == []
        if not killed:
            break
    else:
        pytest.fail("more points than this test tries")
    assert point > 10


async def test_a_node_s_instance_is_launched_and_removed_through_the_steps(
    bus: NatsBus, make: Make, tmp_path: Path
) -> None:
    """The provisioner's steps work over processes as they do over the fake."""
    provider = make(name="fake")
    outputs = await steps(bus, provider).provision(provision("web-1"))
    assert outputs.provider_id == "web-1"
    pid = await pid_of(tmp_path / "local" / "web-1")
    assert lives(pid)
    await steps(bus, provider).terminate(terminate("web-1"))
    assert not lives(pid)


def enrolled(place: Path, signing: Path, until: datetime) -> str:
    """Do as the agent and the provisioner do; return the agent's seed."""
    file = place / "nats.creds"
    key = Key((place / "nats.creds.key").read_text() if not file.exists() else new_seed("user"))
    keys, now = read_agent_keys(signing), datetime.now(UTC)
    token = agent_token(keys, "web", "web-1", key.public, now, until)
    rejoin = rejoin_token(keys, "web", "web-1", key.public, now, until)
    file.write_text(CREDENTIALS.format(token=token, seed=key.seed))
    (place / "nats.creds.rejoin").write_text(CREDENTIALS.format(token=rejoin, seed=key.seed))
    return key.seed


@pytest.mark.parametrize(
    ("life_hours", "new_keys", "fetched"), [(1, False, False), (-1, False, True), (1, True, True)]
)
async def test_an_agent_fetches_credentials_with_its_own_key(
    life_hours: int, *, new_keys: bool, fetched: bool, tmp_path: Path, make: Make
) -> None:
    """Credentials are fetched where the old ones are expired, or of keys that are gone."""
    signing = write_accounts(tmp_path / "bus", FLEET, datetime.now(UTC)).path / SIGNING_FILE
    provider = make(signing=str(signing))
    await provider.provision(wanted())
    place = provider.directory / "web-1"
    bootstrap = place / "bootstrap.creds"
    assert is_of_node(bootstrap.read_text(), "bootstrap", "web", "web-1")
    assert 3600 == life(str(bootstrap))[1] - life(str(bootstrap))[0]
    bootstrap.unlink()
    (place / "nats.creds.key").write_text(new_seed("user"))
    seed = enrolled(place, signing, datetime.now(UTC) + timedelta(hours=life_hours))
    (place / "nats.creds.key").unlink()
    if new_keys:
        (tmp_path / "bus").rename(tmp_path / "lost")
        write_accounts(tmp_path / "bus", FLEET, datetime.now(UTC))
    await killed(await pid_of(place))
    await provider.provision(wanted())

    assert fetched == bootstrap.exists()
    assert fetched != (place / "nats.creds").exists()
    if fetched:
        assert seed == (place / "nats.creds.key").read_text()
