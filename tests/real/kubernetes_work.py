"""Nodes, pods and orders for the tests against a real Kubernetes."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from services.notifier.workload.kubernetes_notifier import KubernetesNotifier
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    WorkloadOrder,
)
from services.primitives.clock import SystemClock
from services.workload_systems.kubernetes_objects import CORDONED
from tests.real.kubernetes_cluster import AUDIT_LOG, Cluster
from tests.support.inprocess import eventually

TOLERATE_ALL = [{"operator": "Exists"}]


@asynccontextmanager
async def notifier(
    cluster: Cluster, user: str = "notifier", port: int = 0, **options: Any
) -> AsyncIterator[KubernetesNotifier]:
    """Make a notifier with the rights of deploy/kubernetes/notifier-rbac.yaml."""
    made = KubernetesNotifier(
        options=KubernetesNotifier.Options(
            kubeconfig=str(cluster.kubeconfig(user, port)), **options
        ),
        clock=SystemClock(),
    )
    try:
        yield made
    finally:
        await made.close()


def reference(name: str, **known: str) -> NodeReference:
    """A node as Navarch knows it."""
    return NodeReference(pool="gpu", node=f"gpu-{name}", hostname=name, **known)


def order(
    name: str,
    step: str = "cordon",
    reason: str = "XID 79 on GPU 3",
    *,
    about: NodeReference | None = None,
    ends: timedelta = timedelta(hours=1),
) -> WorkloadOrder:
    """An order about a node, or about what Navarch knows it as, and when its drain ends."""
    return WorkloadOrder(
        node=about or reference(name),
        reason=reason,
        key=f"replace-{name}/{step}",
        deadline=datetime.now(UTC) + ends,
    )


async def add_nodes(
    cluster: Cluster, pool: str, count: int, *, provider_ids: bool = True
) -> list[str]:
    """Add nodes with the label `pool`, ready and schedulable, of a cloud or of none."""
    names = [f"{pool}-{each}" for each in range(count)]
    slots = asyncio.Semaphore(16)

    async def add(name: str) -> None:
        about = {"name": name, "labels": {"pool": pool, "kubernetes.io/hostname": name}}
        spec = {"providerID": f"aws:///us-east-1a/i-{name}"} if provider_ids else {}
        async with slots:
            await cluster.create(
                {"apiVersion": "v1", "kind": "Node", "metadata": about, "spec": spec}
            )

    await asyncio.gather(*(add(each) for each in names))

    async def ready() -> bool:
        found = (await cluster.get(f"/api/v1/nodes?labelSelector=pool={pool}"))["items"]
        return len(found) == count and not any(each["spec"].get("taints") for each in found)

    await eventually(ready, within_seconds=120, every=0.2)
    return names


def pod_spec(pool: str, **spec: Any) -> dict[str, Any]:
    """Return a pod for the nodes of a pool."""
    container = {"name": "main", "image": "none"}
    return {
        "nodeSelector": {"pool": pool},
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        **spec,
    }


async def add_replicas(
    cluster: Cluster,
    name: str,
    count: int,
    annotations: dict[str, str] | None = None,
    pool: str = "",
    **spec: Any,
) -> None:
    """Create a ReplicaSet, running; empty `pool`: the pool of its name."""
    about = {"labels": {"app": name}, "annotations": annotations or {}}
    await cluster.create(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": name},
            "spec": {
                "replicas": count,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": about, "spec": pod_spec(pool or name, **spec)},
            },
        }
    )
    await running(cluster, name, count)


async def add_job(
    cluster: Cluster, pool: str, count: int, annotations: dict[str, str] | None = None, **more: Any
) -> None:
    """Create an Indexed Job of the pool's name with one pod on each of several nodes, running."""
    spread = [
        {
            "labelSelector": {"matchLabels": {"app": pool}},
            "topologyKey": "kubernetes.io/hostname",
        }
    ]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": spread}}
    spec = pod_spec(
        pool, restartPolicy="Never", affinity=affinity, activeDeadlineSeconds=7200, **more
    )
    about = {"labels": {"app": pool}, "annotations": annotations or {}}
    template = {"metadata": about, "spec": spec}
    await cluster.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": pool},
            "spec": {
                "parallelism": count,
                "completions": count,
                "completionMode": "Indexed",
                "template": template,
            },
        }
    )
    await running(cluster, pool, count)


async def add_budget(cluster: Cluster, pool: str, at_least: int) -> None:
    """A PodDisruptionBudget that the disruption controller has computed."""
    selector = {"matchLabels": {"app": pool}}
    await cluster.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": pool},
            "spec": {"minAvailable": at_least, "selector": selector},
        }
    )
    path = f"/apis/policy/v1/namespaces/default/poddisruptionbudgets/{pool}"

    async def computed() -> bool:
        status = (await cluster.get(path)).get("status", {})
        return bool(status.get("observedGeneration"))

    await eventually(computed, every=0.1)


async def pods(cluster: Cluster, pool: str, node: str = "") -> list[dict[str, Any]]:
    """Return the running or terminating pods of a pool, of one node or all."""
    found = (await cluster.get(f"/api/v1/pods?labelSelector=app={pool}"))["items"]
    alive = [each for each in found if each["status"]["phase"] == "Running"]
    return [each for each in alive if not node or each["spec"]["nodeName"] == node]


async def running(cluster: Cluster, pool: str, count: int) -> None:
    """Wait until so many pods of a pool run."""

    async def enough() -> bool:
        found = await pods(cluster, pool)
        return len([each for each in found if "deletionTimestamp" not in each["metadata"]]) == count

    await eventually(enough, within_seconds=300, every=0.1)


async def workload(asked: KubernetesNotifier, name: str) -> NodeWorkload:
    """Return what the notifier says of a node."""
    answer = (await asked.workloads([reference(name)]))[f"gpu-{name}"]
    assert isinstance(answer, NodeWorkload)
    return answer


async def until_drained(asked: KubernetesNotifier, name: str, seconds: float = 60) -> None:
    """Wait until a node is drained."""

    async def drained() -> bool:
        return (await workload(asked, name)).drained

    await eventually(drained, within_seconds=seconds, every=0.1)


async def until_said(asked: KubernetesNotifier, name: str, text: str) -> NodeWorkload:
    """Wait until the notifier says something of a node."""

    async def said() -> NodeWorkload | None:
        found = await workload(asked, name)
        return found if text in found.detail else None

    found = await eventually(said, within_seconds=30, every=0.1)
    assert isinstance(found, NodeWorkload)
    return found


async def node_of(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return a node as stored."""
    return await cluster.get(f"/api/v1/nodes/{name}")


def cordoned(node: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether a node is unschedulable, and whether it has Navarch's taint."""
    spec = node["spec"]
    tainted = any(each["key"] == CORDONED for each in spec.get("taints", []))
    return bool(spec.get("unschedulable")), tainted


async def events_of(cluster: Cluster, name: str) -> list[str]:
    """Return the reasons of Navarch's events about a node."""
    found = await cluster.get(
        f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    )
    ours = [each for each in found["items"] if each["source"].get("component") == "navarch"]
    return sorted(each["reason"] for each in ours)


def asked(cluster: Cluster, since: int = 0) -> list[dict[str, Any]]:
    """Return what the notifier asked of the API server, from this line of the audit log on."""
    lines = (cluster.folder / AUDIT_LOG).read_text("utf-8").splitlines()[since:]
    return [json.loads(each) for each in lines]


def kinds(found: list[dict[str, Any]]) -> Counter[str]:
    """Count requests by verb, resource and subresource."""
    about = ((each["verb"], each["objectRef"]) for each in found if "objectRef" in each)
    parts = ((verb, where["resource"], where.get("subresource")) for verb, where in about)
    return Counter("/".join(filter(None, each)) for each in parts)


async def release(cluster: Cluster, budget: str) -> None:
    """Let every pod of a budget go."""
    path = f"/apis/policy/v1/namespaces/default/poddisruptionbudgets/{budget}"
    await cluster.patch(path, {"spec": {"minAvailable": 0}})
