"""Sources read the answers of Prometheus, Slurm, Kubernetes and Ray."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.notifier.workload.kubernetes.kubernetes_pods import gang as gang_of_pod
from services.pool_manager.autoscaling.autoscaler_plugins import check_source, source_of
from services.pool_manager.autoscaling.metrics_sources import (
    Load,
    MetricsSource,
    SourceError,
    WaitingJobs,
    for_pool,
)
from services.pool_manager.autoscaling.sources.kubernetes_source import pods_load
from services.pool_manager.autoscaling.sources.kueue_workloads import gang_shape
from services.pool_manager.autoscaling.sources.pod_requests import fits
from services.pool_manager.autoscaling.sources.ray_source import demand_load
from services.pool_manager.autoscaling.sources.slurm_source import queue_load
from services.primitives.errors import ConfigurationError
from services.workload_systems.kubernetes_objects import (
    KubernetesPod,
    QueuedPod,
    RequestedPod,
)
from services.workload_systems.ray_answers import StatusAnswer
from services.workload_systems.slurm_output import read_nodes, read_queue
from tests.notifier.kubernetes_site import kubeconfig
from tests.support.serving import serving

SLURM_QUEUE = """\
21|2|gres/gpu:h100:8|Resources|(null)|MARK
22_1|1|gres:gpu:2|Priority|a100|nvlink|MARK
22_2|1|gres:gpu:2|Priority|a100|nvlink|MARK
23|1|N/A|Dependency|(null)|MARK
24|1|gres/gpu:a100:1|Resources|(null)|MARK
25|3|N/A|ReqNodeNotAvail, UnavailableNodes:gpu[1-3]|(null)|MARK
26|1|gpu|JobHeldUser|(null)|MARK
"""
SLURM_NODES = """\
gpu1|10.0.0.1|gpu1|mixed|root|none|MARK
gpu2|10.0.0.2|gpu2|idle|root|none|MARK
gpu3|10.0.0.3|gpu3|allocated+drain|root|navarch: xid-79|MARK
"""
RAY_STATUS = {
    "result": True,
    "msg": "Got cluster status.",
    "data": {
        "clusterStatus": {
            "loadMetricsReport": {
                "resourceDemand": [[{"CPU": 4.0}, 2], [{"GPU": 0.5}, 3], [{"GPU": 4.0}, 1]],
                "pgDemand": [
                    [{"bundles": [[{"CPU": 1.0, "GPU": 8.0}, 4]], "strategy": "STRICT_SPREAD"}, 2],
                    [{"bundles": [[{"GPU": 2.0}, 3]], "strategy": "STRICT_PACK"}, 1],
                    [{"bundles": [[{"GPU": 1.0}, 5], [{"CPU": 1.0}, 1]], "strategy": "PACK"}, 1],
                ],
                "usageByNode": {
                    "aa": {"node:InternalHead": [0.0, 1.0], "GPU": [1.0, 1.0]},
                    "bb": {"GPU": [2.0, 8.0], "CPU": [1.0, 2.0]},
                    "cc": {"CPU": [1.0, 2.0]},
                },
            }
        }
    },
}


def test_slurm_queue_is_read() -> None:
    """The queue has types in gres, tasks of arrays, constraints with the separator, and reasons."""
    jobs = read_queue(SLURM_QUEUE, "MARK")
    nodes = read_nodes(SLURM_NODES, "MARK")
    assert queue_load(jobs, nodes, "h100") == Load(
        pending_jobs=4,
        waiting=(
            WaitingJobs(nodes=2, gpus=8),
            WaitingJobs(gpus=2, count=2),
            WaitingJobs(nodes=3),
        ),
        busy_nodes=2,
        not_for_nodes=2,
        not_for_pool=1,
    )
    assert [each.gpus for each in jobs] == [8, 2, 2, 0, 1, 0, 1]
    assert jobs[1].features == "a100|nvlink"
    assert queue_load(jobs, nodes, "h100", ("nvlink",)).pending_jobs == 4
    assert queue_load(jobs, nodes, "h100", ("rack1",)).not_for_pool == 3


def test_ray_demand_is_read() -> None:
    """Groups that spread are gangs; the head and nodes without used GPUs are not busy."""
    answer = msgspec.convert(RAY_STATUS, StatusAnswer)
    assert answer.data.cluster_status is not None
    found = demand_load(answer.data.cluster_status.load_metrics_report, "GPU")
    assert found == Load(
        pending_jobs=12,
        waiting=(
            WaitingJobs(gpus=1, count=3),
            WaitingJobs(gpus=4),
            WaitingJobs(nodes=4, gpus=8, count=2),
            WaitingJobs(gpus=6),
            WaitingJobs(gpus=1, count=5),
        ),
        busy_nodes=1,
        not_for_nodes=2,
    )


def pod(gpus: int, *, node: str = "", reason: str = "Unschedulable", **more: Any) -> QueuedPod:
    """A pod as the API lists it."""
    spec: dict[str, Any] = {
        "containers": [{"resources": {"requests": {"nvidia.com/gpu": str(gpus), "cpu": "500m"}}}],
        "nodeName": node,
        "nodeSelector": more.get("selector", {}),
    }
    condition = {"type": "PodScheduled", "status": "False", "reason": reason}
    about = {"namespace": "ml", "labels": more.get("labels", {}), **more.get("metadata", {})}
    raw = {"metadata": about, "spec": spec, "status": {"conditions": [condition]}}
    return msgspec.json.decode(json.dumps(raw), type=QueuedPod)


def test_kubernetes_pods_are_read() -> None:
    """Gangs by their labels; gated pods and those of other pools apart."""
    job = {"jobset.sigs.k8s.io/jobset-name": "llm"}
    pods = [
        pod(8, labels=job),
        pod(8, labels=job),
        pod(2),
        pod(2, selector={"pool": "training"}),
        pod(2, selector={"pool": "research"}),
        pod(1, reason="SchedulingGated"),
        pod(8, node="gpu-1"),
        pod(1, node="gpu-1"),
    ]
    assert pods_load(pods, "nvidia.com/gpu", {"pool": "training"}) == Load(
        pending_jobs=3,
        waiting=(gang_shape({8: 2}), WaitingJobs(gpus=2, count=2)),
        busy_nodes=1,
        not_for_nodes=1,
        not_for_pool=1,
    )
    assert pods_load(pods, "nvidia.com/gpu", {}).pending_jobs == 4


def test_the_pods_of_an_indexed_job_are_the_gang_that_drains_report() -> None:
    """Packed by what they ask for; the pods of another Job wait by themselves."""
    owner = [{"kind": "Job", "name": "llm", "controller": True}]
    indexed = {"batch.kubernetes.io/job-completion-index": "0"}
    gang = {"name": "p", "ownerReferences": owner, "annotations": indexed}
    alone = {"name": "p", "ownerReferences": owner}
    pods = [pod(2, metadata=each) for each in (gang, gang, gang, gang, alone)]
    found = pods_load(pods, "nvidia.com/gpu", {})
    assert found.waiting == (gang_shape({2: 4}), WaitingJobs(gpus=2))
    for metadata, job in ((gang, "ml/Job/llm"), (alone, "")):
        raw = {"metadata": {"namespace": "ml", **metadata}}
        assert gang_of_pod(msgspec.convert(raw, KubernetesPod)) == job


NEEDS = {"key": "pool", "operator": "In", "values": ["training"]}
NAMED = {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}
AFFINITIES: dict[str, tuple[list[Any] | None, bool]] = {
    "none": (None, True),
    "this pool": ([{"matchExpressions": [NEEDS]}], True),
    "another": ([{"matchExpressions": [{**NEEDS, "values": ["research"]}]}], False),
    "one of two": ([{"matchExpressions": [{**NEEDS, "values": ["x"]}, NEEDS]}], False),
    "either": (
        [{"matchExpressions": [{**NEEDS, "values": ["x"]}]}, {"matchExpressions": [NEEDS]}],
        True,
    ),
    "not this": ([{"matchExpressions": [{**NEEDS, "operator": "NotIn"}]}], False),
    "not another": (
        [{"matchExpressions": [{**NEEDS, "operator": "NotIn", "values": ["x"]}]}],
        True,
    ),
    "has label": ([{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}], True),
    "lacks label": ([{"matchExpressions": [{"key": "pool", "operator": "DoesNotExist"}]}], False),
    "other label": ([{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}], False),
    "more": ([{"matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["8"]}]}], True),
    "less": ([{"matchExpressions": [{"key": "gen", "operator": "Lt", "values": ["9"]}]}], False),
    "no number": (
        [{"matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["x"]}]}],
        False,
    ),
    "unknown": ([{"matchExpressions": [{**NEEDS, "operator": "Like"}]}], False),
    "a named node": ([{"matchExpressions": [NEEDS], "matchFields": [NAMED]}], False),
    "empty term": ([{}], False),
}


@pytest.mark.parametrize("name", AFFINITIES)
def test_required_node_affinity_is_met_as_the_scheduler_does(name: str) -> None:
    """A pod that no node of the pool may run does not grow it."""
    terms, fitting = AFFINITIES[name]
    raw: dict[str, Any] = {}
    if terms is not None:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        raw = {"affinity": {"nodeAffinity": required}}
    spec = msgspec.json.decode(json.dumps(raw), type=RequestedPod)
    assert fits(spec, {"pool": "training", "gen": "9"}) is fitting
    assert fits(spec, {})


def vector(*values: str) -> dict[str, Any]:
    """Return what Prometheus answers."""
    result = [{"metric": {}, "value": [1.0, each]} for each in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


ANSWERS: dict[str, tuple[Any, str | Load]] = {
    "one": (vector("3"), Load(pending_jobs=3)),
    "scalar": (
        {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "2.4"]}},
        Load(pending_jobs=3),
    ),
    "none": (vector(), "metrics.pending_jobs: has no result"),
    "several": (vector("1", "2"), "has 2 results"),
    "not a number": (vector("NaN"), "must be a finite number"),
    "negative": (vector("-1"), "must be a finite number"),
    "infinite": (vector("+Inf"), "must be a finite number"),
    "range": (
        {"status": "success", "data": {"resultType": "matrix", "result": []}},
        "is a matrix",
    ),
    "refused": ({"status": "error", "error": "parse error: x"}, "parse error: x"),
    "malformed": (
        {"status": "success", "data": {"resultType": "vector", "result": {}}},
        "not understood",
    ),
    "too large": (vector("1e300"), "metrics: "),
    "no API": ([], "no PromQL API"),
}


class Site:
    """A server that answers what the test says."""

    def __init__(self) -> None:
        self.answer: Any = {}
        self.asked: list[tuple[str, str]] = []
        self.url = ""

    async def serve(self, request: Request) -> Response:
        """Answer, and keep what was asked."""
        self.asked.append((request.url.path, (await request.body()).decode()))
        return Response(json.dumps(self.answer), media_type="application/json")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Serve the site on a free port."""
    made = Site()
    route = Route("/{path:path}", made.serve, methods=["GET", "POST"])
    async with serving(Starlette(routes=[route])) as made.url:
        yield made


async def load(raw: dict[str, Any]) -> Load | str:
    """Return what a source says of `training`, or its error."""
    source: MetricsSource = source_of(raw, "pools.training.metrics", None)
    try:
        return await source.load("training")
    except SourceError as error:
        return str(error)
    finally:
        await source.close()


@pytest.mark.parametrize("name", ANSWERS)
async def test_prometheus_gives_one_number_or_says_why_not(site: Site, name: str) -> None:
    """A missing series is no zero: a pool does not shrink because an exporter is away."""
    site.answer, expected = ANSWERS[name]
    query = 'sum(slurm_pending{pool="$pool"})'
    found = await load({"type": "prometheus", "url": f"{site.url}/prom/", "pending_jobs": query})
    if isinstance(expected, Load):
        assert found == expected
    else:
        assert isinstance(found, str)
        assert expected in found
    assert site.asked[0][0] == "/prom/api/v1/query"
    assert "training" in site.asked[0][1]


async def test_jobs_that_need_other_nodes_do_not_count(site: Site) -> None:
    """One queue serves several pools: each grows for the jobs that its labels satisfy."""
    site.answer = {
        "waiting": [
            {"nodes": 4, "labels": {"gpu": "h100"}},
            {"count": 2, "labels": {"gpu": "a100", "fabric": "ib"}},
            {"count": 3},
        ],
        "not_for_pool": 1,
    }
    found = await load({"type": "http", "url": site.url})
    assert isinstance(found, Load)
    kept = for_pool(found, {"gpu": "h100", "team": "llm"})
    assert kept.waiting == (WaitingJobs(nodes=4, labels={"gpu": "h100"}), WaitingJobs(count=3))
    assert kept.not_for_pool == 3
    assert for_pool(found, {}).waiting == (WaitingJobs(count=3),)
    assert for_pool(Load(pending_jobs=3), {}) == Load(pending_jobs=3)


async def test_utilization_and_queue_come_from_two_sources(site: Site) -> None:
    """The first source that knows a figure decides it, a zero included."""
    site.answer = vector("0")
    prometheus = {"type": "prometheus", "url": site.url, "utilization": "x", "pending_jobs": "y"}
    queue = {"type": "http", "url": f"{site.url}/queue"}
    assert await load({"type": "combined", "sources": [prometheus, queue]}) == Load(
        utilization=0, pending_jobs=0
    )


async def test_a_silent_part_silences_the_whole(site: Site) -> None:
    """A decision would be wrong with half of the figures."""
    prometheus = {"type": "prometheus", "url": "http://127.0.0.1:1", "utilization": "x"}
    found = await load(
        {"type": "combined", "sources": [{"type": "http", "url": site.url}, prometheus]}
    )
    assert isinstance(found, str)
    assert "metrics.url (http://127.0.0.1:1)" in found


async def test_kubernetes_pods_are_listed(site: Site, tmp_path: Path) -> None:
    """Pods without GPUs do not count; an API that is away is a silent source."""
    pytest.importorskip("kubernetes_asyncio")
    first = msgspec.to_builtins(pod(4))
    site.answer = {"metadata": {"continue": ""}, "items": [first, msgspec.to_builtins(pod(0))]}
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig(site.url))
    raw = {"type": "kubernetes", "kubeconfig": str(file)}
    assert await load(raw) == Load(pending_jobs=1, waiting=(WaitingJobs(gpus=4),), busy_nodes=0)
    file.write_text(kubeconfig("http://127.0.0.1:1"))
    found = await load(raw)
    assert isinstance(found, str)
    assert found.startswith("Kubernetes, for pool training: ")


async def test_a_placed_pod_is_busy_in_the_pool_of_its_node(tmp_path: Path) -> None:
    """A pool whose nodes run nothing is not busy with a pod that would run on any node."""
    pytest.importorskip("kubernetes_asyncio")
    placed = [msgspec.to_builtins(pod(8, node=f"training-{each}")) for each in range(3)]
    selectors = list[str]()

    async def answer(request: Request) -> Response:
        if request.url.path == "/api/v1/pods":
            return JSONResponse({"metadata": {}, "items": placed})
        selectors.append(request.query_params["labelSelector"])
        names = [f"training-{each}" for each in range(5) if selectors[-1] == "pool=training"]
        return JSONResponse({"metadata": {}, "items": [{"metadata": {"name": n}} for n in names]})

    async with serving(Starlette(routes=[Route("/{path:path}", answer)])) as url:
        (file := tmp_path / "kubeconfig").write_text(kubeconfig(url))
        raw = {"type": "kubernetes", "kubeconfig": str(file)}
        busy = {}
        for name in ("training", "big"):
            found = await load({**raw, "node_labels": {"pool": name}})
            assert isinstance(found, Load)
            busy[name] = found.busy_nodes
    assert busy == {"training": 3, "big": 0}
    assert selectors == ["pool=training", "pool=big"]


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"type": "prometheus", "url": "http://p"}, "has no query; add one of pending_jobs"),
        ({"type": "slurm", "partition": "a,b"}, "partition"),
        ({"type": "slurm", "partion": "a"}, "did you mean `partition`"),
        ({"type": "ray"}, "dashboard"),
        ({"type": "combined", "sources": [{"type": "slurm"}]}, "sources"),
        ({"type": "combined", "sources": [{"type": "slurm"}, {"type": "htp"}]}, "sources.1.type"),
        ({"type": "combined", "sources": [{"type": "slurm"}, {}]}, "`type` is missing"),
    ],
)
def test_wrong_options_are_refused(raw: dict[str, Any], problem: str) -> None:
    """When the configuration is read, with the key."""
    with pytest.raises(ConfigurationError, match=problem.replace("`", ".")):
        check_source(raw, "pools.training.metrics", None)
