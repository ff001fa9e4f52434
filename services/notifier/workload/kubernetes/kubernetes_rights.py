"""The rights that the notifier needs in a cluster, and how it asks whether it has them. Pure."""

from typing import Any, Final, NamedTuple


class Right(NamedTuple):
    """Names one verb on one resource."""

    resource: str
    verb: str
    group: str = ""


RIGHTS: Final = (
    Right("nodes", "get"),
    Right("nodes", "list"),
    Right("nodes", "watch"),
    Right("nodes", "patch"),
    Right("nodes/status", "patch"),
    Right("pods", "list"),
    Right("pods", "watch"),
    Right("pods", "delete"),
    Right("pods/eviction", "create"),
    Right("events", "create"),
)
DELETE: Final = Right("pods", "delete")
"""Not needed where pods are left at the deadline."""
CHECKPOINT: Final = Right("pods", "patch")
"""Needed only with `checkpoint_pods`."""
GPUS: Final = (
    Right("resourceslices", "list", "resource.k8s.io"),
    Right("devicetaintrules", "list", "resource.k8s.io"),
    Right("devicetaintrules", "create", "resource.k8s.io"),
    Right("devicetaintrules", "delete", "resource.k8s.io"),
)
"""Needed only with `gpu_cordon: device-taint`."""
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
GRANT: Final = "kubectl apply -f deploy/kubernetes/notifier-rbac.yaml"

CHECKPOINT_GRANT: Final = "kubectl apply -f deploy/kubernetes/notifier-checkpoint-rbac.yaml"
GPU_GRANT: Final = "kubectl apply -f deploy/kubernetes/notifier-gpu-rbac.yaml"


def needed_rights(*, deletes: bool, checkpoints: bool, taints_gpus: bool) -> list[Right]:
    """The rights that the notifier's options need."""
    needed = [each for each in RIGHTS if each != DELETE or deletes]
    needed += [CHECKPOINT] if checkpoints else []
    return [*needed, *(GPUS if taints_gpus else ())]


def grant_of(right: Right) -> str:
    """Return how an account gets a right."""
    if right in GPUS:
        return GPU_GRANT
    return CHECKPOINT_GRANT if right == CHECKPOINT else GRANT


def access_review(right: Right) -> dict[str, Any]:
    """The question whether the asking account has a right, in every namespace."""
    resource, _, part = right.resource.partition("/")
    asked = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": part}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
