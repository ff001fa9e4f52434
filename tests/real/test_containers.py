"""compose/ on a real Docker engine: built, started, broken, killed, scaled, watched, open to all.

The base image is python:3.11-slim, or what NAVARCH_BASE names (any Debian with Python 3.11 and its
venv module). The nats-server comes out of the built image, and Prometheus from the base's packages,
so no second image is needed.
"""

import asyncio
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.inprocess import eventually

# The first test also builds the image and starts the fleet.
pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]
ROOT: Final = Path(__file__).resolve().parents[2]
BASE: Final = os.environ.get("NAVARCH_BASE", "python:3.11-slim")
IMAGE: Final = "navarch:test"
PROMETHEUS: Final = "navarch-prometheus:test"
PROJECT: Final = f"navarch-test-{os.getpid()}"
SERVICES: Final = (
    *("pool-manager", "health-monitor", "provisioner", "notifier", "metrics"),
    "gateway",
)
WATCHED: Final = ("--profile", "observability")
UP_SECONDS: Final = 300.0
"""Bounds a test that hangs, on a slow machine, too: a usual one needs a tenth."""
PROMETHEUS_IMAGE: Final = """
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget
RUN install -d -o 65534 /prometheus
USER 65534
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
"""
"""As the official image is started."""
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
    """Whether a command exists and succeeds."""
    if shutil.which(command[0]) is None:
        return False
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def compose_command() -> tuple[str, ...]:
    """The plugin, or the program before it."""
    plugin = works("docker", "compose", "version")
    return ("docker", "compose") if plugin else ("docker-compose",)


def missing() -> str:
    """Why these tests cannot run here; empty if they can."""
    if not works("docker", "info"):
        return "no Docker engine answers here: apt-get install docker.io, and start dockerd"
    if not works(*compose_command(), "version"):
        return "no docker compose here: apt-get install docker-compose"
    here = works("docker", "image", "inspect", BASE)
    if not here and not works("docker", "pull", "-q", BASE, seconds=60.0):
        return f"{BASE} is not here and cannot be pulled: name another image in NAVARCH_BASE"
    return ""


@pytest.fixture(scope="module")
def compose() -> Iterator["Compose"]:
    """The built image, and a Compose project that is removed at the end."""
    if reason := missing():
        pytest.skip(reason)
    file = str(ROOT / "compose" / "Dockerfile")
    build(IMAGE, "--build-arg", "EXTRAS=all", "-f", file, str(ROOT))
    found = Compose()
    try:
        found("up", "-d", "--no-build")
        asyncio.run(found.healthy("nats", *SERVICES))
        yield found
    finally:
        found(*WATCHED, "down", "-v", "-t", "1")


class Compose:
    """The project; `files` may be changed between two `up`."""

    def __init__(self) -> None:
        self.files = ["compose/compose.yaml", "tests/real/compose-offline.yaml"]

    def __call__(self, *arguments: str) -> str:
        """Run compose."""
        files = [word for file in self.files for word in ("-f", file)]
        names = ("NATS", "METRICS", "GATEWAY", "PROMETHEUS")
        ports = {f"NAVARCH_{name}_PORT": "0" for name in names}
        images = {"NAVARCH_IMAGE": IMAGE, "NAVARCH_PROMETHEUS_IMAGE": PROMETHEUS}
        return run(*compose_command(), "-p", PROJECT, *files, *arguments, **ports, **images)

    def containers(self, service: str) -> list[str]:
        """Those of a service."""
        return self("ps", "-q", service).split()

    def container(self, service: str) -> str:
        """A service's first container."""
        return self.containers(service)[0]

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows of it."""
        found = json.loads(run("docker", "inspect", self.container(service)))[0]
        assert isinstance(found, dict)
        return found

    def url(self, service: str, port: int) -> str:
        """Where the host publishes a container's port."""
        [found, *_] = self.inspect(service)["NetworkSettings"]["Ports"][f"{port}/tcp"]
        return f"http://127.0.0.1:{found['HostPort']}"

    def inside(self, service: str, *command: str) -> str:
        """Run something in it."""
        return run("docker", "exec", self.container(service), *command)

    def listed(self) -> str:
        """What an operator lists, as JSON."""
        return self("run", "--rm", "-T", "navarch", "list", "-o", "json")

    async def healthy(self, *services: str) -> None:
        """Wait until these services' health checks pass."""

        async def all_healthy() -> bool:
            every = [each for service in services for each in self.containers(service)]
            found = json.loads(run("docker", "inspect", *every))
            states = [each["State"].get("Health", {}).get("Status") for each in found]
            return states == ["healthy"] * len(states)

        await eventually(all_healthy, within_seconds=UP_SECONDS, every=1.0)


def nodes(text: str) -> list[str]:
    """Names of healthy nodes in service, out of `navarch list -o json`."""
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


async def test_fleet_starts_and_replaces_a_node(compose: Compose) -> None:
    """No container is root or may write, and an XID 79 costs one node."""
    old, _ = await two_nodes(compose.listed)
    for service in SERVICES:
        status = compose.inside(service, "cat", "/proc/1/status")
        capable = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
        assert {"0" * 16} == set(capable), service
        assert "10001" == compose.inside(service, "id", "-u").strip()
        assert compose.inspect(service)["HostConfig"]["ReadonlyRootfs"]
    kmsg = f"/var/lib/navarch/local/{old}/kmsg"
    compose.inside("provisioner", "sh", "-c", f"echo '{XID_79}' >> {kmsg}")
    after = await two_nodes(compose.listed, without=old)

    assert old not in after

    async def revoked() -> bool:
        return "revoked credentials of nodes" in await asyncio.to_thread(
            compose, "logs", "provisioner"
        )

    await eventually(revoked, within_seconds=UP_SECONDS, every=1.0)
    assert "ermissions violation" not in compose("logs", *SERVICES)


def test_callers_need_credentials(compose: Compose) -> None:
    """Without a token the gateway refuses, and without credentials the bus does."""
    token = compose.inside("gateway", "cat", "/run/navarch/gateway.token").strip()
    url = f"{compose.url('gateway', 8080)}/api/v1/nodes"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url, timeout=60)
    known = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(known, timeout=60) as answer:
        assert {"training"} == {each["pool"] for each in json.load(answer)["items"]}
    bare = ("docker", "exec", "-e", "NAVARCH_NATS_CREDS_FILE=", compose.container("metrics"))
    refused = subprocess.run((*bare, "navarch", "list"), capture_output=True, check=False)
    assert 0 != refused.returncode


async def test_killed_container_is_restarted(compose: Compose) -> None:
    """After `kill -9` from outside the engine restarts it, and it is healthy."""
    pid = compose.inspect("notifier")["State"]["Pid"]
    run("kill", "-9", str(pid))

    async def restarted() -> bool:
        return bool(compose.inspect("notifier")["RestartCount"] == 1)

    await eventually(restarted, within_seconds=UP_SECONDS, every=0.5)
    await compose.healthy("notifier")


async def test_scale_adds_a_second_replica(compose: Compose) -> None:
    """With `--scale` both replicas are healthy, and the fleet is unchanged."""
    compose("up", "-d", "--no-build", "--no-recreate", "--scale", "pool-manager=2")
    await compose.healthy("pool-manager")

    assert 2 == len(compose.containers("pool-manager"))
    await two_nodes(compose.listed)


async def test_prometheus_watches_every_service(compose: Compose) -> None:
    """With `--profile observability` each target answers, and the rules are evaluated."""
    build(PROMETHEUS, "-", dockerfile=PROMETHEUS_IMAGE)
    compose(*WATCHED, "up", "-d", "--no-build", "--no-deps", "prometheus")
    await compose.healthy("prometheus")
    api = f"{compose.url('prometheus', 9090)}/api/v1"

    def asked(path: str) -> Any:
        with urllib.request.urlopen(f"{api}/{path}", timeout=60) as answer:
            return json.load(answer)["data"]

    async def all_answer() -> bool:
        targets = (await asyncio.to_thread(asked, "targets"))["activeTargets"]
        return [each["health"] for each in targets] == ["up"] * len(SERVICES)

    async def all_evaluated() -> bool:
        groups = (await asyncio.to_thread(asked, "rules"))["groups"]
        rules = [each["health"] for group in groups for each in group["rules"]]
        return bool(rules) and rules == ["ok"] * len(rules)

    async def all_counted() -> bool:
        seen = await asyncio.to_thread(asked, "query?query=sum(navarch_nodes_total)")
        return any(float(each["value"][1]) >= 2 for each in seen["result"])

    await eventually(all_answer, within_seconds=UP_SECONDS, every=1.0)
    await eventually(all_evaluated, within_seconds=UP_SECONDS, every=1.0)
    await eventually(all_counted, within_seconds=UP_SECONDS, every=1.0)
    compose(*WATCHED, "rm", "-s", "-f", "prometheus")


async def test_open_fleet(compose: Compose) -> None:
    """As the header of open.yaml says: without credentials, on a store of its own."""
    compose("down", "-t", "1")
    compose.files.insert(1, "compose/open.yaml")
    compose("up", "-d", "--no-build")
    await compose.healthy("nats", *SERVICES)

    def look() -> str:
        return compose.inside("metrics", "navarch", "list", "-o", "json")

    assert 2 == len(await two_nodes(look))
