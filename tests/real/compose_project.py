"""The Compose project of the tests on a real Docker engine, and the images that it needs.

The base image is python:3.11-slim, or what NAVARCH_BASE names (any Debian with Python 3.11 and its
venv module). The nats-server comes out of the built image, so no second image is needed.
"""

import asyncio
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.inprocess import eventually

ROOT: Final = Path(__file__).resolve().parents[2]
BASE: Final = os.environ.get("NAVARCH_BASE", "python:3.11-slim")
IMAGE: Final = "navarch:test"
PROJECT: Final = f"navarch-test-{os.getpid()}"
FILES: Final = ("compose/compose.yaml", "tests/real/compose-offline.yaml")
SERVICES: Final = (
    *("pool-manager", "health-monitor", "provisioner", "notifier", "metrics"),
    "gateway",
)
FILES_MAX: Final = min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
"""How many files an engine that was started here may let a server open."""
WATCHED: Final = ("--profile", "observability")
UP_SECONDS: Final = 600.0
"""Bounds a test that hangs, on a slow machine, too: a usual one needs a tenth."""
XID_79: Final = "3,1,1000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."


def run(*command: str, seconds: float = UP_SECONDS, given: str = "", **more: str) -> str:
    """Run a command and return its output; raise with its error output."""
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        check=False,
        text=True,
        timeout=seconds,
        env=os.environ | more,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def build(image: str, *arguments: str, dockerfile: str = "") -> None:
    """Build an image on the base; the network is the host's."""
    network = ("--network", "host", "--build-arg", f"BASE={BASE}")
    run(
        *("docker", "build", "-q", *network, "-t", image, *arguments),
        seconds=1800,
        given=dockerfile,
    )


def works(*command: str, seconds: float = 30.0) -> bool:
    """Return whether a command exists and succeeds."""
    if shutil.which(command[0]) is None:
        return False
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def compose_command() -> tuple[str, ...]:
    """Return the command of the plugin, or of the older program."""
    plugin = works("docker", "compose", "version")
    return ("docker", "compose") if plugin else ("docker-compose",)


def build_navarch(image: str = IMAGE, root: Path = ROOT) -> None:
    """The image of a checkout, with a nats-server; the test is skipped where none can be built."""
    if reason := missing():
        pytest.skip(reason)
    file = str(root / "compose" / "Dockerfile")
    build(image, "--build-arg", "EXTRAS=all", "-f", file, str(root))


def missing() -> str:
    """Return why these tests cannot run here, or nothing if they can."""
    if not works("docker", "info"):
        return "no Docker engine answers here: apt-get install docker.io, and start dockerd"
    if not works(*compose_command(), "version"):
        return "no docker compose here: apt-get install docker-compose, or install-compose.sh"
    here = works("docker", "image", "inspect", BASE)
    if not here and not works("docker", "pull", "-q", BASE, seconds=60.0):
        return f"{BASE} is not here and cannot be pulled: name another image in NAVARCH_BASE"
    return ""


class Compose:
    """The project; `files` and `variables` may be changed between two `up`."""

    def __init__(self, files: Sequence[str] = FILES) -> None:
        self.files = list(files)
        names = ("NATS", "METRICS", "GATEWAY", "PROMETHEUS", "GRAFANA", "TRACES")
        self.variables = {f"NAVARCH_{name}_PORT": "0" for name in names}
        self.variables |= {"NAVARCH_IMAGE": IMAGE, "NAVARCH_NATS_FILES": str(FILES_MAX)}

    def __call__(self, *arguments: str) -> str:
        """Run compose."""
        files = [word for file in self.files for word in ("-f", file)]
        return run(*compose_command(), "-p", PROJECT, *files, *arguments, **self.variables)

    async def start(self) -> None:
        """Start the fleet, and wait until all are healthy."""
        self("up", "-d", "--no-build")
        await self.healthy("nats", *SERVICES)

    def remove(self) -> None:
        """Containers, networks and volumes, of all profiles."""
        self(*WATCHED, "down", "-v", "-t", "1")

    def containers(self, service: str) -> list[str]:
        """Return the IDs of a service's containers."""
        return self("ps", "-q", service).split()

    def container(self, service: str) -> str:
        """Return the ID of a service's first container."""
        return self.containers(service)[0]

    def inspect(self, service: str) -> dict[str, Any]:
        """Return the engine's description of a service's first container."""
        found = json.loads(run("docker", "inspect", self.container(service)))[0]
        assert isinstance(found, dict)
        return found

    def url(self, service: str, port: int) -> str:
        """Return the URL at which the host publishes a container's port."""
        [found, *_] = self.inspect(service)["NetworkSettings"]["Ports"][f"{port}/tcp"]
        return f"http://127.0.0.1:{found['HostPort']}"

    def inside(self, service: str, *command: str) -> str:
        """Run something in it."""
        return run("docker", "exec", self.container(service), *command)

    def listed(self) -> str:
        """Return the nodes that an operator lists, as JSON."""
        return self("run", "--rm", "-T", "navarch", "list", "-o", "json")

    async def healthy(self, *services: str) -> None:
        """Wait until these services' health checks pass."""

        async def all_healthy() -> bool:
            every = [each for service in services for each in self.containers(service)]
            found = json.loads(run("docker", "inspect", *every))
            states = [each["State"].get("Health", {}).get("Status") for each in found]
            return states == ["healthy"] * len(states)

        await eventually(all_healthy, within_seconds=UP_SECONDS, every=1.0)


@contextmanager
def project(files: Sequence[str] = FILES, **variables: str) -> Iterator[Compose]:
    """The project of a built image, which is removed at the end."""
    build_navarch()
    found = Compose(files)
    found.variables |= variables
    try:
        yield found
    finally:
        found.remove()


def nodes(text: str) -> list[str]:
    """Return the names of healthy nodes in service, out of `navarch list -o json`."""
    return [
        each["id"]
        for each in json.loads(text)
        if (each["status"], each["health"]) == ("active", "healthy")
    ]


async def two_nodes(look: Any, *, without: str = "") -> list[str]:
    """Wait until two nodes are in service, and this one is not."""

    async def found() -> list[str]:
        try:
            names = nodes(await asyncio.to_thread(look))
        except AssertionError:
            return []  # the services are only starting
        return names if len(names) == 2 and without not in names else []

    return list(await eventually(found, within_seconds=UP_SECONDS, every=1.0))


def break_gpu(compose: Compose, node: str) -> None:
    """Write an XID 79 into a simulated node's kernel log."""
    kmsg = f"/var/lib/navarch/local/{node}/kmsg"
    compose.inside("provisioner", "sh", "-c", f"echo '{XID_79}' >> {kmsg}")
