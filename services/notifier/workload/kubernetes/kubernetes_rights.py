"""The rights that the notifier needs in a cluster, and how it asks whether it has them. Pure."""

from typing import Any, Final, NamedTuple


class Right(NamedTuple):
    """One verb on one resource."""

    resource: str
    verb: str


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
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
GRANT: Final = "kubectl apply -f deploy/kubernetes/notifier-rbac.yaml"

CHECKPOINT_GRANT: Final = "kubectl apply -f deploy/kubernetes/notifier-checkpoint-rbac.yaml"


def access_review(right: Right) -> dict[str, Any]:
    """The question whether the asking account has a right, in every namespace."""
    resource, _, part = right.resource.partition("/")
    asked = {"verb": right.verb, "resource": resource, "subresource": part}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
