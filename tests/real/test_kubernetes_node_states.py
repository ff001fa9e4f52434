"""A real API server has nodes that are not ready or cordoned by kubectl, and failed pods."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.notifier.workload.kubernetes_notifier import KubernetesNotifier
from services.notifier.workload.workload_notifier import WorkloadNodeState
from tests.real.kubernetes_cluster import Cluster, needs_kubernetes, real_cluster
from tests.real.kubernetes_work import (
    add_job,
    add_nodes,
    cordoned,
    node_of,
    notifier,
    order,
    pods,
    reference,
)
from tests.support.inprocess import eventually

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.real,
    needs_kubernetes("kubectl"),
]
RBAC = Path(__file__).parents[2] / "deploy/kubernetes/notifier-rbac.yaml"
STATUS = {"Content-Type": "application/strategic-merge-patch+json"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a control plane with the notifier's rights."""
    async with real_cluster(tmp_path) as made:
        await made.apply(RBAC)
        yield made


async def kubectl(cluster: Cluster, *arguments: str) -> None:
    """Run a command that an administrator types."""
    process = await asyncio.create_subprocess_exec(
        *(str(KUBECTL), *arguments),
        env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig("admin"))},
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0


async def until_state(
    made: KubernetesNotifier, name: str, wanted: Callable[[WorkloadNodeState], bool]
) -> WorkloadNodeState:
    """Wait until Kubernetes says so of a node."""

    async def seen() -> WorkloadNodeState | None:
        state = (await made.node_states([reference(name)])).get(f"gpu-{name}")
        return state if state is not None and wanted(state) else None

    found = await eventually(seen, within_seconds=30, every=0.05)
    assert isinstance(found, WorkloadNodeState)
    return found


async def test_states_arrive_and_administrators_cordons_stay(cluster: Cluster) -> None:
    """Each change is pushed; no order of cordons and uncordons undoes what kubectl has cordoned."""
    (name,) = await add_nodes(cluster, "state", 1)
    where = f"/api/v1/nodes/{name}"
    async with notifier(cluster) as made:
        await until_state(made, name, lambda each: each.ready and not each.cordoned)
        pushed = asyncio.create_task(made.wait_for_node_change())
        await kubectl(cluster, "cordon", name)
        await asyncio.wait_for(pushed, 10)
        state = await until_state(made, name, lambda each: each.cordoned)
        assert "kubectl" in state.reason
        for _ in range(2):
            await made.cordon(order(name))
            await made.uncordon(order(name))
        assert cordoned(await node_of(cluster, name)) == (True, False)

        await kubectl(cluster, "uncordon", name)
        await made.cordon(order(name))
        assert not (await until_state(made, name, lambda each: not each.cordoned)).reason
        # Navarch has it cordoned; the administrator takes the cordon over.
        await kubectl(cluster, "uncordon", name)
        await kubectl(cluster, "cordon", name)
        await until_state(made, name, lambda each: each.cordoned)
        await made.uncordon(order(name))
        assert cordoned(await node_of(cluster, name)) == (True, False)
        await kubectl(cluster, "uncordon", name)

        await cluster.patch(where, {"metadata": {"annotations": {"test/dead": "true"}}})
        down = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        reply = await cluster.api.patch(
            f"{where}/status", json={"status": {"conditions": [down]}}, headers=STATUS
        )
        assert reply.is_success, reply.text
        state = await until_state(made, name, lambda each: not each.ready)
        assert state.reason == "NodeStatusUnknown: ready"


async def test_failed_pods_are_reported_with_their_job(cluster: Cluster) -> None:
    """The pods of a running job are no failures; those that exited with an error are."""
    (name,) = await add_nodes(cluster, "fail", 1)
    await add_job(cluster, "fail", 1)
    (pod,) = await pods(cluster, "fail")
    where = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-22T04:26:00Z"}
    container = {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    status = {
        "phase": "Failed",
        "containerStatuses": [{**container, "state": {"terminated": ended}}],
    }
    async with notifier(cluster) as made:
        assert not (await until_state(made, name, lambda each: each.ready)).failed
        reply = await cluster.api.patch(f"{where}/status", json={"status": status}, headers=STATUS)
        assert reply.is_success, reply.text
        (failed,) = (await until_state(made, name, lambda each: bool(each.failed))).failed
    assert failed.id == f"default/{pod['metadata']['name']}"
    assert failed.reason == "part of fail: OOMKilled (137)"
