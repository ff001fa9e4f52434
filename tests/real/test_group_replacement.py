"""A node of an auto-scaling group breaks: from its fault to the successor that joins the cluster.

The services and agents run as `navarch serve` and `python -m agent` do, against a real Kubernetes
and moto's auto-scaling group, with the rights that docs/existing-clusters.md grants.
"""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from services.bus.nats.embedded_server import server_binary
from services.primitives.free_ports import free_ports
from services.provisioner.providers.local_gpus import kmsg_record
from tests.provisioner.test_group_removal import group_of, members
from tests.real.kubernetes_cluster import Cluster, real_cluster
from tests.real.kubernetes_work import add_budget, add_replicas, cordoned, node_of, pods
from tests.real.test_existing_clusters import (
    PAGE,
    agent_variables,
    configuration,
    process,
    pytestmark,
)
from tests.real.test_kubernetes_page import blocks_of, run
from tests.support.inprocess import eventually, navarch
from tests.support.moto_process import running_moto

__all__ = ["pytestmark"]

NODES = 3
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a control plane without anything of Navarch."""
    async with real_cluster(tmp_path) as made:
        yield made


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """AWS, as far as moto is."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with running_moto() as url:
        yield url


class Fleet:
    """Runs the bus, the services, and an agent on each node of the cluster."""

    def __init__(self, cluster: Cluster, started: AsyncExitStack) -> None:
        self.cluster = cluster
        (self.port,) = free_ports(1)
        self._started = started
        self._common = {
            "NAVARCH_BUS_PASSWORD": "secret",
            "NAVARCH_NATS_URL": f"nats://127.0.0.1:{self.port}",
        }

    async def start(self, moto: str) -> None:
        """Start the bus and the services."""
        config, bus = await configuration(
            *(self.cluster, self.port),
            removal="auto-scaling-group",
            region="us-east-1",
            endpoint_url=moto,
        )
        self._common["NAVARCH_CONFIG"] = str(config)
        for name, command in (
            ("bus", (str(server_binary()), "-c", str(bus))),
            ("serve", (sys.executable, "-m", "services.cli", "serve")),
        ):
            log = self.cluster.folder / f"{name}.log"
            await self._started.enter_async_context(process(*command, log=log, **self._common))

    async def join(self, instance: str) -> str:
        """The kubelet of an instance registers, and the DaemonSet's agent starts; the node."""
        name = f"ip-{instance[2:]}.ec2.internal"
        await self.cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {"pool": "gpu", "nvidia.com/gpu.present": "true"},
                },
                "spec": {"providerID": f"aws:///us-east-1a/{instance}"},
            }
        )
        self._kmsg(name).write_bytes(b"")
        await self._started.enter_async_context(
            process(
                *(sys.executable, "-m", "agent"),
                log=self.cluster.folder / f"{name}.log",
                **agent_variables(self.port, name, self._kmsg(name)),
            )
        )
        return name

    def write_fault(self, name: str) -> None:
        """The kernel of a node logs XID 79."""
        with self._kmsg(name).open("ab") as log:
            log.write(kmsg_record(1, 1, XID))

    async def shows(self, command: str, *texts: str) -> str:
        """Wait until a command's output has these texts; return it."""

        async def shown() -> str:
            status, out, _ = await navarch(*command.split(), **self._common)
            return out if status == 0 and all(each in out for each in texts) else ""

        return str(await eventually(shown, within_seconds=90, every=0.5))

    def _kmsg(self, name: str) -> Path:
        return self.cluster.folder / f"{name}.kmsg"


def known(name: str) -> str:
    """Return a node's name in Navarch."""
    return name.replace(".", "-")


async def test_the_successor_of_a_broken_node_is_the_one_that_joins(
    cluster: Cluster, moto: str
) -> None:
    """Cordoned, drained under its budget, terminated in its group, which makes another.

    The group keeps its size, the dead Node object is deleted, and the alert about it
    ends with the name of the node that joined. The nodes beside it are left alone.
    """
    _, apply, _, grant, _ = blocks_of(PAGE, "bash")
    await run(cluster, apply)
    await run(cluster, grant)
    await group_of(moto, NODES)
    _, instances = await members(moto)
    async with AsyncExitStack() as started:
        fleet = Fleet(cluster, started)
        await fleet.start(moto)
        names = [await fleet.join(each) for each in instances]
        await fleet.shows("list", *(known(each) for each in names))
        await add_replicas(cluster, "gpu", NODES)
        await add_budget(cluster, "gpu", NODES - 1)
        broken = str((await pods(cluster, "gpu"))[0]["spec"]["nodeName"])
        lost = instances[names.index(broken)]

        fleet.write_fault(broken)
        await eventually(lambda: _is_cordoned(cluster, broken), within_seconds=60, every=0.05)
        await eventually(lambda: _is_terminated(moto, lost), within_seconds=90, every=0.2)
        desired, now = await members(moto)
        assert desired == len(now) == NODES
        (new,) = set(now) - set(instances)
        assert not await pods(cluster, "gpu", broken)
        for each in set(names) - {broken}:
            assert cordoned(await node_of(cluster, each)) == (False, False)

        async def deleted() -> bool:
            found = await cluster.api.get(f"/api/v1/nodes/{broken}")
            return found.status_code == 404

        await eventually(deleted, within_seconds=90, every=0.2)
        successor = await fleet.join(new)
        await fleet.shows("list", known(successor))
        log = cluster.folder / "serve.log"

        async def resolved() -> bool:
            return f'"text": "By {known(successor)} in ' in log.read_text()

        await eventually(resolved, every=0.2)
        assert known(broken) not in await fleet.shows("list", known(successor))
        assert await members(moto) == (NODES, now)


async def _is_cordoned(cluster: Cluster, name: str) -> bool:
    return cordoned(await node_of(cluster, name)) == (True, True)


async def _is_terminated(moto: str, instance: str) -> bool:
    return instance not in (await members(moto))[1]
