"""The queue of a real Kubernetes, whose scheduler finds no room for pods that request GPUs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from services.pool_manager.autoscaling.metrics_sources import Load, SourceError, WaitingJobs
from services.pool_manager.autoscaling.queue_demand import demand_of
from services.pool_manager.autoscaling.sources.kubernetes_source import KubernetesSource
from services.pool_manager.autoscaling.sources.kueue_workloads import KueueOptions, gang_shape
from tests.autoscaling.kueue_api import CRD, pod_set, workload
from tests.real.kubernetes_cluster import Cluster, needs_kubernetes, real_cluster
from tests.real.kubernetes_work import add_nodes, pod_spec
from tests.real.test_kubernetes import RBAC
from tests.support.inprocess import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(300), needs_kubernetes()]

GANG = {"jobset.sigs.k8s.io/jobset-name": "pretrain"}
GROUP = "kueue.x-k8s.io/pod-group-name"


def gpus(count: int, pool: str = "gpu", **spec: Any) -> dict[str, Any]:
    """A pod that requests GPUs of a pool's nodes."""
    resources = {"limits": {"nvidia.com/gpu": str(count)}} if count else {}
    container = {"name": "main", "image": "none", "resources": resources}
    return pod_spec(pool, **{"containers": [container], **spec})


def pod(name: str, spec: dict[str, Any], labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Make the manifest of a pod."""
    about = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def job(name: str, count: int, each: int, mode: str = "NonIndexed") -> dict[str, Any]:
    """Make the manifest of a Job with so many pods at once."""
    template = {"spec": gpus(each, restartPolicy="Never")}
    spec = {"parallelism": count, "completions": count, "completionMode": mode}
    about = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    return {**about, "spec": {**spec, "template": template}}


def source_of(cluster: Cluster, pool: str) -> KubernetesSource:
    """Return the source of the nodes with a pool's label."""
    file = str(cluster.kubeconfig("pool-manager"))
    options = KubernetesSource.Options(kubeconfig=file, node_labels={"pool": pool})
    return KubernetesSource(options=options)


async def test_pods_count_by_what_they_wait_for(tmp_path: Path) -> None:
    """Gangs and a Job wait for nodes; a gated pod, another pool's and one without GPUs do not.

    What runs keeps the pool of its node busy alone, also with pods that could run anywhere.
    """
    async with real_cluster(tmp_path) as cluster:
        await cluster.apply(RBAC)
        await cluster.apply(RBAC.with_name("pool-manager-rbac.yaml"))
        names = await add_nodes(cluster, "gpu", 2)
        for name in names:
            await cluster.create(pod(f"busy-{name}", gpus(8, nodeSelector={})))

        async def placed() -> bool:
            pods = (await cluster.get("/api/v1/pods"))["items"]
            return all(each["spec"].get("nodeName") for each in pods)

        await eventually(placed, within_seconds=60, every=0.2)
        for member in range(4):
            await cluster.create(pod(f"pretrain-{member}", gpus(8), GANG))
            await cluster.create(pod(f"packed-{member}", gpus(2), {GROUP: "packed"}))
        await cluster.create(job("indexed", 3, 4, "Indexed"))
        await cluster.create(job("sweep", 5, 2))
        await cluster.create(pod("gated", gpus(8, schedulingGates=[{"name": "example.com/quota"}])))
        await cluster.create(pod("elsewhere", gpus(8, pool="other")))
        other = {"key": "pool", "operator": "NotIn", "values": ["gpu"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [other]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        affine = gpus(8, affinity={"nodeAffinity": required}, nodeSelector={})
        await cluster.create(pod("affine", affine))
        await cluster.create(pod("web", gpus(0)))
        gangs = (gang_shape({4: 3}), gang_shape({2: 4}), gang_shape({8: 4}))
        expected = Load(
            pending_jobs=8,
            waiting=(*gangs, WaitingJobs(gpus=2, count=5)),
            busy_nodes=2,
            not_for_nodes=1,
            not_for_pool=2,
        )
        source, empty = source_of(cluster, "gpu"), source_of(cluster, "big")

        async def seen() -> bool:
            return await source.load("training") == expected

        try:
            await eventually(seen, within_seconds=60, every=0.2)
            needed = [
                demand_of([each], gpus_per_node=8, jobs_per_node=1, room=9, nodes_max=9).nodes
                for each in gangs
            ]
            assert needed == [2, 1, 4]
            found = await empty.load("big")
            assert (found.busy_nodes, found.waiting) == (0, (WaitingJobs(gpus=8),))
            await cluster.kill("kube-apiserver")
            with pytest.raises(SourceError, match="Kubernetes, for pool training: "):
                await source.load("training")
        finally:
            await source.close()
            await empty.close()


async def test_workloads_of_kueue_count_before_they_have_pods(tmp_path: Path) -> None:
    """The API server keeps them in both versions; without the right the source is silent."""
    async with real_cluster(tmp_path) as cluster:
        await cluster.apply(RBAC)
        await cluster.apply(RBAC.with_name("pool-manager-rbac.yaml"))
        source = KubernetesSource(
            options=KubernetesSource.Options(
                kubeconfig=str(cluster.kubeconfig("pool-manager")), kueue=KueueOptions()
            )
        )
        crd = yaml.safe_load(CRD.read_text())
        try:
            with pytest.raises(SourceError, match="has no Kueue"):
                await source.load("training")
            await cluster.create(crd)
            base = "/apis/kueue.x-k8s.io/v1beta1/namespaces/default/workloads"

            async def served() -> bool:
                return (await cluster.api.get(base)).is_success

            await eventually(served, within_seconds=60, every=0.2)
            with pytest.raises(SourceError, match='cannot list resource "workloads"'):
                await source.load("training")
            await cluster.apply(RBAC.with_name("kueue-rbac.yaml"))
            given = {"QuotaReserved": "QuotaReserved"}
            for number, version in enumerate(("v1beta1", "v1beta2")):
                made = workload(f"llm-{number}", pod_set(4, 8), conditions=given, flavor="h100")
                waits = workload(f"sweep-{number}", pod_set(6, 2), owner="Job")
                for each in (made, waits):
                    each["metadata"]["namespace"] = "default"
                    whole = {"apiVersion": f"kueue.x-k8s.io/{version}", "kind": "Workload", **each}
                    await cluster.create(whole)
                    path = f"{base}/{each['metadata']['name']}/status"
                    await cluster.patch(path, {"status": each["status"]})
            expected = Load(
                pending_jobs=2,
                waiting=(gang_shape({8: 4}),) * 2,
                busy_nodes=0,
                not_for_nodes=2,
            )
            assert await source.load("training") == expected
        finally:
            await source.close()
