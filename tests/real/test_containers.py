"""compose/ on a real Docker engine: built, started, broken, killed, scaled, watched, open to all.

Prometheus comes from the packages of the base image.
"""

import asyncio
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.real.compose_project import (
    IMAGE,
    SERVICES,
    UP_SECONDS,
    WATCHED,
    Compose,
    break_gpu,
    build,
    project,
    run,
    two_nodes,
)
from tests.support.inprocess import eventually

# The first test also builds the image and starts the fleet.
pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]
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


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    """A fleet of all tests."""
    with project() as found:
        asyncio.run(found.start())
        yield found


async def test_fleet_starts_and_replaces_a_node(compose: Compose) -> None:
    """No container is root or may write, and an XID 79 costs one node."""
    old, _ = await two_nodes(compose.listed)
    for service in SERVICES:
        status = compose.inside(service, "cat", "/proc/1/status")
        capable = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
        assert {"0" * 16} == set(capable), service
        assert "10001" == compose.inside(service, "id", "-u").strip()
        assert compose.inspect(service)["HostConfig"]["ReadonlyRootfs"]
    break_gpu(compose, old)
    after = await two_nodes(compose.listed, without=old)

    assert old not in after

    async def revoked() -> bool:
        return "revoked credentials of nodes" in await asyncio.to_thread(
            compose, "logs", "provisioner"
        )

    await eventually(revoked, within_seconds=UP_SECONDS, every=1.0)
    assert "ermissions violation" not in compose("logs", *SERVICES)


def test_callers_need_credentials(compose: Compose) -> None:
    """The gateway refuses a caller without a token, and the bus one without credentials."""
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
    """The engine restarts a container after `kill -9` from outside, and it is healthy."""
    pid = compose.inspect("notifier")["State"]["Pid"]
    run("kill", "-9", str(pid))

    async def restarted() -> bool:
        return bool(compose.inspect("notifier")["RestartCount"] == 1)

    await eventually(restarted, within_seconds=UP_SECONDS, every=0.5)
    await compose.healthy("notifier")


async def test_scale_adds_a_second_replica(compose: Compose) -> None:
    """Both replicas of `--scale` are healthy, and the fleet is unchanged."""
    compose("up", "-d", "--no-build", "--no-recreate", "--scale", "pool-manager=2")
    await compose.healthy("pool-manager")

    assert 2 == len(compose.containers("pool-manager"))
    await two_nodes(compose.listed)


async def test_prometheus_watches_every_service(compose: Compose) -> None:
    """Each target of `--profile observability` answers, and the rules are evaluated."""
    build("navarch-prometheus:test", "-", dockerfile=PROMETHEUS_IMAGE)
    compose.variables["NAVARCH_PROMETHEUS_IMAGE"] = "navarch-prometheus:test"
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


def test_the_demo_runs_in_a_container(compose: Compose) -> None:
    """`navarch demo` replaces a node, without root, capabilities or a file system to write to."""
    assert compose.files
    bare = (
        "--rm",
        "--read-only",
        "--tmpfs",
        "/tmp:size=256m",
        "--cap-drop",
        "ALL",
        "--network",
        "none",
    )
    assert " replaced " in run("docker", "run", *bare, IMAGE, "navarch", "demo")


async def test_open_fleet(compose: Compose) -> None:
    """A fleet of open.yaml needs no credentials and has a store of its own, as its header says."""
    compose("down", "-t", "1")
    compose.files.insert(1, "compose/open.yaml")
    compose("up", "-d", "--no-build")
    await compose.healthy("nats", *SERVICES)

    def look() -> str:
        return compose.inside("metrics", "navarch", "list", "-o", "json")

    assert 2 == len(await two_nodes(look))
