"""A node of an auto-scaling group breaks: from its fault to the successor that joins the cluster.

The services and agents run as `navarch serve` and `python -m agent` do, against a real Kubernetes
and moto's auto-scaling group, with the rights that docs/existing-clusters.md grants.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.provisioner.test_group_removal import group_of, members
from tests.real.kubernetes_cluster import Cluster, real_cluster
from tests.real.kubernetes_fleet import Fleet, known
from tests.real.kubernetes_work import add_budget, add_replicas, cordoned, node_of, pods
from tests.real.test_existing_clusters import PAGE, pytestmark
from tests.real.test_kubernetes_page import blocks_of, run
from tests.support.inprocess import eventually
from tests.support.moto_process import running_moto

__all__ = ["pytestmark"]

NODES = 3


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Start a control plane without anything of Navarch."""
    async with real_cluster(tmp_path) as made:
        yield made


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """AWS, as far as moto is."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with running_moto() as url:
        yield url


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
        await fleet.start(removal="auto-scaling-group", region="us-east-1", endpoint_url=moto)
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
