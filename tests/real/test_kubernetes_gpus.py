"""Pods are kept off a single GPU by a real control plane, whose scheduler allocates its devices."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from services.notifier.workload.kubernetes.gpu_taints import FAULTY
from services.notifier.workload.workload_notifier import (
    GpuReference,
    StepFailure,
    WorkloadOrder,
)
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
    """What a DRA driver publishes on a node."""
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


async def add_pod(cluster: Cluster, pool: str, name: str) -> None:
    """A pod that claims one GPU."""
    exactly = {"deviceClassName": "gpu", "count": 1}
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
    """Whether the scheduler has said that it has no place for a pod."""
    pod = await cluster.get(f"/api/v1/namespaces/default/pods/{name}")
    conditions: list[dict[str, Any]] = pod["status"].get("conditions", [])
    return any(each.get("reason") == "Unschedulable" for each in conditions)


def gpu_order(node: str, *gpus: int) -> WorkloadOrder:
    """An order about GPUs of a node."""
    named = tuple(GpuReference(index=each, uuid=f"GPU-{node}-{each}") for each in gpus)
    return msgspec.structs.replace(order(node, "cordon-gpus"), gpus=named)


async def test_the_scheduler_gives_no_pod_a_tainted_gpu(cluster: Cluster) -> None:
    """Once the right was granted: the other GPU is used, and the first again when it is lifted."""
    (node,) = await add_nodes(cluster, "single", 1)
    await publish(cluster, node, 2)
    async with notifier(cluster, gpu_cordon="device-taint") as made:
        with pytest.raises(StepFailure, match="resourceslices") as refused:
            await made.cordon_gpus(gpu_order(node, 0))
        assert refused.value.remedy.endswith("notifier-gpu-rbac.yaml")
        missing = [each for each in await made.self_check() if not each.passed]
        assert {each.remedy for each in missing} == {refused.value.remedy}
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
