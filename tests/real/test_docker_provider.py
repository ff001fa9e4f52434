"""The provider `docker` runs on a real engine: containers with SSH, and failures.

The image is built from deploy/docker-node on debian:bookworm-slim, or on what NAVARCH_NODE_BASE
names; a base with an SSH server is used as it is, so that no mirror is needed.
"""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import asyncssh
import httpx
import pytest
from msgspec.structs import replace

from schemas.addresses import host_and_port
from schemas.node_events import SetupRan, node_codec
from schemas.saga_params import SetupSpec
from schemas.settings import AgentSettings, NatsSettings
from schemas.step_data import BootstrapInputs
from schemas.topology import EVENTS
from services.bus.nats.nats_bus import NatsBus
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.conformance import ProviderConformance
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.docker import DockerProvider
from tests.provisioner.faulty_transports import MortalTransport
from tests.provisioner.provisioner_parts import (
    Killed,
    Life,
    command,
    provision,
    request,
    steps,
    terminate,
)
from tests.support.inprocess import eventually

pytestmark = pytest.mark.real
ROOT: Final = Path(__file__).resolve().parents[2]
BASE: Final = os.environ.get("NAVARCH_NODE_BASE", "debian:bookworm-slim")
IMAGE: Final = "navarch-node:test"
FLEET: Final = f"docker-test-{os.getpid()}"
SOCKET: Final = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
POINTS_MAX: Final = 40

Make = Callable[..., DockerProvider]


def docker(*arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run the engine's own client."""
    return subprocess.run(
        ("docker", *arguments), capture_output=True, check=False, text=True, timeout=seconds
    )


@pytest.fixture(scope="module")
def image() -> str:
    """The image of deploy/docker-node; skipped if it cannot be built."""
    if shutil.which("docker") is None or docker("info").returncode != 0:
        pytest.skip("no Docker engine answers here: apt-get install docker.io, and start dockerd")
    here = docker("image", "inspect", BASE).returncode == 0
    if not here and docker("pull", "-q", BASE).returncode != 0:
        pytest.skip(f"{BASE} is not here and cannot be pulled: name another in NAVARCH_NODE_BASE")
    ready = docker("run", "--rm", BASE, "test", "-x", "/usr/sbin/sshd").returncode == 0
    build = ("build", "-q", "--network", "host", "--build-arg", f"BASE={BASE}", "-t", IMAGE)
    packages = ("--build-arg", "PACKAGES=") if ready else ()
    built = docker(*build, *packages, str(ROOT / "deploy" / "docker-node"), seconds=600)
    assert built.returncode == 0, built.stderr
    return IMAGE


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A key pair's public key; the private one is the file `key`."""
    pair = asyncssh.generate_private_key("ssh-ed25519")
    pair.write_private_key(str(tmp_path / "key"))
    return pair.export_public_key().decode().strip()


@pytest.fixture
async def make(image: str, tmp_path: Path) -> AsyncIterator[Make]:
    """Creates the provider again."""
    environment = Environment(name="fake", fleet=FLEET, nats_url="", data_dir=tmp_path)
    made: list[DockerProvider] = []

    def again(transport: httpx.AsyncBaseTransport | None = None, **changes: Any) -> DockerProvider:
        plain = {"image": image, "socket": SOCKET, "publish_address": "127.0.0.1"}
        options = DockerProvider.Options(**(plain | changes))
        made.append(DockerProvider(options=options, environment=environment, transport=transport))
        return made[-1]

    yield again
    for each in made:
        await each.close()
    left = docker("ps", "-aq", "--filter", f"ancestor={image}").stdout.split()
    if left:
        docker("rm", "-f", "-v", *left)


def wanted(name: str, **changes: Any) -> Any:
    """Return a launch of this run's own fleet."""
    return request(name, fleet=FLEET, gpu_count=0, **changes)


async def names(provider: DockerProvider) -> list[str]:
    """Return the names of this run's containers."""
    return sorted(each.name for each in await provider.list() if each.fleet == FLEET)


async def test_container_accepts_ssh(make: Make, key: str, tmp_path: Path) -> None:
    """A container is reached at its published port and at its own address.

    Its user data ran, and its limits hold.
    """
    for publish in ("127.0.0.1", ""):
        provider = make(publish_address=publish, memory_mib=256, pids_max=77)
        script = "#!/bin/sh\nhostname > /hostname\n"
        made = await provider.provision(wanted("web-1", ssh_keys=(key,), user_data=script))
        host, port = host_and_port(made.address, 22)

        async def hostname(host: str = host, port: int = port) -> str:
            try:
                async with asyncssh.connect(
                    host,
                    port,
                    username="root",
                    client_keys=[str(tmp_path / "key")],
                    known_hosts=None,
                    config=None,
                ) as connection:
                    return str((await connection.run("cat /hostname")).stdout).strip()
            except (OSError, asyncssh.Error):
                return ""  # the container is still starting

        assert "web-1" == await eventually(hostname)
        shown = docker(
            "inspect", "-f", "{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}", made.provider_id
        )
        assert f"{256 * 1024**2} 77" == shown.stdout.strip()
        await provider.terminate(made.provider_id)
        assert [] == await names(provider)


class TestContract(ProviderConformance):
    """Runs the conformance suite on the real engine."""

    gone_seconds_max = 20.0

    @pytest.fixture
    def make(self, make: Make) -> Make:
        return make

    @pytest.fixture
    def make_unreachable(self, make: Make) -> Callable[[], DockerProvider]:
        return lambda: make(socket="/nowhere/docker.sock")


async def test_stopped_container_is_listed_and_restarted(make: Make) -> None:
    """A stopped container keeps its place until removed, and the same launch continues with it."""
    made = await make().provision(wanted("web-1"))
    docker("stop", "-t", "0", made.provider_id)
    [instance] = [each for each in await make().list() if each.fleet == FLEET]
    assert "stopped" == instance.status
    again = await make().provision(wanted("web-1"))
    assert (made.provider_id, "running") == (again.provider_id, again.status)
    await make().terminate(again.provider_id)
    assert [] == await names(make())


@pytest.mark.parametrize(
    ("changes", "asked", "kind"),
    [
        ({"image": "navarch-no-such-image"}, {}, "INVALID"),
        ({"network": "navarch-no-such-network", "publish_address": ""}, {}, "INVALID"),
        ({"command": ("no-such-command",)}, {}, "INVALID"),
        ({"gpus": 1}, {"gpu_count": 1}, "UNSUPPORTED"),
    ],
)
async def test_engine_refusals_are_classified(
    make: Make, changes: Any, asked: Any, kind: str
) -> None:
    """A refusal has the engine's own words, and nothing is left behind."""
    if "gpus" in changes and shutil.which("nvidia-container-cli"):
        pytest.skip("this host can give GPUs to containers")
    with pytest.raises(ProviderError) as refused:
        await make(**changes).provision(replace(wanted("web-1"), **asked))
    assert (kind, []) == (refused.value.kind, await names(make()))


async def test_launch_killed_between_any_two_calls_makes_one_container(
    bus: NatsBus, make: Make
) -> None:
    """Restarted in another process, it continues with the existing container."""
    for point in range(1, POINTS_MAX):
        node = f"web-{point}"
        launch = provision(node, fleet=FLEET, gpu_count=0)
        try:
            await steps(bus, make(MortalTransport(Life(point), uds=SOCKET))).provision(launch)
        except Killed:
            outputs = await steps(bus, make()).provision(launch)
            [instance] = [each for each in await make().list() if each.fleet == FLEET]
            assert (outputs.provider_id, "running") == (instance.provider_id, instance.status)
            await steps(bus, make()).terminate(terminate(node))
            assert [] == await names(make())
        else:
            assert point > 12
            await steps(bus, make()).terminate(terminate(node))
            break
    else:
        pytest.fail("the launch has more points than this test tries")


async def test_provisioner_sets_up_a_container(
    bus: NatsBus, make: Make, key: str, tmp_path: Path
) -> None:
    """Launched, set up over SSH at its published port, and removed by the steps of a saga."""
    spec = SetupSpec(
        commands=("echo {{.NodeID}} > /etc/navarch-node", "cat /etc/navarch-node"),
        user="root",
        private_key_path=str(tmp_path / "key"),
        sudo=False,
        login_seconds=20,
        connect_seconds=5,
        command_seconds=20,
    )
    named = frozenset({spec.private_key_path})
    templates = BootstrapTemplates(NatsSettings(), AgentSettings(), tmp_path, named)
    one = steps(bus, make(), templates=templates)
    launch = provision("web-1", fleet=FLEET, gpu_count=0, ssh_keys=(key,), setup=spec)
    await one.provision(launch)
    inputs = BootstrapInputs(pool="web", node="web-1")
    await one.bootstrap(command("scale-up-web-1", "bootstrap", inputs))
    stored = await bus.read(EVENTS.name, "navarch.v1.node.web.web-1.event.setup-ran")
    events = [node_codec.decode(each.data) for each in stored]
    assert ["", "web-1\n"] == [each.output for each in events if isinstance(each, SetupRan)]
    await one.terminate(terminate("web-1"))
    assert [] == await names(make())
