"""What Kubernetes says of nodes unasked: not ready, cordoned by another, pods that failed. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from services.notifier.workload.kubernetes.kubernetes_pods import MIRROR, controller, gang
from services.notifier.workload.workload_notifier import FAILED_MAX, FailedWork, WorkloadNodeState
from services.workload_systems.kubernetes_objects import (
    BY_NAVARCH,
    UNSCHEDULABLE_SET,
    FieldManager,
    KubernetesNode,
    KubernetesPod,
)

DISRUPTED: Final = "DisruptionTarget"
"""Condition of a pod that ended because it was evicted or preempted: it did not fail by itself."""


def cordoned_by(node: KubernetesNode) -> FieldManager | None:
    """The client other than Navarch that made the node unschedulable; None: none did."""
    if not node.spec.unschedulable:
        return None
    owners = [
        each for each in node.metadata.managed_fields if each.fields.spec.unschedulable is not None
    ]
    others = [each for each in owners if each.manager != BY_NAVARCH]
    if others or UNSCHEDULABLE_SET in node.metadata.annotations:
        return others[-1] if others else None
    return FieldManager()


def node_state(node: KubernetesNode, failed: Iterable[KubernetesPod]) -> WorkloadNodeState:
    """The state of one node; `failed`: its pods that failed."""
    found = (each for each in node.status.conditions if each.type == "Ready")
    ready = next(found, None)
    is_ready = ready is not None and ready.status == "True"
    reasons, since = [], None
    if not is_ready:
        said = (ready.reason, ready.message) if ready else ("its kubelet has reported nothing",)
        reasons.append(": ".join(each for each in said if each) or "NotReady")
        since = _time(ready.last_transition_time) if ready else None
    other = cordoned_by(node)
    if other is not None:
        reasons.append(f"cordoned by {other.manager}" if other.manager else "cordoned")
        since = since or _time(other.time)
    return WorkloadNodeState(
        ready=is_ready,
        cordoned=other is not None,
        reason="; ".join(reasons),
        since=since,
        failed=_failures(failed),
    )


def is_failure(pod: KubernetesPod) -> bool:
    """Whether a pod that is placed on a node failed there, as work that counts."""
    owner = controller(pod)
    return (
        pod.status.phase == "Failed"
        and MIRROR not in pod.metadata.annotations
        and not pod.metadata.deletion_timestamp
        and not (owner and owner.kind == "DaemonSet")
        and not any(
            each.type == DISRUPTED and each.status == "True" for each in pod.status.conditions
        )
    )


def _failures(pods: Iterable[KubernetesPod]) -> tuple[FailedWork, ...]:
    found = []
    for pod in pods:
        ended = [each.state.terminated for each in pod.status.container_statuses]
        times = [_time(each.finished_at) for each in ended if each]
        at = max((each for each in times if each), default=None) or _last_transition(pod)
        if is_failure(pod) and at is not None:
            job = gang(pod).rpartition("/")[2]
            why = [pod.status.reason, pod.status.message]
            why += [
                f"{each.reason or 'exit'} ({each.exit_code})"
                for each in ended
                if each and each.exit_code
            ]
            reason = ": ".join(
                filter(None, (job and f"part of {job}", ", ".join(filter(None, why))))
            )
            owner = pod.metadata.namespace
            found.append(FailedWork(id=pod.key, owner=owner, reason=reason, at=at))
    return tuple(sorted(found, key=lambda each: (each.at, each.id))[-FAILED_MAX:])


def _last_transition(pod: KubernetesPod) -> datetime | None:
    times = [_time(each.last_transition_time) for each in pod.status.conditions]
    return max((each for each in times if each), default=_time(pod.status.start_time))


def _time(text: str | None) -> datetime | None:
    """A time of the API; None for what is none."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
