"""Drains on a real control plane: every kind of pod, names of nodes, deadlines, missing rights."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from schemas.duration import Duration
from services.notifier.workload.workload_notifier import NodeReference
from services.provisioner.provider_client.provider import Environment
from services.provisioner.providers.kubernetes import KubernetesProvider
from tests.real.kubernetes_cluster import Cluster, needs_kubernetes, real_cluster
from tests.real.kubernetes_work import (
    TOLERATE_ALL,
    add_budget,
    add_job,
    add_nodes,
    add_replicas,
    asked,
    cordoned,
    kinds,
    node_of,
    notifier,
    order,
    pod_spec,
    pods,
    reference,
    release,
    running,
    until_drained,
    until_said,
    workload,
)
from tests.support.cutting import Proxy
from tests.support.inprocess import eventually

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    needs_kubernetes(),
]
RBAC: Final = Path(__file__).parents[2] / "deploy/kubernetes/notifier-rbac.yaml"
ROLE: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles/navarch-notifier"
NODES_READ: Final = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
)
"""Rules of a role that may change nothing."""
PODS: Final = "/api/v1/namespaces/default/pods"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Start one control plane, with the notifier's rights."""
    async with real_cluster(tmp_path_factory.mktemp("kubernetes")) as made:
        await made.apply(RBAC)
        yield made


async def test_a_node_without_a_provider_id_is_drained(cluster: Cluster, tmp_path: Path) -> None:
    """The provider's name for it counts, whatever host name its agent reports from within a pod."""
    (name,) = await add_nodes(cluster, "bare-metal", 1, provider_ids=False)
    await add_replicas(cluster, "bare-metal", 1)
    provider = KubernetesProvider(
        options=KubernetesProvider.Options(
            selectors={"gpu": "pool=bare-metal"}, kubeconfig=str(cluster.kubeconfig("admin"))
        ),
        environment=Environment(name="k", fleet="f", nats_url="", data_dir=tmp_path),
    )
    try:
        (found,) = await provider.list()
    finally:
        await provider.close()
    assert found.provider_id.startswith("kubernetes://")
    about = NodeReference(
        pool="gpu",
        node=found.name,
        hostname="navarch-agent-x7k2p",
        provider="kubernetes",
        provider_id=found.provider_id,
    )
    async with notifier(cluster) as made:
        await made.drain(order(name, "drain", about=about))
        assert cordoned(await node_of(cluster, name)) == (True, True)

        async def drained() -> bool:
            answer = (await made.workloads([about]))[found.name]
            return getattr(answer, "drained", False)

        await eventually(drained, every=0.1)
        await made.uncordon(order(name, about=about))
    assert cordoned(await node_of(cluster, name)) == (False, False)


async def add_controlled(cluster: Cluster, kind: str, name: str, pool: str, **more: Any) -> None:
    """Create a StatefulSet or DaemonSet, and wait until its pods run."""
    spec = pod_spec(pool, tolerations=TOLERATE_ALL if kind == "DaemonSet" else [])
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    about = {"selector": {"matchLabels": {"app": name}}, "template": template, **more}
    made = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": about}
    await cluster.create(made)
    await running(cluster, name, 2)


async def add_pod(cluster: Cluster, name: str, node: str, **about: Any) -> None:
    """Create a pod without a controller on a node, and wait until it runs."""
    metadata = {"name": name, "labels": {"app": name}, **about}
    spec = {**pod_spec(""), "nodeName": node, "nodeSelector": {}}
    await cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    await running(cluster, name, 1)


async def on(cluster: Cluster, node: str) -> set[str]:
    """Return what runs on a node, by the labels of the pods."""
    found = (await cluster.get(f"{PODS}?fieldSelector=spec.nodeName={node}"))["items"]
    return {str(each["metadata"]["labels"]["app"]) for each in found}


async def test_every_kind_of_pod_leaves_or_says_why_it_stays(cluster: Cluster) -> None:
    """The pods of the node itself alone are left at the deadline."""
    first, second = await add_nodes(cluster, "kinds", 2)
    await add_controlled(cluster, "DaemonSet", "daemons", "kinds")
    await add_job(cluster, "kinds", 2)  # a gang on both
    await cluster.patch(f"/api/v1/nodes/{second}", {"spec": {"unschedulable": True}})
    await add_controlled(cluster, "StatefulSet", "state", "kinds", replicas=2, serviceName="state")
    protected = {"karpenter.sh/do-not-disrupt": "true"}
    for name, more in (
        ("replicas", {}),
        ("guarded", {}),
        ("stays", {"annotations": protected, "volumes": [{"name": "data", "emptyDir": {}}]}),
    ):
        await add_replicas(cluster, name, 1, pool="kinds", **more)
    await add_budget(cluster, "guarded", 1)
    await add_pod(cluster, "bare", first)
    mirror = {"kubernetes.io/config.mirror": "0", "kubernetes.io/config.source": "file"}
    node = (await node_of(cluster, first))["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": first, "uid": node["uid"]}
    await add_pod(
        cluster, "static", first, annotations=mirror, ownerReferences=[owner | {"controller": True}]
    )
    await cluster.patch(f"/api/v1/nodes/{second}", {"spec": {"unschedulable": False}})
    before = await on(cluster, first)
    assert {"replicas", "state", "guarded", "stays", "bare", "static"} < before
    async with notifier(cluster) as made:
        await made.drain(order(first, "drain"))
        stays = {"kinds", "guarded", "stays", "bare", "static", "daemons"}

        async def left() -> bool:
            return await on(cluster, first) == stays

        await eventually(left, every=0.1)
        said = (await until_said(made, first, "disruption budget")).detail
        for words in (
            "waits for its disruption budget",
            "needs 1 healthy pods and has 1 currently): default/guarded-",
            "left until the deadline, karpenter.sh/do-not-disrupt=true: default/stays-",
            "left until the deadline, no controller would recreate it: default/bare",
            "left until the deadline, it runs to completion: default/kinds-",
            "emptyDir, lost with the pod: default/stays-",
            "of a gang on several nodes, which ends with it: default/kinds-",
        ):
            assert words in said, said
        assert "static" not in said
        assert "daemons" not in said
        await made.evict(order(first, "drain"))
        await until_drained(made, first)
    assert await on(cluster, first) == {"static", "daemons"}


async def test_a_drain_that_expired_evicts_no_more(cluster: Cluster) -> None:
    """The node is not drained while pods run; another deadline has evictions begin again."""
    first, _ = await add_nodes(cluster, "expired", 2)
    await add_replicas(cluster, "expired", 4)
    await add_budget(cluster, "expired", 4)
    async with notifier(cluster, at_deadline="leave") as made:
        await made.drain(order(first, "drain", ends=timedelta(seconds=3)))
        await until_said(made, first, "disruption budget")

        async def over() -> bool:
            return (await workload(made, first)).detail == ""

        await eventually(over, every=0.1)
        begun = len(asked(cluster))
        await made.evict(order(first, "drain"))
        await release(cluster, "expired")
        await asyncio.sleep(12)  # two of an evictor's intervals
        assert kinds(asked(cluster, begun))["create/pods/eviction"] == 0
        found = await workload(made, first)
        assert not found.drained
        assert found.total > 0
        await made.drain(order(first, "drain"))
        await until_drained(made, first)


async def test_a_deadline_without_an_answer_deletes_nothing(cluster: Cluster) -> None:
    """No disruption budget could be asked: the order fails, and is carried out later."""
    first, _ = await add_nodes(cluster, "silent", 2)
    await add_replicas(cluster, "silent", 4)
    await add_budget(cluster, "silent", 4)
    before = {each["metadata"]["uid"] for each in await pods(cluster, "silent")}
    proxy = Proxy(cluster.port)
    await proxy.restore()
    async with notifier(cluster, port=proxy.port, timeout=Duration(2)) as made:
        await made.workloads([reference(first)])
        await proxy.hold()
        with pytest.raises((TimeoutError, ConnectionError)):
            await made.evict(order(first, "drain"))
        proxy.pass_on()
        found = await pods(cluster, "silent")
        assert {each["metadata"]["uid"] for each in found} == before
        assert not any(each["metadata"].get("deletionTimestamp") for each in found)
        await made.drain(order(first, "drain"))
        await made.evict(order(first, "drain"))
        await until_drained(made, first)
    await proxy.cut()


async def test_rights_that_are_missing_for_a_while_stop_nothing(cluster: Cluster) -> None:
    """Orders are to be repeated, evictions go on; both as soon as the rights are there again."""
    first, second = await add_nodes(cluster, "rights", 2)
    await add_replicas(cluster, "rights", 4)
    await add_budget(cluster, "rights", 4)
    rules = (await cluster.get(ROLE))["rules"]
    async with notifier(cluster) as made:
        await made.drain(order(first, "drain"))
        await until_said(made, first, "disruption budget")
        await cluster.patch(ROLE, {"rules": NODES_READ})
        await until_said(made, first, "cannot be evicted")
        with pytest.raises(PermissionError, match='cannot patch resource "nodes"'):
            await made.cordon(order(second))
        await release(cluster, "rights")
        assert not (await workload(made, first)).drained
        await cluster.patch(ROLE, {"rules": rules})
        await until_drained(made, first)
        await made.cordon(order(second))
    assert cordoned(await node_of(cluster, second)) == (True, True)
