"""Labels by which controllers of Kubernetes mark the pods of one job."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

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
