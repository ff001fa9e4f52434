"""Workloads of Kueue that have no pods yet, as the metrics source `kubernetes` counts them."""

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from services.pool_manager.autoscaling.metrics_sources import Load, SourceError, WaitingJobs
from services.pool_manager.autoscaling.sources.kubernetes_source import KubernetesSource
from services.pool_manager.autoscaling.sources.kueue_workloads import (
    KueueOptions,
    KueueWorkload,
    demand_of_workloads,
    gang_shape,
)
from tests.autoscaling.kueue_api import RESOURCE, KueueApi, pod_set, workload
from tests.notifier.kubernetes_site import kubeconfig
from tests.support.serving import serving

QUOTA: Final = {"QuotaReserved": "QuotaReserved"}
POOL: Final = {"pool": "training"}


async def load(api: KueueApi, folder: Path) -> Load:
    """Return what the source says of a cluster with this API."""
    pytest.importorskip("kubernetes_asyncio")
    file = folder / "kubeconfig"
    route = Route("/{path:path}", api.serve, methods=["GET", "POST", "PATCH", "DELETE"])
    async with serving(Starlette(routes=[route])) as url:
        file.write_text(kubeconfig(url))
        source = KubernetesSource(
            options=KubernetesSource.Options(
                kubeconfig=str(file), node_labels=POOL, kueue=KueueOptions()
            )
        )
        try:
            return await source.load("training")
        finally:
            await source.close()


@pytest.mark.parametrize("versions", [["v1beta1"], ["v1beta1", "v1beta2"]])
async def test_workloads_are_listed_in_their_order(versions: list[str], tmp_path: Path) -> None:
    """Workloads come by priority and age, after waiting pods, in the newest served version."""
    api = KueueApi(*versions)
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    gated = {**scheduled, "reason": "SchedulingGated"}
    spec = pod_set(1, 4)["template"]["spec"]
    for name, condition in (("ready", scheduled), ("gated", gated)):
        labels = {"kueue.x-k8s.io/managed": "true"}
        about = {"name": name, "namespace": "ml", "labels": labels}
        api.pods.append({"metadata": about, "spec": spec, "status": {"conditions": [condition]}})
    api.add(workload("late", pod_set(2, 8), created="2026-01-02T00:00:00Z", conditions=QUOTA))
    api.add(workload("early", pod_set(3, 8), conditions=QUOTA))
    api.add(workload("urgent", pod_set(4, 8), spec={"priority": 10}, conditions=QUOTA))
    api.add(workload("waits", pod_set(5, 8)))
    assert await load(api, tmp_path) == Load(
        pending_jobs=4,
        waiting=(WaitingJobs(gpus=4), *(gang_shape({8: each}) for each in (4, 3, 2))),
        busy_nodes=0,
        not_for_nodes=1,
    )
    paths = {each for each in api.asked if each.endswith("workloads")}
    assert paths == {f"/apis/kueue.x-k8s.io/{versions[-1]}/workloads"}


async def test_cluster_without_kueue_is_a_silent_source(tmp_path: Path) -> None:
    """The size stays, and the operator reads what is missing."""
    with pytest.raises(SourceError, match="the cluster has no Kueue; install it"):
        await load(KueueApi(), tmp_path)


WORKLOADS: Final[dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int, int]]]] = {
    # The workload, the options, and what counts: jobs that wait, not for nodes, not for the pool.
    "waits for quota": ({}, {}, (0, 1, 0)),
    "quota follows nodes": ({}, {"without_quota": "count"}, (1, 0, 0)),
    "has quota": ({"conditions": QUOTA, "flavor": "h100"}, {}, (1, 0, 0)),
    "admitted": ({"conditions": {**QUOTA, "Admitted": "Admitted"}}, {}, (0, 0, 0)),
    "finished": ({"conditions": {"Finished": "Succeeded"}}, {"without_quota": "count"}, (0, 0, 0)),
    "nodes came late": ({"conditions": {"Evicted": "PodsReadyTimeout"}}, {}, (1, 0, 0)),
    "preempted": ({"conditions": {"Evicted": "Preempted"}}, {}, (0, 1, 0)),
    "switched off": ({"spec": {"active": False}}, {"without_quota": "count"}, (0, 1, 0)),
    "own flavor": ({"conditions": QUOTA, "flavor": "h100"}, {"flavors": ("h100",)}, (1, 0, 0)),
    "other flavor": ({"conditions": QUOTA, "flavor": "a100"}, {"flavors": ("h100",)}, (0, 0, 1)),
    "own queue": ({"conditions": QUOTA}, {"queues": ("ml/gpu",)}, (1, 0, 0)),
    "queue by name": ({"conditions": QUOTA}, {"queues": ("gpu",)}, (1, 0, 0)),
    "other queue": ({"conditions": QUOTA}, {"queues": ("web/gpu", "cpu")}, (0, 0, 0)),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_count_by_what_they_wait_for(name: str) -> None:
    """More nodes start only those that have quota, in the pool's queues and flavors."""
    about, options, expected = WORKLOADS[name]
    found = read(workload("llm", pod_set(4, 8), **about))
    demand = demand_of_workloads([found], KueueOptions(**options), RESOURCE, POOL)
    jobs = sum(each.count for each in demand.waiting)
    assert (jobs, demand.not_for_nodes, demand.not_for_pool) == expected


def test_sizes_are_those_of_what_is_admitted() -> None:
    """A launcher without GPUs needs no node; a part may be admitted; a Job's pods share nodes."""
    launcher, workers = pod_set(1, 0), pod_set(4, 8)
    assert shapes(workload("mpi", workers, launcher, owner="MPIJob", conditions=QUOTA)) == (
        gang_shape({8: 4}),
    )
    part = workload("part", workers, conditions=QUOTA, flavor="h100", admitted=3)
    assert shapes(part) == (gang_shape({8: 3}),)
    sweep = workload("sweep", pod_set(6, 2), owner="Job", conditions=QUOTA)
    assert shapes(sweep) == (WaitingJobs(gpus=2, count=6),)
    assert shapes(workload("web", pod_set(6, 0), conditions=QUOTA)) == ()


def test_pods_of_other_nodes_do_not_count() -> None:
    """The selector of the pods that request GPUs decides; the launcher may run anywhere."""
    launcher, workers = pod_set(1, 0, nodeSelector={"pool": "cpu"}), pod_set(2, 8)
    assert shapes(workload("mpi", launcher, workers, conditions=QUOTA))
    other = workload("other", pod_set(2, 8, nodeSelector={"pool": "a100"}), conditions=QUOTA)
    assert demand_of_workloads([read(other)], KueueOptions(), RESOURCE, POOL).not_for_pool == 1


def read(raw: dict[str, Any]) -> KueueWorkload:
    """A workload that the API takes, as the source reads it."""
    KueueApi("v1beta1", "v1beta2").add(raw)
    return msgspec.json.decode(msgspec.json.encode(raw), type=KueueWorkload)


def shapes(raw: dict[str, Any]) -> tuple[WaitingJobs, ...]:
    """Return the waiting jobs that a workload amounts to."""
    return demand_of_workloads([read(raw)], KueueOptions(), RESOURCE, POOL).waiting
