"""Kubernetes' objects give which node, which pods and which changes are meant. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.notifier.workload.kubernetes import kubernetes_nodes as nodes
from services.notifier.workload.kubernetes import kubernetes_pods as pods
from services.notifier.workload.workload_notifier import NodeReference
from services.workload_systems.kubernetes_objects import (
    CORDONED,
    OUT_OF_SERVICE,
    KubernetesNode,
    KubernetesPod,
)

NOW = datetime(2026, 11, 22, tzinfo=UTC)
INDEXED = {"batch.kubernetes.io/job-completion-index": "0"}
GROUP = {
    "leaderworkerset.sigs.k8s.io/name": "serve",
    "leaderworkerset.sigs.k8s.io/group-index": "1",
}
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"


def node(name: str = "n1", provider_id: str = "", **given: Any) -> KubernetesNode:
    """A node as the API returns it."""
    spec = {"providerID": provider_id, **given.pop("spec", {})}
    about = {"name": name, "resourceVersion": "7", **given}
    return msgspec.convert({"metadata": about, "spec": spec}, KubernetesNode)


def pod(name: str = "p", owner: str = "ReplicaSet/web", **given: Any) -> KubernetesPod:
    """A running pod as the API returns it."""
    kind, _, of = owner.partition("/")
    owners = [{"kind": kind, "name": of, "controller": True}] if owner else []
    about = {"name": name, "namespace": "ml", "uid": name, "ownerReferences": owners}
    about |= given.pop("metadata", {})
    status = {"phase": "Running", "startTime": "2026-11-22T10:00:00Z"} | given.pop("status", {})
    return msgspec.convert({"metadata": about, "spec": given, "status": status}, KubernetesPod)


def merged(found: KubernetesNode, patch: Any) -> KubernetesNode:
    """Return what the API makes of a merge patch."""

    def merge(into: Any, what: Any) -> Any:
        if not isinstance(what, dict):
            return what
        kept = dict(into) if isinstance(into, dict) else {}
        for key, value in what.items():
            kept.pop(key, None) if value is None else kept.update(
                {key: merge(kept.get(key), value)}
            )
        return kept

    return msgspec.convert(merge(msgspec.to_builtins(found), patch or {}), KubernetesNode)


@pytest.mark.parametrize(
    ("provider", "provider_id", "given_id", "is_it"),
    [
        ("aws", "i-0abc", "aws:///us-east-1a/i-0abc", True),
        ("aws", "i-0abc", "aws:///us-east-1a/i-0abcd", False),
        ("aws", "i-0abc", "aws:///us-east-1a/xi-0abc", False),
        ("gcp", "us-central1-a/vm-1", "gce://project/us-central1-a/vm-1", True),
        ("gcp", "us-central1-b/vm-1", "gce://project/us-central1-a/vm-1", False),
        ("azure", "vm-1", "azure:///subscriptions/S/resourceGroups/g/virtualMachines/VM-1", True),
        ("ssh", "host-1", "", False),
        ("aws", "", "aws:///us-east-1a/i-0abc", False),
    ],
)
def test_a_provider_id_leads_to_the_instance(provider, provider_id, given_id, is_it):
    """The instance's ID is a whole part at the end of `spec.providerID`."""
    reference = NodeReference(pool="t", node="t-1", provider=provider, provider_id=provider_id)
    assert nodes.is_of(node(provider_id=given_id), reference) is is_it
    found = nodes.find_node(None, [node(provider_id=given_id)], reference)
    assert (found is not None) is is_it


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("GPU-1.Example.com", "gpu-1.example.com"),
        ("n1/proxy", ""),
        ("../pods", ""),
        ("n1?watch=1", ""),
        ("", ""),
        ("a" * 254, ""),
    ],
)
def test_a_name_is_written_as_the_kubelet_does(name, valid):
    """Lower case; a host name that an agent made up reaches no other path of the API."""
    assert nodes.valid_name(name) == valid


def test_a_later_node_of_the_same_name_is_another():
    """A name that a replacement took over does not lead to the replacement."""
    reference = NodeReference(pool="t", node="t-1", provider="aws", provider_id="i-old")
    later = node(provider_id="aws:///z/i-new")
    assert nodes.find_node(later, [later], reference) is None
    unknown = node(provider_id="k3s://n1")  # of no cloud: the name decides
    assert nodes.find_node(unknown, [], reference) is unknown
    # Of an adopted node its whole `spec.providerID` is known, or else the object's uid.
    for known, found in (("aws:///z/i-new", later), ("aws:///z/i-old", None), ("k3s://n2", None)):
        adopted = NodeReference(pool="t", node="t-1", provider="cluster", provider_id=known)
        assert nodes.find_node(later, [later], adopted) is found
    bare = node(provider_id="")
    itself = msgspec.structs.replace(adopted, provider_id=f"kubernetes://{bare.metadata.uid}")
    assert nodes.find_node(bare, [], itself) is bare


def test_a_cordon_is_undone_exactly():
    """Cordon, drain and uncordon restore the node; each repeated changes nothing."""
    taint = {"key": "gpu", "value": "h100", "effect": "NoSchedule"}
    before = node(annotations={"a": "b"}, spec={"taints": [taint]})
    cordoned = merged(before, nodes.cordon_patch(before, "s/cordon", drain=False))
    assert cordoned.spec.unschedulable
    assert {each["key"] for each in cordoned.spec.taints} == {"gpu", CORDONED}
    assert set(nodes.PROTECTIONS) <= set(cordoned.metadata.annotations)
    assert nodes.cordon_patch(cordoned, "other", drain=False) is None
    draining = merged(cordoned, nodes.cordon_patch(cordoned, "s/drain", drain=True))
    assert nodes.draining_nodes([cordoned, draining], NOW) == ["n1"]
    assert nodes.cordon_patch(draining, "s/drain", drain=True) is None
    assert merged(draining, nodes.uncordon_patch(draining)) == before
    assert nodes.uncordon_patch(before) is None


def test_a_drain_ends_at_its_deadline():
    """The mark stays for the report; another order sets another time, and an uncordon clears it."""
    before = node()
    until = NOW + timedelta(hours=1)
    draining = merged(before, nodes.cordon_patch(before, "s/drain", drain=True, until=until))
    assert nodes.cordon_patch(draining, "s/drain", drain=True, until=until) is None
    assert nodes.draining_nodes([draining], NOW) == ["n1"]
    assert nodes.draining_nodes([draining], until) == []
    later = nodes.cordon_patch(draining, "t/drain", drain=True, until=until + timedelta(hours=1))
    assert nodes.draining_nodes([merged(draining, later)], until) == ["n1"]
    endless = merged(draining, nodes.cordon_patch(draining, "t/drain", drain=True))
    assert nodes.draining_nodes([endless], until) == ["n1"]
    assert merged(draining, nodes.uncordon_patch(draining)) == before


def test_what_an_administrator_cordoned_stays_so():
    """A node that was unschedulable before Navarch cordoned it is unschedulable afterwards."""
    before = node(spec={"unschedulable": True}, annotations={DO_NOT_DISRUPT: "true"})
    assert nodes.uncordon_patch(before) is None
    cordoned = merged(before, nodes.cordon_patch(before, "s/cordon", drain=True))
    assert merged(cordoned, nodes.uncordon_patch(cordoned)) == before


def test_an_uncordon_by_another_leaves_the_taint():
    """`kubectl uncordon` during a drain: nothing new is placed, and the drain goes on."""
    before = node()
    draining = merged(before, nodes.cordon_patch(before, "s/drain", drain=True))
    opened = merged(draining, {"spec": {"unschedulable": None}})
    assert nodes.is_closed(opened)
    again = merged(opened, nodes.cordon_patch(opened, "s/drain", drain=True))
    assert again.spec.unschedulable
    assert merged(again, nodes.uncordon_patch(again)) == before


def test_a_machine_that_is_gone_is_out_of_service():
    """A drain says so to Kubernetes, once; the taint of an administrator stays."""
    before = node()
    cordoned = merged(before, nodes.cordon_patch(before, "s/cordon", drain=False))
    gone = merged(cordoned, nodes.cordon_patch(cordoned, "s/drain", drain=True, gone=True))
    assert {each["key"] for each in gone.spec.taints} == {CORDONED, OUT_OF_SERVICE}
    assert nodes.cordon_patch(gone, "s/drain", drain=True, gone=True) is None
    assert merged(gone, nodes.uncordon_patch(gone)) == before
    theirs = {"key": OUT_OF_SERVICE, "value": "shutdown", "effect": "NoExecute"}
    before = node(spec={"taints": [theirs]})
    gone = merged(before, nodes.cordon_patch(before, "s/drain", drain=True, gone=True))
    assert merged(gone, nodes.uncordon_patch(gone)) == before


@given(
    unschedulable=st.booleans(),
    annotations=st.sets(st.sampled_from([*nodes.PROTECTIONS, "a"])),
    orders=st.lists(st.sampled_from(["cordon", "drain"]), min_size=1, max_size=4),
)
def test_any_orders_are_undone_by_one_uncordon(unschedulable, annotations, orders):
    """One uncordon leaves what was there before, whatever was ordered."""
    before = node(
        annotations=dict.fromkeys(annotations, "true"), spec={"unschedulable": unschedulable}
    )
    found = before
    for each in orders:
        found = merged(found, nodes.cordon_patch(found, each, drain=each == "drain"))
    assert nodes.is_closed(found)
    assert merged(found, nodes.uncordon_patch(found)) == before


@pytest.mark.parametrize(
    ("given", "holds", "why"),
    [
        (pod(), True, ""),
        (pod(owner="StatefulSet/db"), True, ""),
        (pod(owner="DaemonSet/logs"), False, ""),
        (pod(metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}), False, ""),
        (pod(status={"phase": "Succeeded"}), False, ""),
        (pod(status={"phase": "Failed"}), False, ""),
        (pod(status={"phase": "Pending"}), True, ""),
        (pod(owner=""), True, "no controller would recreate it"),
        (pod(owner="Job/train", restartPolicy="Never"), True, "it runs to completion"),
        (pod(owner="PyTorchJob/t", restartPolicy="OnFailure"), True, "it runs to completion"),
        (pod(owner="MPIJob/t"), True, "it runs to completion"),
        (pod(metadata={"annotations": {DO_NOT_DISRUPT: "true"}}), True, f"{DO_NOT_DISRUPT}=true"),
        (
            pod(
                metadata={
                    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
                }
            ),
            True,
            "cluster-autoscaler.kubernetes.io/safe-to-evict=false",
        ),
    ],
)
def test_which_pods_hold_a_node_and_which_wait(given, holds, why):
    """DaemonSet, static and finished pods hold no node; some wait for the deadline."""
    assert pods.holds_node(given) is holds
    if holds:
        assert pods.waits_because(given, "finish") == why
    assert pods.evictable([given], "finish") == ([given] if holds and not why else [])


def test_batch_pods_are_evicted_where_that_is_configured():
    """`batch_pods: evict` treats a job's pods like every other."""
    job = pod(owner="Job/train", restartPolicy="Never")
    assert pods.evictable([job], "evict") == [job]
    leaving = pod(metadata={"deletionTimestamp": "2026-11-22T10:00:00Z"})
    assert pods.evictable([leaving], "evict") == []


@pytest.mark.parametrize(
    ("given", "job"),
    [
        (pod(), ""),
        (pod(owner=""), ""),
        (pod(owner="Job/sweep"), ""),
        (pod(owner="Job/train", metadata={"annotations": INDEXED}), "ml/Job/train"),
        (pod(owner="", schedulingGroup={"podGroupName": "g"}), "ml/PodGroup/g"),
        (
            pod(owner="StatefulSet/s", metadata={"labels": GROUP}),
            "ml/LeaderWorkerSet/serve-1",
        ),
        (pod(owner="PyTorchJob/llm"), "ml/PyTorchJob/llm"),
        (pod(owner="MPIJob/llm"), "ml/MPIJob/llm"),
        (
            pod(owner="Job/js-w-0", metadata={"labels": {"jobset.sigs.k8s.io/jobset-name": "js"}}),
            "ml/JobSet/js",
        ),
        (
            pod(owner="", metadata={"labels": {"kueue.x-k8s.io/pod-group-name": "g"}}),
            "ml/PodGroup/g",
        ),
    ],
)
def test_pods_of_one_job_have_one_gang(given, job):
    """A gang is named by the label of its controller's owner, else by the controller."""
    assert pods.gang(given) == job


def test_what_still_runs_is_reported():
    """Names, owners, ends and gangs of what holds the node, and why each has not left."""
    found = pods.node_workload(
        [
            pod(
                "a",
                owner="Job/train",
                restartPolicy="Never",
                activeDeadlineSeconds=3600,
                metadata={"annotations": INDEXED},
            ),
            pod("b", volumes=[{"emptyDir": {}}]),
            pod("c", owner="DaemonSet/logs"),
            *(pod(f"w{each}") for each in range(5)),
        ],
        closed=True,
        draining=True,
        batch_pods="finish",
        refusals={"b": "waits for its disruption budget (x)"},
        spans_nodes=lambda job: job == "ml/Job/train",
    )
    assert not found.drained
    assert found.total == 7
    first = found.running[0]
    assert (first.id, first.name, first.owner, first.gang) == (
        *("ml/a", "train", "ml"),
        "ml/Job/train",
    )
    assert first.started_at == datetime(2026, 11, 22, 10, tzinfo=UTC)
    assert first.ends_at == datetime(2026, 11, 22, 11, tzinfo=UTC)
    assert found.running[1].gang == ""
    assert found.detail == (
        "left until the deadline, it runs to completion: ml/a; "
        "of a gang on several nodes, which ends with it: ml/a; "
        "waits for its disruption budget (x): ml/b; emptyDir, lost with the pod: ml/b; "
        "to be evicted: ml/w0, ml/w1, ml/w2 and 2 more"
    )


def test_a_node_in_service_gets_no_remarks():
    """The node's pods are listed; that they could be evicted is of no interest."""
    found = pods.node_workload(
        [pod()],
        closed=False,
        draining=False,
        batch_pods="finish",
        refusals={},
        spans_nodes=lambda _: False,
    )
    assert (found.drained, found.total, found.detail) == (False, 1, "")


@pytest.mark.parametrize("closed", [True, False])
def test_an_empty_node_is_drained_only_if_nothing_will_come(closed):
    """A node without a cordon may still get pods, so it is not drained."""
    found = pods.node_workload(
        [pod("c", owner="DaemonSet/logs")],
        closed=closed,
        draining=True,
        batch_pods="finish",
        refusals={},
        spans_nodes=lambda _: False,
    )
    assert found.drained is closed
    assert bool(found.detail) is not closed


def test_a_time_that_is_not_set_is_null():
    """The API writes it so where a container has not ended, and where a condition has no time."""
    ended = {"terminated": {"exitCode": 137, "startedAt": None, "finishedAt": None}}
    status = {
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": None}],
        "containerStatuses": [{"name": "main", "state": ended}],
    }
    found = msgspec.convert({"metadata": {"name": "p"}, "status": status}, KubernetesPod)
    assert found.status.conditions[0].last_transition_time is None
