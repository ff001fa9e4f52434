"""Decides which pods of a Kubernetes cluster are one gang: of use only together. Pure.

Drains report what stops with a node by it, and the metrics source counts what waits by it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from services.workload_systems.kubernetes_objects import ObjectMetadata, OwnerReference

GANG_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "JobSet": "jobset.sigs.k8s.io/jobset-name",
        "PodGroup": "kueue.x-k8s.io/pod-group-name",
        "SchedulingPodGroup": "scheduling.x-k8s.io/pod-group",
        "LeaderWorkerSet": "leaderworkerset.sigs.k8s.io/name",
        "RayCluster": "ray.io/cluster",
        "TrainingJob": "training.kubeflow.org/job-name",
    }
)
"""What a pod's own controller belongs to -> the label that names it."""
GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/group-index"
"""Label: each group of a LeaderWorkerSet is a gang of its own."""
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Annotation of the pods of an Indexed Job, which know each other by it."""
SERVICE_KINDS: Final = frozenset(
    {"ReplicaSet", "StatefulSet", "ReplicationController", "DaemonSet", "Node"}
)
"""Controllers whose pods are independent of each other."""


def controller_of(pod: ObjectMetadata) -> OwnerReference | None:
    """Return what recreates the pod."""
    return next((each for each in pod.owner_references if each.controller), None)


def gang_of(pod: ObjectMetadata, scheduling_group: str = "") -> str:
    """Return the gang that a pod is a part of, `NAMESPACE/KIND/NAME`; empty: it is one by itself.

    `scheduling_group` is the pod's `spec.schedulingGroup`. The pods of a Job are a gang where it is
    Indexed: those of another Job take any part of its work.
    """
    for kind, label in GANG_LABELS.items():
        if name := pod.labels.get(label):
            group = pod.labels.get(GROUP_INDEX, "") if kind == "LeaderWorkerSet" else ""
            return f"{pod.namespace}/{kind}/{name}{'-' if group else ''}{group}"
    if scheduling_group:
        return f"{pod.namespace}/PodGroup/{scheduling_group}"
    owner = controller_of(pod)
    if owner is None or owner.kind in SERVICE_KINDS:
        return ""
    if owner.kind == "Job" and COMPLETION_INDEX not in pod.annotations:
        return ""
    return f"{pod.namespace}/{owner.kind}/{owner.name}"
