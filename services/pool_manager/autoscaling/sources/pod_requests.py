"""Reads what pods request, and whether a pool's nodes are meant. Pure."""

from collections.abc import Mapping

from services.workload_systems.kubernetes_objects import (
    LabelRequirement,
    NodeTerm,
    PodContainer,
    RequestedPod,
)


def requested(spec: RequestedPod, resource: str) -> int:
    """The GPUs that a pod requests: its containers together, or its largest init container."""

    def of(container: PodContainer) -> int:
        resources = container.resources
        text = str(resources.requests.get(resource) or resources.limits.get(resource) or 0)
        return int(text) if text.isdecimal() else 0

    first = max((of(each) for each in spec.init_containers), default=0)
    return max(sum(of(each) for each in spec.containers), first)


def fits(spec: RequestedPod, node_labels: Mapping[str, str]) -> bool:
    """Return whether the pod may run on nodes with these labels; where none are known it may."""
    if not node_labels:
        return True
    if any(node_labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    near = spec.affinity.node_affinity if spec.affinity else None
    if near is None or near.required is None:
        return True
    return any(_meets(term, node_labels) for term in near.required.node_selector_terms)


def _meets(term: NodeTerm, labels: Mapping[str, str]) -> bool:
    """A term about fields names nodes that are there already."""
    wanted = term.match_expressions
    return bool(wanted) and not term.match_fields and all(_holds(each, labels) for each in wanted)


def _holds(wanted: LabelRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(wanted.key)
    match wanted.operator:
        case "In":
            return value in wanted.values
        case "NotIn":
            return value not in wanted.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and _compares(wanted, value)
        case _:
            return False


def _compares(wanted: LabelRequirement, value: str) -> bool:
    try:
        [limit], found = (int(each) for each in wanted.values), int(value)
    except ValueError:
        return False
    return found > limit if wanted.operator == "Gt" else found < limit
