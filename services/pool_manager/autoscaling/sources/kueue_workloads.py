"""Workloads that wait in queues of Kueue and have no pods yet."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec

from schemas.settings import Setting
from services.pool_manager.autoscaling.metrics_sources import WaitingJobs
from services.pool_manager.autoscaling.sources.pod_requests import fits, requested
from services.workload_systems.kubernetes_client import NOT_FOUND, KubernetesClient, KubernetesError
from services.workload_systems.kubernetes_objects import (
    ObjectMetadata,
    QueuedPod,
    RequestedPod,
    StatusCondition,
)

GROUP: Final = "/apis/kueue.x-k8s.io"
VERSIONS: Final = ("v1beta2", "v1beta1")
"""Those that are read, the preferred one first; what is read is the same in both."""
ALONE: Final = frozenset({"Job", "Pod"})
"""Owners whose pods are of use without each other."""
MANAGED: Final = "kueue.x-k8s.io/managed"
"""Label of pods that Kueue holds back until their workload is admitted."""


class KueueOptions(Setting, frozen=True, kw_only=True):
    """Says which workloads of Kueue count before they have pods."""

    queues: Annotated[tuple[str, ...], msgspec.Meta(max_length=1_000)] = ()
    """LocalQueues, `NAME` or `NAMESPACE/NAME`; empty: all of the cluster."""
    flavors: Annotated[tuple[str, ...], msgspec.Meta(max_length=100)] = ()
    """ResourceFlavors of the pool's nodes: workloads with quota of another do not count; empty:
    every flavor is the pool's."""
    without_quota: Literal["ignore", "count"] = "ignore"
    """Workloads that wait for quota. ignore: more nodes would not start them; count: the quota
    follows the nodes."""


class _Part(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A part of an object; everything in it may be missing."""


class _Template(_Part, frozen=True):
    spec: RequestedPod = RequestedPod()


class _PodSet(_Part, frozen=True):
    name: str = "main"
    count: int = 1
    template: _Template = _Template()


class _Assignment(_Part, frozen=True):
    name: str = "main"
    flavors: dict[str, str] = {}
    count: int | None = None
    """Fewer than requested where Kueue admits a part; None: as requested."""


class _Admission(_Part, frozen=True):
    pod_set_assignments: tuple[_Assignment, ...] = ()


class _Spec(_Part, frozen=True):
    queue_name: str = ""
    priority: int | None = None
    active: bool = True
    pod_sets: tuple[_PodSet, ...] = ()


class _Status(_Part, frozen=True):
    admission: _Admission | None = None
    conditions: tuple[StatusCondition, ...] = ()


class _DatedMetadata(ObjectMetadata, frozen=True):
    """Also when it was made, which orders a queue."""

    creation_timestamp: str = ""


class KueueWorkload(_Part, frozen=True):
    """Holds what Kueue admits as a whole, as its place in the queue needs it."""

    metadata: _DatedMetadata = _DatedMetadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class KueueDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Says what waits in the queues."""

    waiting: tuple[WaitingJobs, ...] = ()
    """In the order in which Kueue admits them."""
    not_for_nodes: int = 0
    """Workloads that wait for quota, or are switched off."""
    not_for_pool: int = 0
    """Workloads that other nodes are to run."""


_workload: Final = msgspec.json.Decoder(KueueWorkload)


async def workloads(client: KubernetesClient) -> list[KueueWorkload]:
    """List every workload; KubernetesError where the cluster has no Kueue."""
    version, found = await client.version(GROUP, VERSIONS), list[KueueWorkload]()
    if not version:
        known = f"(known are {' and '.join(VERSIONS)})"
        problem = f"the cluster has no Kueue; install it {known}, or remove `kueue`"
        raise KubernetesError(f"GET {GROUP}", NOT_FOUND, problem)
    async for page in client.pages(f"{GROUP}/{version}/workloads"):
        found += (_workload.decode(each) for each in page.items or ())
    return found


def is_held_back(pod: QueuedPod) -> bool:
    """Return whether a pod's workload counts for it: Kueue has not let it be scheduled. Pure."""
    scheduled = any(
        each.type == "PodScheduled" and each.reason != "SchedulingGated"
        for each in pod.status.conditions
    )
    return pod.metadata.labels.get(MANAGED) == "true" and not (scheduled or pod.spec.node_name)


def demand_of_workloads(
    found: Iterable[KueueWorkload],
    options: KueueOptions,
    resource: str,
    node_labels: dict[str, str],
) -> KueueDemand:
    """Return what waits, of the workloads that request GPUs and have no pods yet. Pure."""
    shapes: list[WaitingJobs] = []
    for_others = without = 0
    counts = options.without_quota == "count"
    for each in sorted(found, key=_order):
        if _is(each, "Finished") or _is(each, "Admitted") or not _listed(each, options.queues):
            continue
        needs = _needs(each, resource)
        if not needs:
            continue
        if not _fit(each, options.flavors, resource, node_labels):
            for_others += 1
        elif not each.spec.active or not (counts or _nodes_start_it(each)):
            without += 1
        else:
            shapes += _shapes(each, needs)
    return KueueDemand(waiting=tuple(shapes), not_for_nodes=without, not_for_pool=for_others)


def _order(workload: KueueWorkload) -> tuple[int, str]:
    return -(workload.spec.priority or 0), workload.metadata.creation_timestamp


def _is(workload: KueueWorkload, condition: str, reason: str = "") -> bool:
    return any(
        each.type == condition and each.status == "True" and reason in ("", each.reason)
        for each in workload.status.conditions
    )


def _nodes_start_it(workload: KueueWorkload) -> bool:
    """It has quota, or lost it because nodes did not come in time for its pods."""
    return _is(workload, "QuotaReserved") or _is(workload, "Evicted", "PodsReadyTimeout")


def _listed(workload: KueueWorkload, queues: tuple[str, ...]) -> bool:
    name = workload.spec.queue_name
    return not queues or name in queues or f"{workload.metadata.namespace}/{name}" in queues


def _assigned(workload: KueueWorkload) -> dict[str, _Assignment]:
    admission = workload.status.admission
    return {each.name: each for each in admission.pod_set_assignments} if admission else {}


def _needs(workload: KueueWorkload, resource: str) -> list[tuple[int, int]]:
    """Pods, and the GPUs of each."""
    assigned = _assigned(workload)
    counts = ((each, assigned.get(each.name, _Assignment())) for each in workload.spec.pod_sets)
    found = [
        (each.count if of.count is None else of.count, requested(each.template.spec, resource))
        for each, of in counts
    ]
    return [(pods, gpus) for pods, gpus in found if pods > 0 and gpus]


def _fit(
    workload: KueueWorkload, flavors: tuple[str, ...], resource: str, node_labels: dict[str, str]
) -> bool:
    """Whether the pool's nodes are what its pods with GPUs are to run on."""
    for each in workload.spec.pod_sets:
        spec = each.template.spec
        if requested(spec, resource) and not fits(spec, node_labels):
            return False
    given = {of.flavors.get(resource) for of in _assigned(workload).values()} - {None}
    return not flavors or given <= set(flavors)


def _shapes(workload: KueueWorkload, needs: list[tuple[int, int]]) -> list[WaitingJobs]:
    """Return each pod on its own, or all at once."""
    owner = next((each.kind for each in workload.metadata.owner_references if each.controller), "")
    if owner in ALONE:
        return [WaitingJobs(gpus=gpus, count=pods) for pods, gpus in needs]
    parts = Counter[int]()
    for pods, gpus in needs:
        parts[gpus] += pods
    return [gang_shape(parts)]


def gang_shape(parts: Mapping[int, int], count: int = 1) -> WaitingJobs:
    """Return gangs of so many pods for each number of GPUs. Pure."""
    pods = sum(parts.values())
    return WaitingJobs(nodes=pods, gpus=max(parts), count=count, parts=dict(parts))
