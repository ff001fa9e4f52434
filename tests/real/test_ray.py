"""The Ray notifier on a real Ray: what leaves, what refuses to, and a head that restarts."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from services.notifier.workload.drain_watch import DrainWatch
from services.notifier.workload.ray_notifier import RayNotifier
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    StepFailure,
    WorkloadOrder,
)
from services.primitives.clock import SystemClock
from services.runtime.http_caller import TransientHttpError
from services.workload_systems.ray_client import RayUnavailableError
from tests.real.ray_cluster import RayCluster, missing, ray_cluster, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A head, for all tests of this file; each adds its own nodes."""
    if reason := missing():
        pytest.skip(reason)
    with ray_cluster() as running:
        yield running


@pytest.fixture
async def ray(cluster: RayCluster) -> AsyncIterator[RayNotifier]:
    """Yield the notifier of this cluster."""
    options = RayNotifier.Options(
        dashboard=cluster.url, node_name="{node}", python=cluster.python, poll=0.5
    )
    made = RayNotifier(options=options, clock=SystemClock())
    yield made
    await made.close()


def node(name: str) -> NodeReference:
    """A node as the pool-manager knows it."""
    return NodeReference(pool="training", node=name)


def order(name: str, step: str = "drain", *, seconds: float = 3600) -> WorkloadOrder:
    """Return the order of one step of a replacement."""
    deadline = datetime.now(UTC) + timedelta(seconds=seconds)
    return WorkloadOrder(
        node=node(name), reason="xid-79 on GPU 3", key=f"replace-1/{step}", deadline=deadline
    )


async def workload(ray: RayNotifier, name: str) -> NodeWorkload:
    """Return the work that runs on a node."""
    answer = (await ray.workloads([node(name)]))[name]
    assert isinstance(answer, NodeWorkload), answer
    return answer


async def drained(ray: RayNotifier, name: str) -> NodeWorkload:
    """Wait until a node is drained, as the notifier's service does."""
    async with asyncio.timeout(60):
        return await DrainWatch(ray, SystemClock()).drained(node(name))


async def test_actor_leaves_and_the_node_ends(cluster: RayCluster, ray: RayNotifier) -> None:
    """The actor's job is reported and runs on; nothing new comes.

    The idle raylet ends, and counts.
    """
    cluster.add("a")
    stay = cluster.work("train-1", "a")
    await ray.cordon(order("a", "cordon"))
    await ray.drain(order("a"))
    await ray.drain(order("a"))
    before = await workload(ray, "a")
    assert (before.drained, before.total) == (False, 1)
    running = before.running[0]
    assert (running.id, running.owner, running.gang) == ("job train-1", "alice", "")
    assert running.name.startswith("1 running (Trainer): ")
    assert running.started_at is not None
    assert abs((datetime.now(UTC) - running.started_at).total_seconds()) < 120
    late = cluster.work("train-2", "a", wait=False)
    await asyncio.sleep(3)
    assert cluster.actors() == {"train-1": "a"}
    assert not late.exists()
    stay.unlink()
    answer = await drained(ray, "a")
    assert "navarch: xid-79 on GPU 3 (replace-1/cordon)" in answer.detail  # the first order's
    assert "a" not in cluster.alive()
    with pytest.raises(RayUnavailableError, match="start it again"):
        await ray.uncordon(order("a", "uncordon"))
    cluster.kill("a")
    cluster.add("a")
    await ray.uncordon(order("a", "uncordon"))
    until(late.exists, "train-2 runs on the new raylet")
    late.unlink()


async def test_actor_that_refuses_to_leave_restarts_elsewhere(
    cluster: RayCluster, ray: RayNotifier
) -> None:
    """The actor runs until the deadline; then its raylet is removed, and Ray restarts it."""
    cluster.add("b", "c")
    stay = cluster.work("train-3", "b", free=True)
    assert cluster.actors()["train-3"] == "b"
    await ray.drain(order("b"))
    with pytest.raises(RayUnavailableError, match="is draining, which Ray cannot undo"):
        await ray.uncordon(order("b", "uncordon"))
    await ray.drain(order("b"))
    assert not (await workload(ray, "b")).drained
    watch = asyncio.create_task(drained(ray, "b"))
    await asyncio.sleep(3)
    assert not watch.done()
    await ray.evict(order("b"))
    await watch
    until(lambda: cluster.actors().get("train-3") not in (None, "b"), "it runs elsewhere")
    stay.unlink()


async def test_what_ray_does_not_know_and_its_head_are_refused(
    cluster: RayCluster, ray: RayNotifier
) -> None:
    """A mistaken name must not count as drained, and a drained head would end the cluster."""
    with pytest.raises((StepFailure, RayUnavailableError), match="Ray knows no node 'typo'"):
        await ray.drain(order("typo"))
    with pytest.raises(StepFailure, match="runs Ray's head"):
        await ray.drain(order("head"))
    assert "head" in cluster.alive()


async def test_head_that_restarts_during_a_drain(cluster: RayCluster, ray: RayNotifier) -> None:
    """While it is away, and until it knows the node again, nothing counts as drained."""
    cluster.add("d")
    cluster.work("train-4", "d")
    await ray.drain(order("d"))
    watch = asyncio.create_task(drained(ray, "d"))
    cluster.kill("head")
    with pytest.raises(TransientHttpError):
        await ray.workloads([node("d")])
    cluster.start_head()
    assert not (await workload(ray, "d")).drained
    assert not watch.done()
    cluster.kill("d")
    cluster.add("d")
    await watch
    assert "d" not in cluster.alive()
