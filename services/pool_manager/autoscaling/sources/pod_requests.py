"""What pods request, and whether a pool's nodes are meant. Pure."""

from collections.abc import Mapping

from services.workload_systems.kubernetes_objects import PodContainer, RequestedPod


def requested(spec: RequestedPod, resource: str) -> int:
    """The GPUs that a pod requests: its containers together, or its largest init container."""

    def of(container: PodContainer) -> int:
        resources = container.resources
        text = str(resources.requests.get(resource) or resources.limits.get(resource) or 0)
        return int(text) if text.isdecimal() else 0

    first = max((of(each) for each in spec.init_containers), default=0)
    return max(sum(of(each) for each in spec.containers), first)


def fits(spec: RequestedPod, node_labels: Mapping[str, str]) -> bool:
    """Whether its nodeSelector selects nodes with these labels; none are known: it does."""
    selected = spec.node_selector.items()
    return not node_labels or all(node_labels.get(key) == value for key, value in selected)
