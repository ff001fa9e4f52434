"""Kubernetes reports nodes unasked: readiness, cordons by others, failed pods."""

from typing import Any

import msgspec
import pytest

from services.notifier.workload.kubernetes.kubernetes_nodes import (
    cordoned_by,
    node_state,
    uncordon_patch,
)
from services.workload_systems.kubernetes_objects import (
    CORDONED,
    UNSCHEDULABLE_SET,
    KubernetesNode,
    KubernetesPod,
)

AT = "2026-11-22T04:26:00Z"
READY = {"type": "Ready", "status": "True"}
SILENT = {
    "type": "Ready",
    "status": "Unknown",
    "reason": "NodeStatusUnknown",
    "message": "Kubelet stopped posting node status.",
    "lastTransitionTime": AT,
}
OURS = {CORDONED: "replace-a-1/cordon", UNSCHEDULABLE_SET: "true"}


def owner(manager: str) -> dict[str, Any]:
    """The client that set `spec.unschedulable`."""
    return {"manager": manager, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}


def node(*conditions: Any, closed: bool = False, owners: Any = (), **annotations: str) -> Any:
    """A node as the API answers it."""
    about = {"name": "a", "annotations": annotations, "managedFields": list(owners)}
    spec = {"unschedulable": closed, "taints": [{"key": CORDONED}] if annotations else []}
    found = {"metadata": about, "spec": spec, "status": {"conditions": conditions}}
    return msgspec.convert(found, KubernetesNode)


@pytest.mark.parametrize(
    ("given", "ready", "cordoned", "reason"),
    [
        (node(READY), True, False, ""),
        (node(SILENT), False, False, "NodeStatusUnknown: Kubelet stopped posting node status."),
        (node(), False, False, "its kubelet has reported nothing"),
        (node(READY, closed=True), True, True, "cordoned"),
        (node(READY, closed=True, owners=[owner("kubectl")]), True, True, "cordoned by kubectl"),
        (node(READY, closed=True, owners=[owner("navarch")], **OURS), True, False, ""),
        (node(READY, closed=True, **OURS), True, False, ""),
    ],
)
def test_state_of_a_node(given: Any, ready: bool, cordoned: bool, reason: str) -> None:
    """A cordon that Navarch has made itself is not reported as another's."""
    state = node_state(given, ())
    assert (state.ready, state.cordoned, state.reason) == (ready, cordoned, reason)
    assert (state.since is not None) == (given.status.conditions == (SILENT_CONDITION,))


SILENT_CONDITION = node(SILENT).status.conditions[0]


def test_a_cordon_that_an_administrator_renewed_stays() -> None:
    """Uncordoned and cordoned again by kubectl while Navarch had it cordoned: kubectl owns it."""
    theirs = node(READY, closed=True, owners=[owner("kubectl")], **OURS)
    assert cordoned_by(theirs) is not None
    patch = uncordon_patch(theirs)
    assert patch is not None
    assert "unschedulable" not in patch["spec"]
    ours = uncordon_patch(node(READY, closed=True, owners=[owner("navarch")], **OURS))
    assert ours is not None
    assert ours["spec"]["unschedulable"] is None


def pod(name: str, **change: Any) -> Any:
    """A pod of a Job that exited with 137."""
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": AT}}
    about = {"name": name, "namespace": "ml", "ownerReferences": [JOB]}
    status = {"phase": "Failed", "containerStatuses": [{"name": "m", "state": ended}]}
    return msgspec.convert(
        {"metadata": about | change.pop("about", {}), "status": status | change}, KubernetesPod
    )


JOB = {"kind": "Job", "name": "train", "controller": True}
DAEMON = {"kind": "DaemonSet", "name": "agent", "controller": True}
EVICTED = {"type": "DisruptionTarget", "status": "True"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (pod("p"), "part of train: OOMKilled (137)"),
        (
            pod("p", reason="Evicted", message="disk"),
            "part of train: Evicted, disk, OOMKilled (137)",
        ),
        (pod("p", phase="Succeeded"), None),
        (pod("p", conditions=[EVICTED]), None),
        (pod("p", about={"ownerReferences": [DAEMON]}), None),
        (pod("p", about={"deletionTimestamp": AT}), None),
        (pod("p", containerStatuses=[], startTime="yesterday"), None),
        (pod("p", containerStatuses=[], startTime="0001-01-01T00:00:00"), None),
    ],
)
def test_only_work_that_failed_by_itself_counts(given: Any, reason: str | None) -> None:
    """A pod that was evicted, or is of every node, says nothing about this node."""
    failed = node_state(node(READY), [given]).failed
    assert [each.reason for each in failed] == ([] if reason is None else [reason])


def test_failures_are_bounded_and_in_order() -> None:
    """A job that fails for ever reports its last twenty pods."""
    failed = node_state(node(READY), [pod(f"p{each:04}") for each in range(1000)]).failed
    assert [each.id for each in failed] == [f"ml/p{each:04}" for each in range(980, 1000)]
