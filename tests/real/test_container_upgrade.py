"""Containers of an earlier release become those of this one; and one of three servers is killed."""

import io
import json
import subprocess
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.real.compose_project import (
    FILES,
    ROOT,
    SERVICES,
    UP_SECONDS,
    Compose,
    break_gpu,
    build_navarch,
    run,
    two_nodes,
)
from tests.support.inprocess import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]
EARLIER: Final = "126d659b"
"""No release has been made yet: the first commit whose containers start the installed names."""
STREAMS: Final = "http://127.0.0.1:8222/jsz?accounts=true&streams=true&config=true"
SERVERS: Final = ("nats", "nats-2", "nats-3")


@asynccontextmanager
async def project(compose: Compose) -> AsyncIterator[Compose]:
    """A fleet that is removed at the end."""
    try:
        await compose.start()
        yield compose
    finally:
        compose.remove()


def earlier_checkout(folder: Path) -> Path:
    """That commit's files."""
    try:
        archive = subprocess.run(
            ("git", "archive", EARLIER), cwd=ROOT, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no commit {EARLIER} here: {error}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def replicas(compose: Compose) -> dict[str, int]:
    """Of each stream, as a server reports."""
    code = f"import urllib.request as r; print(r.urlopen('{STREAMS}').read().decode())"
    every = json.loads(compose.inside("nats", "python", "-c", code))["account_details"]
    return {
        stream["name"]: stream["config"]["num_replicas"]
        for account in every
        for stream in account.get("stream_detail", ())
    }


async def test_services_are_upgraded_one_by_one(tmp_path: Path) -> None:
    """Each by a new image, while a node is replaced; what was stored before is there after."""
    build_navarch()
    checkout = earlier_checkout(tmp_path / "earlier")
    build_navarch("navarch:earlier", checkout)
    compose = Compose([str(checkout / "compose/compose.yaml"), FILES[1]])
    compose.variables["NAVARCH_IMAGE"] = "navarch:earlier"
    async with project(compose):
        kept, broken = await two_nodes(compose.listed)
        compose.files = list(FILES)
        compose.variables["NAVARCH_IMAGE"] = "navarch:test"
        compose("up", "--no-build", "credentials")
        compose("restart", "-t", "10", "nats")
        await compose.healthy("nats")
        break_gpu(compose, broken)
        for service in SERVICES:
            compose("up", "-d", "--no-build", "--no-deps", service)
            await compose.healthy(service)
        after = await two_nodes(compose.listed, without=broken)

        image = run("docker", "image", "inspect", "-f", "{{.Id}}", "navarch:test").strip()
        assert {image} == {compose.inspect(each)["Image"] for each in SERVICES}
        # The provisioner's container has the simulated nodes, whose agents it starts again.
        assert kept in after
        assert "ermissions violation" not in compose("logs", *SERVICES)


async def test_one_of_three_servers_is_killed() -> None:
    """With cluster.yaml every stream has three replicas, and a node is replaced by two servers."""
    build_navarch()
    cluster = ("compose/cluster.yaml", "tests/real/compose-offline-cluster.yaml")
    async with project(Compose([FILES[0], cluster[0], FILES[1], cluster[1]])) as compose:
        await compose.healthy(*SERVERS)
        old, _ = await two_nodes(compose.listed)
        assert replicas(compose)["SAGAS"] == 3
        run("docker", "kill", "-s", "KILL", compose.container("nats-2"))
        break_gpu(compose, old)
        await two_nodes(compose.listed, without=old)

        async def back() -> bool:
            return bool(compose.inspect("nats-2")["State"]["Running"])

        compose("up", "-d", "--no-build", "--no-deps", "nats-2")
        await eventually(back, within_seconds=UP_SECONDS, every=0.5)
        await compose.healthy("nats-2")
