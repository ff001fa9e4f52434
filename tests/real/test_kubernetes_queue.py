"""The queue of a real Kubernetes, whose scheduler finds no room for pods that request GPUs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from services.pool_manager.autoscaling.metrics_sources import Load, SourceError, WaitingJobs
from services.pool_manager.autoscaling.sources.kubernetes_source import KubernetesSource
from services.pool_manager.autoscaling.sources.kueue_workloads import KueueOptions, gang_shape
from tests.autoscaling.kueue_api import CRD, pod_set, workload
from tests.real.kubernetes_cluster import needs_kubernetes, real_cluster
from tests.real.kubernetes_work import add_nodes, pod_spec
from tests.real.test_kubernetes import RBAC
from tests.support.inprocess import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(300), needs_kubernetes()]

GANG = {"jobset.sigs.k8s.io/jobset-name": "pretrain"}


def gpus(count: int, pool: str = "gpu", **spec: Any) -> dict[str, Any]:
    """A pod that requests GPUs of a pool's nodes."""
    resources = {"limits": {"nvidia.com/gpu": str(count)}} if count else {}
    container = {"name": "main", "image": "none", "resources": resources}
    return pod_spec(pool, **{"containers": [container], **spec})


def pod(name: str, spec: dict[str, Any], labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the manifest of a pod."""
    about = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


async def test_pods_count_by_what_they_wait_for(tmp_path: Path) -> None:
    """A gang and a Job wait for nodes; a gated pod, another pool's and one without GPUs do not."""
    async with real_cluster(tmp_path) as cluster:
        await cluster.apply(RBAC)
        await cluster.apply(RBAC.with_name("pool-manager-rbac.yaml"))
        names = await add_nodes(cluster, "gpu", 2)
        for name in names:
            await cluster.create(pod(f"busy-{name}", gpus(8)))

        async def placed() -> bool:
            pods = (await cluster.get("/api/v1/pods"))["items"]
            return all(each["spec"].get("nodeName") for each in pods)

        await eventually(placed, within_seconds=60, every=0.2)
        for member in range(4):
            await cluster.create(pod(f"pretrain-{member}", gpus(8), GANG))
        template = {"spec": gpus(2, restartPolicy="Never")}
        spec = {"parallelism": 5, "completions": 5, "template": template}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sweep"}, "spec": spec}
        await cluster.create(job)
        await cluster.create(pod("gated", gpus(8, schedulingGates=[{"name": "example.com/quota"}])))
        await cluster.create(pod("elsewhere", gpus(8, pool="other")))
        other = {"key": "pool", "operator": "NotIn", "values": ["gpu"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [other]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        affine = gpus(8, affinity={"nodeAffinity": required}, nodeSelector={})
        await cluster.create(pod("affine", affine))
        await cluster.create(pod("web", gpus(0)))
        source = KubernetesSource(
            options=KubernetesSource.Options(
                kubeconfig=str(cluster.kubeconfig("pool-manager")), node_labels={"pool": "gpu"}
            )
        )
        expected = Load(
            pending_jobs=6,
            waiting=(gang_shape({8: 4}), WaitingJobs(gpus=2, count=5)),
            busy_nodes=2,
            not_for_nodes=1,
            not_for_pool=2,
        )

        async def seen() -> bool:
            return await source.load("training") == expected

        try:
            await eventually(seen, within_seconds=60, every=0.2)
            await cluster.kill("kube-apiserver")
            with pytest.raises(SourceError, match="Kubernetes, for pool training: "):
                await source.load("training")
        finally:
            await source.close()


async def test_workloads_of_kueue_count_before_they_have_pods(tmp_path: Path) -> None:
    """Workloads count as the API server keeps them, in both versions.

    A source without the right is silent.
    """
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
