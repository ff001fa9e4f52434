"""Pods are kept off a single GPU by a real control plane, whose scheduler allocates its devices."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from services.notifier.workload.kubernetes.gpu_taints import FAULTY
from services.notifier.workload.kubernetes.kubernetes_rights import GPU_GRANT
from services.notifier.workload.workload_notifier import (
    GpuReference,
    WorkloadOrder,
)
from services.pool_manager.autoscaling.metrics_sources import WaitingJobs
from services.pool_manager.autoscaling.sources.kubernetes_source import KubernetesSource
from tests.real.kubernetes_cluster import Cluster, needs_kubernetes, real_cluster
from tests.real.kubernetes_work import add_nodes, node_of, notifier, order, pod_spec
from tests.real.test_kubernetes import RBAC
from tests.support.inprocess import eventually

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    needs_kubernetes(),
]
API = "resource.k8s.io/v1"
NVIDIA = "gpu.nvidia.com"
RULES = f"/apis/{API}/devicetaintrules"
CLAIMS = f"/apis/{API}/namespaces/default/resourceclaims"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A control plane in which a driver has published the GPUs of a node."""
    async with real_cluster(tmp_path_factory.mktemp("kubernetes-gpus")) as made:
        await made.apply(RBAC)
        selectors = [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]
        await made.create(
            {
                "apiVersion": API,
                "kind": "DeviceClass",
                "metadata": {"name": "gpu"},
                "spec": {"selectors": selectors},
            }
        )
        yield made


async def publish(cluster: Cluster, node: str, gpus: int) -> None:
    """Publish what a DRA driver publishes on a node."""
    devices = [
        {"name": f"gpu-{each}", "attributes": {"uuid": {"string": f"GPU-{node}-{each}"}}}
        for each in range(gpus)
    ]
    await cluster.create(
        {
            "apiVersion": API,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-gpus"},
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
    )


async def publish_as_nvidia(cluster: Cluster, node: str, gpus: int) -> None:
    """Publish what NVIDIA's driver does from Kubernetes 1.35 on, which partitions GPUs on demand.

    Counters in a slice of their own, then one for each GPU with its partitions, which have no
    UUID before they are made. Names, attributes and counters are the driver's; the driver itself
    needs NVML, and thus a GPU.
    """
    counted = {"memory-slice-0": {"value": "1"}, "multiprocessors": {"value": "132"}}
    counters = [{"name": f"gpu-{each}-counter-set", "counters": counted} for each in range(gpus)]
    slices: list[dict[str, Any]] = [{"sharedCounters": counters}]
    for each in range(gpus):
        uuid = {"string": f"GPU-{node}-{each}"}
        model = {"productName": {"string": "NVIDIA H100 80GB HBM3"}}
        taken = {"counterSet": f"gpu-{each}-counter-set", "counters": counted}
        profile = {"profile": {"string": "1g.10gb"}, "parentUUID": uuid}
        whole = {**model, "type": {"string": "gpu"}, "uuid": uuid}
        parts = {f"gpu-{each}": whole}
        parts[f"gpu-{each}-mig-1g10gb-19-0"] = {**model, **profile, "type": {"string": "mig"}}
        slices.append(
            {
                "devices": [
                    {"name": name, "attributes": about, "consumesCounters": [taken]}
                    for name, about in parts.items()
                ]
            }
        )
    for number, spec in enumerate(slices):
        pool = {"name": node, "generation": 1, "resourceSliceCount": len(slices)}
        await cluster.create(
            {
                "apiVersion": API,
                "kind": "ResourceSlice",
                "metadata": {"name": f"{node}-gpu.nvidia.com-{number}"},
                "spec": {"driver": NVIDIA, "nodeName": node, "pool": pool, **spec},
            }
        )


async def add_pod(cluster: Cluster, pool: str, name: str, kind: str = "gpu") -> None:
    """A pod that claims one GPU, or one device of another class."""
    exactly = {"deviceClassName": kind, "count": 1}
    requests = [{"name": "gpu", "exactly": exactly}]
    await cluster.create(
        {
            "apiVersion": API,
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": requests}},
        }
    )
    claims = [{"name": "gpu", "resourceClaimName": name}]
    about = {"name": name, "labels": {"app": pool}}
    spec = pod_spec(pool, resourceClaims=claims)
    await cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})


async def device_of(cluster: Cluster, name: str) -> str:
    """The GPU that a pod got; empty: none yet."""
    claim = await cluster.get(f"{CLAIMS}/{name}")
    found = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return str(found[0]["device"]) if found else ""


async def is_refused(cluster: Cluster, name: str) -> bool:
    """Return whether the scheduler has said that it has no place for a pod."""
    pod = await cluster.get(f"/api/v1/namespaces/default/pods/{name}")
    conditions: list[dict[str, Any]] = pod["status"].get("conditions", [])
    return any(each.get("reason") == "Unschedulable" for each in conditions)


def gpu_order(node: str, *gpus: int) -> WorkloadOrder:
    """Make an order about GPUs of a node."""
    named = tuple(GpuReference(index=each, uuid=f"GPU-{node}-{each}") for each in gpus)
    return msgspec.structs.replace(order(node, "cordon-gpus"), gpus=named)


async def test_the_scheduler_gives_no_pod_a_tainted_gpu(cluster: Cluster) -> None:
    """Once the right was granted: the other GPU is used, and the first again when it is lifted."""
    (node,) = await add_nodes(cluster, "single", 1)
    await publish(cluster, node, 2)
    async with notifier(cluster, gpu_cordon="device-taint") as made:
        with pytest.raises(PermissionError, match=f"resourceslices.*{GPU_GRANT}"):
            await made.cordon_gpus(gpu_order(node, 0))  # it is tried again
        missing = [each for each in await made.self_check() if not each.passed]
        assert {each.remedy for each in missing} == {GPU_GRANT}
        await cluster.apply(RBAC.with_name("notifier-gpu-rbac.yaml"))
        assert all(each.passed for each in await made.self_check())

        for _ in range(2):
            await made.cordon_gpus(gpu_order(node, 0))
        (rule,) = (await cluster.get(RULES))["items"]
        assert rule["spec"]["deviceSelector"]["device"] == "gpu-0"
        assert (await node_of(cluster, node))["metadata"]["labels"][FAULTY] == "0"

        for name in ("first", "second"):
            await add_pod(cluster, "single", name)

        async def settled() -> bool:
            got = [await device_of(cluster, each) for each in ("first", "second")]
            waits = [await is_refused(cluster, each) for each in ("first", "second")]
            return sorted(got) == ["", "gpu-1"] and sorted(waits) == [False, True]

        await eventually(settled, within_seconds=60, every=0.2)

        await made.cordon_gpus(gpu_order(node))
        assert (await cluster.get(RULES))["items"] == []
        assert FAULTY not in (await node_of(cluster, node))["metadata"]["labels"]

        async def both() -> bool:
            got = [await device_of(cluster, each) for each in ("first", "second")]
            return sorted(got) == ["gpu-0", "gpu-1"]

        await eventually(both, within_seconds=60, every=0.2)


async def test_the_rules_go_with_their_node(cluster: Cluster) -> None:
    """The node owns them; no order is needed for what is deleted."""
    (node,) = await add_nodes(cluster, "owned", 1)
    await publish(cluster, node, 1)
    await cluster.apply(RBAC.with_name("notifier-gpu-rbac.yaml"))
    async with notifier(cluster, gpu_cordon="device-taint") as made:
        await made.cordon_gpus(gpu_order(node, 0))
        assert len((await cluster.get(RULES))["items"]) == 1
        assert (await cluster.api.delete(f"/api/v1/nodes/{node}")).is_success

        async def gone() -> bool:
            return not (await cluster.get(RULES))["items"]

        await eventually(gone, within_seconds=90, every=0.5)


async def test_a_gpu_of_nvidias_driver_is_tainted_with_its_partitions(cluster: Cluster) -> None:
    """A pod that asks for a partition gets none of the faulty GPU, which has no UUID of its own."""
    (node,) = await add_nodes(cluster, "parts", 1)
    await publish_as_nvidia(cluster, node, 2)
    is_mig = f"device.attributes['{NVIDIA}'].type == 'mig'"
    selectors = [{"cel": {"expression": f"device.driver == '{NVIDIA}' && {is_mig}"}}]
    about = {"name": "mig.nvidia.com"}
    kind = {"apiVersion": API, "kind": "DeviceClass", "metadata": about}
    await cluster.create({**kind, "spec": {"selectors": selectors}})
    await cluster.apply(RBAC.with_name("notifier-gpu-rbac.yaml"))
    async with notifier(cluster, gpu_cordon="device-taint") as made:
        await made.cordon_gpus(gpu_order(node, 0))
        rules = (await cluster.get(RULES))["items"]
        chosen = [each["spec"]["deviceSelector"] for each in rules]
        mine = [each for each in chosen if each["driver"] == NVIDIA]
        assert {each["device"] for each in mine} == {"gpu-0", "gpu-0-mig-1g10gb-19-0"}
        assert {each["pool"] for each in mine} == {node}
        for name in ("part-1", "part-2"):
            await add_pod(cluster, "parts", name, "mig.nvidia.com")

        async def settled() -> bool:
            got = [await device_of(cluster, each) for each in ("part-1", "part-2")]
            waits = [await is_refused(cluster, each) for each in ("part-1", "part-2")]
            return sorted(got) == ["", "gpu-1-mig-1g10gb-19-0"] and sorted(waits) == [False, True]

        await eventually(settled, within_seconds=60, every=0.2)
        await made.cordon_gpus(gpu_order(node))

        async def both() -> bool:
            return all([await device_of(cluster, each) for each in ("part-1", "part-2")])

        await eventually(both, within_seconds=60, every=0.2)


async def test_the_metrics_source_counts_claims(cluster: Cluster) -> None:
    """One that the scheduler has allocated keeps its node busy, and one that waits needs GPUs."""
    (node,) = await add_nodes(cluster, "claims", 1)
    await publish(cluster, node, 1)
    await add_pod(cluster, "claims", "claims-first")
    await eventually(lambda: device_of(cluster, "claims-first"), within_seconds=60, every=0.2)
    await add_pod(cluster, "claims", "claims-second")
    await eventually(lambda: is_refused(cluster, "claims-second"), within_seconds=60, every=0.2)
    await cluster.apply(RBAC.with_name("pool-manager-rbac.yaml"))
    source = KubernetesSource(
        options=KubernetesSource.Options(
            kubeconfig=str(cluster.kubeconfig("pool-manager")),
            node_labels={"pool": "claims"},
            device_class="gpu",
        )
    )
    try:
        found = await source.load("training")
    finally:
        await source.close()
    assert (found.waiting, found.busy_nodes) == ((WaitingJobs(gpus=1),), 1)
