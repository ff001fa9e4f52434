"""The Kubernetes notifier works with a real control plane, through cuts, restarts and crashes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from services.notifier.workload.drain_watch import DrainWatch
from services.notifier.workload.kubernetes.kubernetes_rights import RIGHTS
from services.notifier.workload.kubernetes_notifier import KubernetesNotifier
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    StepFailure,
    WorkloadOrder,
)
from services.primitives.clock import SystemClock
from tests.real.kubernetes_cluster import Cluster, needs_kubernetes, real_cluster
from tests.real.kubernetes_work import (
    TOLERATE_ALL,
    add_budget,
    add_job,
    add_nodes,
    add_replicas,
    cordoned,
    events_of,
    node_of,
    notifier,
    order,
    pods,
    reference,
    running,
    until_drained,
    until_said,
    workload,
)
from tests.real.test_kubernetes_page import blocks
from tests.support.cutting import Proxy
from tests.support.inprocess import eventually

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    needs_kubernetes(),
]
RBAC = Path(__file__).parents[2] / "deploy/kubernetes/notifier-rbac.yaml"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """One control plane for every test, each of which has its own nodes."""
    async with real_cluster(tmp_path_factory.mktemp("kubernetes")) as made:
        await made.apply(RBAC)
        yield made


async def test_a_cordon_is_visible_and_undone(cluster: Cluster) -> None:
    """Unschedulable, tainted, with a condition and one event; uncordoned, it is as before."""
    (name,) = await add_nodes(cluster, "visible", 1)
    async with notifier(cluster) as made:
        await made.cordon(order(name))
        await made.cordon(order(name))
        node = await node_of(cluster, name)
        assert cordoned(node) == (True, True)
        ours = [each for each in node["status"]["conditions"] if each["type"] == "NavarchCordoned"]
        assert ours[0]["status"] == "True"
        assert ours[0]["message"] == "XID 79 on GPU 3; Navarch replace-visible-0/cordon, pool gpu"
        assert await events_of(cluster, name) == ["NavarchCordoned"]
        await made.uncordon(order(name))
        node = await node_of(cluster, name)
        assert cordoned(node) == (False, False)
        assert "annotations" not in node["metadata"] or not [
            each for each in node["metadata"]["annotations"] if "navarch" in each
        ]
        assert await events_of(cluster, name) == ["NavarchCordoned", "NavarchUncordoned"]


async def test_what_an_administrator_cordoned_stays_cordoned(cluster: Cluster) -> None:
    """An administrator's cordon survives Navarch's own; the instance's ID finds the node."""
    (name,) = await add_nodes(cluster, "admin", 1)
    await cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    by_id = order(name)
    about = reference("other-name", provider="aws", provider_id=f"i-{name}")
    by_id = type(by_id)(node=about, reason=by_id.reason, key=by_id.key)
    async with notifier(cluster) as made:
        await made.uncordon(by_id)
        assert cordoned(await node_of(cluster, name)) == (True, False)
        await made.cordon(by_id)
        assert cordoned(await node_of(cluster, name)) == (True, True)
        await made.uncordon(by_id)
        assert cordoned(await node_of(cluster, name)) == (True, False)


async def test_a_drain_waits_for_the_disruption_budget(cluster: Cluster) -> None:
    """The budget holds the pod; what waits is named; when the budget allows it, the pod leaves."""
    names = await add_nodes(cluster, "budget", 2)
    await add_replicas(cluster, "budget", 2)
    await add_budget(cluster, "budget", 2)
    (name, *_) = [(await pods(cluster, "budget"))[0]["spec"]["nodeName"], *names]
    before = {each["metadata"]["uid"] for each in await pods(cluster, "budget")}
    async with notifier(cluster) as made:
        await made.drain(order(name, "drain"))
        found = await until_said(made, name, "disruption budget")
        assert "needs 2 healthy pods and has 2 currently" in found.detail
        assert {each["metadata"]["uid"] for each in await pods(cluster, "budget")} == before
        await cluster.patch(
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets/budget",
            {"spec": {"minAvailable": 1}},
        )
        await until_drained(made, name)
    await running(cluster, "budget", 2)
    assert await pods(cluster, "budget", name) == []


async def test_a_job_runs_until_the_deadline(cluster: Cluster) -> None:
    """The pods of a job are not evicted; nodes of one job are known; the deadline deletes them."""
    first, second = await add_nodes(cluster, "job", 2)
    await add_job(cluster, "job", 2)
    async with notifier(cluster) as made:
        await made.drain(order(first, "drain"))
        found = await until_said(made, first, "it runs to completion")
        (work,) = found.running
        assert (work.name, work.owner, work.gang) == ("job", "default", "default/Job/job")
        assert work.started_at is not None
        assert work.ends_at is not None
        assert work.started_at < work.ends_at
        (pod,) = await pods(cluster, "job", first)
        assert "deletionTimestamp" not in pod["metadata"]
        await made.evict(order(first, "drain"))
        await until_drained(made, first)
        assert len(await pods(cluster, "job", second)) == 1
        assert "NavarchDeadline" in await events_of(cluster, first)


async def test_the_pods_of_a_job_are_asked_for_a_checkpoint_once(cluster: Cluster) -> None:
    """Pods are asked on all nodes of a job whose owner says so, once the right was granted."""
    first, second = await add_nodes(cluster, "checkpoint", 2)
    [page] = [each for each in blocks("yaml") if "downwardAPI" in each]
    template = yaml.safe_load(page)
    marked = template["metadata"]["annotations"]
    await add_job(cluster, "checkpoint", 2, marked, volumes=template["spec"]["volumes"])
    async with notifier(cluster, checkpoint_pods=True) as made:
        grant = 'cannot patch resource "pods".*apply -f .*/notifier-checkpoint-rbac.yaml'
        with pytest.raises(PermissionError, match=grant):  # it is tried again
            await made.checkpoint(order(first, "checkpoint"))
        await cluster.apply(RBAC.with_name("notifier-checkpoint-rbac.yaml"))
        (work,) = await made.checkpoint(order(first, "checkpoint"))
        assert (work.name, work.gang) == ("checkpoint", "default/Job/checkpoint")
        found = await pods(cluster, "checkpoint")
        by = "pod.navarch.io/checkpoint-by"
        assert all(by in each["metadata"]["annotations"] for each in found)

        async def seen() -> bool:
            before = await pods(cluster, "checkpoint")
            await made.checkpoint(order(second, "checkpoint"))
            return versions(await pods(cluster, "checkpoint")) == versions(before)

        await eventually(seen)
        assert not (await workload(made, first)).drained


def versions(found: list[dict[str, Any]]) -> list[str]:
    """Return the versions of objects, which differ if any of them has changed."""
    return sorted(each["metadata"]["resourceVersion"] for each in found)


async def test_a_job_that_finishes_ends_the_drain(cluster: Cluster) -> None:
    """The end of a job is pushed: the drain ends long before the next poll."""
    (name,) = await add_nodes(cluster, "finish", 1)
    await add_job(cluster, "finish", 1)
    async with notifier(cluster) as made:
        await made.drain(order(name, "drain"))
        drained = asyncio.create_task(DrainWatch(made, SystemClock()).drained(reference(name)))
        await until_said(made, name, "it runs to completion")
        (pod,) = await pods(cluster, "finish", name)
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        await cluster.patch(path, {"metadata": {"annotations": {"test/finish": "1"}}})
        async with asyncio.timeout(4):
            await drained


async def test_pods_that_refuse_leave_late_or_come_back(cluster: Cluster) -> None:
    """One terminates only later; one tolerates everything, comes back and is evicted again."""
    (name,) = await add_nodes(cluster, "refuse", 1)
    await add_replicas(cluster, "refuse", 1, annotations={"test/refuse": "1"})
    async with notifier(cluster) as made:
        await made.drain(order(name, "drain"))
        await until_said(made, name, "terminating")
        await made.evict(order(name, "drain"))
        await cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": False}})
        assert not (await workload(made, name)).drained
        for each in await pods(cluster, "refuse", name):
            path = f"/api/v1/namespaces/default/pods/{each['metadata']['name']}"
            await cluster.patch(path, {"metadata": {"annotations": {"test/refuse": None}}})
        await until_drained(made, name)  # the taint keeps its replacement away

    (name,) = await add_nodes(cluster, "back", 1)
    await add_replicas(cluster, "back", 1, tolerations=TOLERATE_ALL)
    first = (await pods(cluster, "back", name))[0]["metadata"]["uid"]
    seen = {first}
    async with notifier(cluster) as made:
        await made.drain(order(name, "drain"))

        async def evicted_again() -> bool:
            seen.update(each["metadata"]["uid"] for each in await pods(cluster, "back", name))
            return len(seen) > 2

        await eventually(evicted_again, every=0.02)


async def test_a_cut_watch_is_resumed(cluster: Cluster) -> None:
    """Events during the cut are known after it; a held connection changes nothing."""
    first, second = await add_nodes(cluster, "cut", 2)
    await add_job(cluster, "cut", 2)
    proxy = Proxy(cluster.port)
    await proxy.restore()
    async with notifier(cluster, port=proxy.port) as made:
        for each in (first, second):
            await made.drain(order(each, "drain"))
            await until_said(made, each, "it runs to completion")
        await proxy.cut()
        (pod,) = await pods(cluster, "cut", first)
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        await cluster.patch(path, {"metadata": {"annotations": {"test/finish": "1"}}})
        assert not (await workload(made, first)).drained
        await proxy.restore()
        await until_drained(made, first)
        assert not (await workload(made, second)).drained
    await proxy.cut()


async def test_the_api_server_is_killed_during_a_drain(cluster: Cluster) -> None:
    """Nothing is drained meanwhile; afterwards the drain ends, and evictions go on."""
    first, second = await add_nodes(cluster, "killed", 2)
    await add_replicas(cluster, "killed", 4)
    await add_budget(cluster, "killed", 4)
    async with notifier(cluster) as made:
        await made.drain(order(first, "drain"))
        await until_said(made, first, "disruption budget")
        await cluster.kill("kube-apiserver")
        assert not (await workload(made, first)).drained
        with pytest.raises(Exception):  # noqa: B017 - whatever the connection says
            await made.cordon(order(second))
        await cluster.start_api()
        await cluster.patch(
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets/killed",
            {"spec": {"minAvailable": 0}},
        )
        await until_drained(made, first)
        await made.cordon(order(second))
    assert await events_of(cluster, first) == ["NavarchDraining"]


async def test_the_pods_of_a_machine_that_is_gone_are_recreated(cluster: Cluster) -> None:
    """The drain ends though no kubelet confirms anything, and the pod runs on another node."""
    first, second = await add_nodes(cluster, "gone", 2)
    await add_replicas(cluster, "gone", 1, annotations={"test/refuse": "1"})
    (pod,) = await pods(cluster, "gone")
    name = pod["spec"]["nodeName"]
    other = second if name == first else first
    path = f"/api/v1/nodes/{name}"
    await cluster.patch(path, {"metadata": {"annotations": {"test/dead": "1"}}})
    ready = {"type": "Ready", "status": "False", "reason": "Dead", "message": "dead"}
    await cluster.patch(f"{path}/status", {"status": {"conditions": [ready]}})
    about = order(name, "drain")
    gone = NodeReference(pool="gpu", node=f"gpu-{name}", hostname=name, gone=True)
    async with notifier(cluster) as made:
        await made.drain(WorkloadOrder(node=gone, key=about.key))

        async def recreated() -> bool:
            found = await pods(cluster, "gone")
            return [each["spec"]["nodeName"] for each in found] == [other]

        await eventually(recreated, within_seconds=90, every=0.5)
        await until_drained(made, name)


async def test_a_node_that_kubernetes_does_not_know_is_refused(cluster: Cluster) -> None:
    """An unknown node may be there under another name, unless it is lost.

    A new node is waited for.
    """
    unknown = order("nowhere")
    async with notifier(cluster) as made:
        for call in (made.cordon, made.drain):
            with pytest.raises(StepFailure, match="Kubernetes has no node 'nowhere'"):
                await call(unknown)
        answer = (await made.workloads([unknown.node]))["gpu-nowhere"]
        assert isinstance(answer, StepFailure)
        with pytest.raises(RuntimeError, match="its kubelet has not joined"):
            await made.cordon(order("nowhere", "reserve"))
        await made.uncordon(unknown)
        lost = NodeReference(pool="gpu", node="n", hostname="nowhere", lost=True)
        await made.drain(WorkloadOrder(node=lost, key="s/drain"))
        answer = (await made.workloads([lost]))["n"]
        assert isinstance(answer, NodeWorkload)
        assert answer.drained
    (name,) = await add_nodes(cluster, "removed", 1)
    async with notifier(cluster) as made:
        assert not (await workload(made, name)).drained  # it is not cordoned
        assert (await cluster.api.delete(f"/api/v1/nodes/{name}")).is_success
        await until_drained(made, name)
    async with notifier(cluster, unknown_nodes="ignore") as made:
        await made.cordon(unknown)
        assert (await workload(made, "nowhere")).drained


class Killed(BaseException):
    """The process ended."""


def kill_at(made: KubernetesNotifier, number: int, *, after: bool) -> None:
    """End the process at its n-th call that changes something, before or after its effect."""
    call, calls = made._client.call, iter(range(1000))

    async def counted(method: str, path: str, **given: Any) -> bytes:
        if method == "GET" or next(calls) != number:
            return await call(method, path, **given)
        if after:
            await call(method, path, **given)
        raise Killed

    made._client.call = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("after", [False, True])
async def test_a_notifier_that_is_killed_at_any_call(cluster: Cluster, after: bool) -> None:
    """The successor completes the order: one cordon, one drain, no pod ended too early."""
    pool = f"kill-{after}".lower()
    (name,) = await add_nodes(cluster, pool, 1)
    await add_job(cluster, pool, 1)
    (pod,) = await pods(cluster, pool, name)
    for step in ("cordon", "drain", "evict", "uncordon"):
        for number in range(4):
            async with notifier(cluster) as made:
                kill_at(made, number, after=after)
                try:
                    await getattr(made, step)(order(name, "drain" if step == "evict" else step))
                except Killed:
                    pass
                else:
                    break
            if step in ("cordon", "drain"):
                assert await pods(cluster, pool, name) == [pod], (step, number)
        async with notifier(cluster) as made:
            await getattr(made, step)(order(name, "drain" if step == "evict" else step))
            if step == "drain":
                assert not (await workload(made, name)).drained
            if step == "evict":
                await until_drained(made, name)
        closed = step != "uncordon"
        assert cordoned(await node_of(cluster, name)) == (closed, closed)
    reasons = await events_of(cluster, name)
    assert len(reasons) == len(set(reasons))


@pytest.mark.timeout(600)
async def test_a_thousand_nodes(cluster: Cluster) -> None:
    """200 of 1,000 nodes, all with pods, are drained at once."""
    names = await add_nodes(cluster, "many", 1000)
    await add_replicas(cluster, "many", 400)
    busy = {each["spec"]["nodeName"] for each in await pods(cluster, "many")}
    chosen = sorted(busy)[:200]
    assert len(chosen) == 200
    async with notifier(cluster) as made:
        watch = DrainWatch(made, SystemClock())
        await asyncio.gather(*(made.drain(order(each, "drain")) for each in chosen))
        async with asyncio.timeout(180):
            await asyncio.gather(*(watch.drained(reference(each)) for each in chosen))
    left = {each["spec"]["nodeName"] for each in await pods(cluster, "many")}
    assert not left & set(chosen)
    assert all([cordoned(await node_of(cluster, each)) == (True, True) for each in chosen[:20]])
    others = [each for each in names if each not in chosen]
    assert cordoned(await node_of(cluster, others[0])) == (False, False)


async def test_every_right_of_the_manifest_is_needed_and_named(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """An error or the log names each missing right; the manifest has no other."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/navarch-notifier"
    rules = (await cluster.get(path))["rules"]
    granted = [
        (resource, verb, group)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert sorted(granted) == sorted(RIGHTS)
    for number, (resource, verb, _) in enumerate(RIGHTS):
        pool = f"right-{number}"
        (name,) = await add_nodes(cluster, pool, 1)
        stays = {"karpenter.sh/do-not-disrupt": "true"} if verb == "delete" else {}
        await add_replicas(cluster, pool, 1, annotations=stays)
        reduced = [
            {"apiGroups": [group], "resources": [each], "verbs": [other]}
            for each, other, group in RIGHTS
            if (each, other) != (resource, verb)
        ]
        await cluster.patch(path, {"rules": reduced})
        words = f'cannot {verb} resource "{resource}"'
        async with notifier(cluster) as made:
            checks = await made.self_check()
            lacks = [each.what for each in checks if not each.passed]
            assert lacks == [f"right to {verb} {resource}"]
        caplog.clear()
        said = await tried(cluster, name, words, caplog)
        assert words in said, (resource, verb, said)
    await cluster.patch(path, {"rules": rules})
    async with notifier(cluster) as made:

        async def passes() -> bool:
            return all(each.passed for each in await made.self_check())

        await eventually(passes)


async def tried(cluster: Cluster, name: str, words: str, caplog: pytest.LogCaptureFixture) -> str:
    """Everything a notifier says while it cordons, drains and evicts, until it says `words`."""
    said: list[str] = []

    def everything() -> str:
        logged = [f"{each.message} {each.__dict__.get('reason')}" for each in caplog.records]
        return "\n".join([*said, *logged])

    async with notifier(cluster) as made:
        steps = [
            lambda: made.cordon(order(name)),
            lambda: made.drain(order(name, "drain")),
            lambda: made.workloads([reference(name)]),
        ]
        if "delete" in words:  # else it could be faster than the first eviction
            steps.append(lambda: made.evict(order(name, "drain")))

        async def heard() -> bool:
            for step in steps:
                try:
                    await step()
                except Exception as error:  # noqa: BLE001 - what it says is what is tested
                    said.append(str(error))
            return words in everything()

        await eventually(heard, within_seconds=20, every=0.2)
    return everything()
