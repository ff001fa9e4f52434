"""Decides which pods hold a node, which may be evicted, and what they say. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

from services.notifier.workload.workload_notifier import (
    RUNNING_MAX,
    NodeWorkload,
    RunningWork,
    read_announcement,
)
from services.workload_systems.kubernetes_gangs import SERVICE_KINDS, controller_of, gang_of
from services.workload_systems.kubernetes_objects import (
    CHECKPOINT_AT,
    CHECKPOINT_BY,
    CHECKPOINTS,
    KubernetesPod,
)

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a static pod: the node's own, which the API cannot remove."""
FINISHED: Final = frozenset({"Succeeded", "Failed"})
PROTECTED: Final = (
    ("karpenter.sh/do-not-disrupt", "true"),
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
)
"""Annotations by which the owner of a pod forbids its eviction."""
NAMED_MAX: Final = 3
"""Pods that `detail` names for each remark."""

BatchPods = Literal["finish", "evict"]


def holds_node(pod: KubernetesPod) -> bool:
    """Return whether the pod is work: not finished, not static, not one of every node."""
    owner = controller_of(pod.metadata)
    return (
        pod.status.phase not in FINISHED
        and MIRROR not in pod.metadata.annotations
        and not (owner and owner.kind == "DaemonSet")
    )


def gang(pod: KubernetesPod) -> str:
    """Return the gang that a pod is a part of; empty: none."""
    return gang_of(pod.metadata, pod.spec.scheduling_group.pod_group_name)


def job_name(pod: KubernetesPod) -> str:
    """Return the name of the job that the pod is a part of, a gang or not; empty: none."""
    owner = controller_of(pod.metadata)
    own = owner.name if owner and owner.kind not in SERVICE_KINDS else ""
    return gang(pod).rpartition("/")[2] or own


def may_checkpoint(pod: KubernetesPod) -> bool:
    """Return whether the pod is work whose owner says that it can save itself."""
    return (
        holds_node(pod)
        and not pod.metadata.deletion_timestamp
        and pod.metadata.annotations.get(CHECKPOINTS) == "true"
    )


def announced_checkpoint(pod: KubernetesPod) -> datetime | None:
    """When the pod has written its next checkpoint, as it announces."""
    return read_announcement(pod.metadata.annotations.get(CHECKPOINT_AT, ""))


def was_asked(pod: KubernetesPod, now: datetime) -> bool:
    """Return whether the pod was asked for a checkpoint, and the time that it was given lasts."""
    try:
        return datetime.fromisoformat(pod.metadata.annotations.get(CHECKPOINT_BY, "")) > now
    except (ValueError, TypeError):
        return False


def waits_because(pod: KubernetesPod, batch_pods: BatchPods) -> str:
    """Return why the pod is left alone until the deadline; empty: it may be evicted at once."""
    for name, value in PROTECTED:
        if pod.metadata.annotations.get(name) == value:
            return f"{name}={value}"
    if controller_of(pod.metadata) is None:
        return "no controller would recreate it"
    if batch_pods == "finish" and (pod.spec.restart_policy != "Always" or gang(pod)):
        return "it runs to completion"
    return ""


def evictable(pods: Iterable[KubernetesPod], batch_pods: BatchPods) -> list[KubernetesPod]:
    """The pods that are to be evicted now."""
    return [
        each
        for each in pods
        if holds_node(each)
        and not each.metadata.deletion_timestamp
        and not waits_because(each, batch_pods)
    ]


def node_workload(
    pods: Sequence[KubernetesPod],
    *,
    closed: bool,
    draining: bool,
    batch_pods: BatchPods,
    refusals: Mapping[str, str],
    spans_nodes: Callable[[str], bool],
) -> NodeWorkload:
    """Return what holds a node; `refusals`: why evictions were refused, by the pods' UIDs."""
    held = sorted((each for each in pods if holds_node(each)), key=lambda each: each.key)
    remarks = _remarks(held, batch_pods, refusals, spans_nodes) if draining else []
    if draining and not closed:
        remarks.insert(0, "another client uncordoned the node, so new pods may come")
    return NodeWorkload(
        drained=closed and not held,
        running=tuple(running_work(each, spans_nodes) for each in held[:RUNNING_MAX]),
        total=len(held),
        detail="; ".join(remarks),
    )


def running_work(pod: KubernetesPod, spans_nodes: Callable[[str], bool]) -> RunningWork:
    """A pod, as drains report it."""
    job, owner = gang(pod), controller_of(pod.metadata)
    return RunningWork(
        id=pod.key,
        name=job.rpartition("/")[2] or (owner.name if owner else pod.metadata.name),
        owner=pod.metadata.namespace,
        started_at=_started_at(pod),
        ends_at=_ends_at(pod),
        checkpoint_at=announced_checkpoint(pod),
        gang=job if job and spans_nodes(job) else "",
    )


def _started_at(pod: KubernetesPod) -> datetime | None:
    return read_announcement(pod.status.start_time)


def _ends_at(pod: KubernetesPod) -> datetime | None:
    seconds, started = pod.spec.active_deadline_seconds, _started_at(pod)
    if seconds is None or started is None:
        return None
    try:
        return started + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _remarks(
    held: Sequence[KubernetesPod],
    batch_pods: BatchPods,
    refusals: Mapping[str, str],
    spans_nodes: Callable[[str], bool],
) -> list[str]:
    found: dict[str, list[str]] = {}
    for pod in held:
        if pod.metadata.deletion_timestamp:
            said = "terminating"
        elif why := waits_because(pod, batch_pods):
            said = f"left until the deadline, {why}"
        else:
            said = refusals.get(pod.metadata.uid, "to be evicted")
        found.setdefault(said, []).append(pod.key)
        if (job := gang(pod)) and spans_nodes(job):
            found.setdefault("of a gang on several nodes, which ends with it", []).append(pod.key)
        if any(each.empty_dir is not None for each in pod.spec.volumes):
            found.setdefault("emptyDir, lost with the pod", []).append(pod.key)
    return [f"{said}: {_names(pods)}" for said, pods in found.items()]


def _names(pods: Sequence[str]) -> str:
    more = len(pods) - NAMED_MAX
    return ", ".join(pods[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
