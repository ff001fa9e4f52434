"""Decides which Kubernetes node a reference means, what a cordon changes, and how it is. Pure.

Navarch undoes only what it set: annotations say what that is. It also forbids cluster-autoscaler
and Karpenter to remove the node while it is cordoned, because an idle node that is about to be
reset or returned looks superfluous to them.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal

from services.notifier.workload.kubernetes.kubernetes_pods import MIRROR, job_name
from services.notifier.workload.workload_notifier import (
    FAILED_MAX,
    FailedWork,
    NodeReference,
    WorkloadNodeState,
)
from services.workload_systems.kubernetes_gangs import controller_of
from services.workload_systems.kubernetes_objects import (
    BY_NAVARCH,
    CONDITION,
    CORDONED,
    DRAIN_UNTIL,
    DRAINING,
    OUT_OF_SERVICE,
    PROTECTIONS_SET,
    UNSCHEDULABLE_SET,
    FieldManager,
    KubernetesNode,
    KubernetesPod,
)

DISRUPTED: Final = "DisruptionTarget"
"""Condition of a pod that ended because it was evicted or preempted: it did not fail by itself."""
PROTECTIONS: Final = (
    "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "karpenter.sh/do-not-disrupt",
)
SCHEMES: Final[Mapping[str, str]] = MappingProxyType({"aws": "aws", "gcp": "gce", "azure": "azure"})
"""Scheme of `spec.providerID` for each provider of Navarch that has one."""
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
REASON_CHARS_MAX: Final = 900
"""Kubernetes limits the message of an event to 1024."""


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
    """Return whether a pod that is placed on a node failed there, as work that counts."""
    owner = controller_of(pod.metadata)
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
            job = job_name(pod)
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


def valid_name(name: str) -> str:
    """The name as the kubelet writes it; empty if no node can have it."""
    lower = name.lower()
    return lower if NAME.fullmatch(lower) else ""


def is_of(node: KubernetesNode, reference: NodeReference) -> bool:
    """Return whether the instance's ID names the node.

    That is a whole part at the end of `spec.providerID`, or `kubernetes://UID` of an adopted node
    that has none.
    """
    given, known = node.spec.provider_id.lower(), reference.provider_id.lower().strip("/")
    names = (given, f"kubernetes://{node.metadata.uid}".lower())
    return bool(known) and (known in names or given.endswith(f"/{known}"))


def is_another(node: KubernetesNode, reference: NodeReference) -> bool:
    """Return whether a node of the right name is a later machine that took the name."""
    if "://" in reference.provider_id:  # as Kubernetes itself names an adopted node's machine
        known = (node.spec.provider_id, f"kubernetes://{node.metadata.uid}")
        return reference.provider_id not in known
    scheme = SCHEMES.get(reference.provider)
    comparable = scheme and node.spec.provider_id.startswith(f"{scheme}://")
    return bool(comparable and reference.provider_id) and not is_of(node, reference)


def id_part(provider_id: str) -> str:
    """Return the last part of an ID, by which nodes are indexed."""
    return provider_id.lower().rpartition("/")[2]


def id_parts(node: KubernetesNode) -> set[str]:
    """Return the last part of each ID by which a provider may name the node."""
    return {id_part(node.spec.provider_id), node.metadata.uid.lower()} - {""}


def find_node(
    named: KubernetesNode | None, others: Iterable[KubernetesNode], reference: NodeReference
) -> KubernetesNode | None:
    """The node of the right name, else the one of `others` with the instance's ID."""
    if named is not None and not is_another(named, reference):
        return named
    return next((each for each in others if is_of(each, reference)), None)


def is_closed(node: KubernetesNode) -> bool:
    """Return whether the scheduler places nothing on the node."""
    return node.spec.unschedulable or _is_tainted(node)


def is_draining(node: KubernetesNode, now: datetime | None = None) -> bool:
    """Return whether Navarch has ordered the node's pods to leave, and `now` is in time for it."""
    until = _time(node.metadata.annotations.get(DRAIN_UNTIL))
    return DRAINING in node.metadata.annotations and (not now or not until or now < until)


def says_cordoned(node: KubernetesNode) -> bool:
    """Return whether the node's condition says that Navarch has cordoned it."""
    found = (each.status for each in node.status.conditions if each.type == CONDITION)
    return next(found, "") == "True"


def cordon_patch(
    node: KubernetesNode,
    key: str,
    *,
    drain: bool,
    until: datetime | None = None,
    gone: bool = False,
) -> dict[str, Any] | None:
    """Return the merge patch that cordons a node, or also drains it; None: it is done already.

    `until`: when pods are no longer evicted; a later order sets another time.
    `gone`: its machine no longer exists, so its pods cannot confirm that they have ended.
    """
    has = node.metadata.annotations
    closed = node.spec.unschedulable and _is_tainted(node)
    gone = gone and not any(each.get("key") == OUT_OF_SERVICE for each in node.spec.taints)
    ends = until.isoformat(timespec="seconds") if until else None
    draining = DRAINING in has and has.get(DRAIN_UNTIL) == ends
    if closed and CORDONED in has and (not drain or draining) and not gone:
        return None
    set_here = [each for each in PROTECTIONS if each not in has]
    kept = has.get(PROTECTIONS_SET, "").split()
    annotations: dict[str, str | None] = dict.fromkeys(set_here, "true")
    annotations |= {PROTECTIONS_SET: " ".join([*kept, *set_here])} if set_here else {}
    annotations |= {} if CORDONED in has else {CORDONED: key}
    annotations |= {} if node.spec.unschedulable else {UNSCHEDULABLE_SET: "true"}
    annotations |= {DRAINING: key, DRAIN_UNTIL: ends} if drain and not draining else {}
    taints = [dict(each) for each in node.spec.taints]
    if not _is_tainted(node):
        taints.append({"key": CORDONED, "effect": "NoSchedule"})
    if gone:
        taints.append({"key": OUT_OF_SERVICE, "value": BY_NAVARCH, "effect": "NoExecute"})
    return _patch(node, annotations, {"unschedulable": True, "taints": taints})


def uncordon_patch(node: KubernetesNode) -> dict[str, Any] | None:
    """The merge patch that removes what Navarch set; None: it has set nothing."""
    has = node.metadata.annotations
    if CORDONED not in has and DRAINING not in has and not _is_tainted(node):
        return None
    ours = (CORDONED, DRAINING, DRAIN_UNTIL, UNSCHEDULABLE_SET, PROTECTIONS_SET)
    removed = {*ours, *has.get(PROTECTIONS_SET, "").split()} & set(has)
    spec: dict[str, Any] = {
        "taints": [dict(each) for each in node.spec.taints if not _is_ours(each)] or None
    }
    if UNSCHEDULABLE_SET in has and cordoned_by(node) is None:
        spec["unschedulable"] = None
    return _patch(node, dict.fromkeys(sorted(removed)), spec)


def condition_patch(*, cordoned: bool, reason: str, message: str, now: str) -> dict[str, Any]:
    """The strategic merge patch of `status` with the condition that Navarch adds."""
    condition = {
        "type": CONDITION,
        "status": "True" if cordoned else "False",
        "reason": reason,
        "message": message[:REASON_CHARS_MAX],
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {"status": {"conditions": [condition]}}


def node_event(
    node: KubernetesNode, name: str, *, reason: str, message: str, now: str
) -> dict[str, Any]:
    """The event that `kubectl describe node` shows."""
    about = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.metadata.name,
        "uid": node.metadata.uid,
    }
    return object_event(about, name, reason=reason, message=message, now=now)


def object_event(
    about: Mapping[str, str],
    name: str,
    *,
    reason: str,
    message: str,
    now: str,
    kind: Literal["Normal", "Warning"] = "Normal",
) -> dict[str, Any]:
    """Return an event about an object, in its namespace; a node's are in `default`."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": about.get("namespace", "default")},
        "involvedObject": dict(about),
        "type": kind,
        "reason": reason,
        "message": message[:REASON_CHARS_MAX],
        "source": {"component": "navarch"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def draining_nodes(nodes: Iterable[KubernetesNode], now: datetime) -> list[str]:
    """Return the names of the nodes whose pods are to leave."""
    return [each.metadata.name for each in nodes if is_draining(each, now)]


def _is_ours(taint: Mapping[str, str]) -> bool:
    out_of_service = taint.get("key") == OUT_OF_SERVICE and taint.get("value") == BY_NAVARCH
    return taint.get("key") == CORDONED or out_of_service


def _is_tainted(node: KubernetesNode) -> bool:
    return any(each.get("key") == CORDONED for each in node.spec.taints)


def _patch(
    node: KubernetesNode, annotations: Mapping[str, str | None], spec: Mapping[str, Any]
) -> dict[str, Any]:
    # With the version that was read, so that a change by another in between is not overwritten.
    version = node.metadata.resource_version
    return {
        "metadata": {"resourceVersion": version, "annotations": dict(annotations)},
        "spec": dict(spec),
    }
