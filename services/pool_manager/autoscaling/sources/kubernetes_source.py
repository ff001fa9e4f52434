"""Lists the pods of a Kubernetes cluster that no node has room for, and the nodes with work."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from schemas.duration import Duration
from schemas.settings import FilePath, Setting
from services.pool_manager.autoscaling.metrics_sources import (
    SHAPES_MAX,
    Load,
    SourceError,
    WaitingJobs,
)
from services.pool_manager.autoscaling.sources.device_claims import (
    claimed_gpus,
    claims_of,
    holds_claims,
)
from services.pool_manager.autoscaling.sources.kueue_workloads import (
    KueueDemand,
    KueueOptions,
    KueueWorkload,
    demand_of_workloads,
    gang_shape,
    is_held_back,
    workloads,
)
from services.pool_manager.autoscaling.sources.pod_requests import fits, requested
from services.workload_systems.cluster_access import ClusterAccess
from services.workload_systems.kubernetes_client import KubernetesClient, KubernetesError
from services.workload_systems.kubernetes_gangs import gang_of
from services.workload_systems.kubernetes_objects import NODES, PODS, KubernetesNode, QueuedPod

LIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"

_pod: Final = msgspec.json.Decoder(QueuedPod)
_node: Final = msgspec.json.Decoder(KubernetesNode)


class KubernetesSource:
    """Lists the pods that request GPUs."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds what the configuration may say."""

        kubeconfig: FilePath = ""
        """File; empty: the service account of the pod in which the pool-manager runs."""
        context: str = ""
        """Of the kubeconfig; empty: its current one."""
        resource: str = "nvidia.com/gpu"
        """Extended resource of the GPUs; pods that request none of it, and no devices, do not
        count."""
        device_class: str = "gpu.nvidia.com"
        """DeviceClass of the GPUs: pods that wait are counted by the devices of this class that
        their ResourceClaims request."""
        node_labels: dict[str, str] = msgspec.field(default_factory=dict)
        """Labels of the pool's nodes: pods whose nodeSelector or required node affinity they do not
        meet do not wait for the pool, and pods on other nodes do not keep it busy. Needed where
        several pools are in one cluster; the account then needs the right to list nodes."""
        kueue: KueueOptions | None = None
        """Workloads of Kueue count before they have pods; None: they are not read."""
        timeout: Duration = Duration(10)
        """For one call; a call lists 500 pods."""

    def __init__(self, *, options: Options) -> None:
        """Connect at the first question."""
        self._options = options
        self._client = KubernetesClient(
            ClusterAccess(kubeconfig=options.kubeconfig, context=options.context),
            timeout_seconds=float(options.timeout),
        )

    async def load(self, pool: str) -> Load:
        """List the pods once."""
        options, pods, queued = self._options, list[QueuedPod](), list[KueueWorkload]()
        nodes: set[str] | None = None
        claims: Mapping[str, int] = {}
        try:
            async for page in self._client.pages(PODS, fieldSelector=LIVE):
                found = (_pod.decode(each) for each in page.items or ())
                pods += (
                    each
                    for each in found
                    if requested(each.spec, options.resource) or holds_claims(each)
                )
            if options.node_labels and any(each.spec.node_name for each in pods):
                nodes = await self._nodes(options.node_labels)
            if any(holds_claims(each) and not each.spec.node_name for each in pods):
                claims = await claimed_gpus(self._client, options.device_class)
            if options.kueue is not None:
                queued = await workloads(self._client)
        except (KubernetesError, TimeoutError, OSError) as error:
            problem = str(error) or f"no answer within {float(options.timeout):g} s"
            raise SourceError(f"Kubernetes, for pool {pool}: {problem}") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise SourceError(f"Kubernetes, for pool {pool}: not understood: {error}") from error
        if options.kueue is None:
            return pods_load(pods, options.resource, options.node_labels, nodes, claims)
        started = [each for each in pods if not is_held_back(each)]
        load = pods_load(started, options.resource, options.node_labels, nodes, claims)
        demand = demand_of_workloads(queued, options.kueue, options.resource, options.node_labels)
        return with_workloads(load, demand)

    async def _nodes(self, labels: Mapping[str, str]) -> set[str]:
        """Return the names of the nodes that have all of these labels."""
        selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        found = set[str]()
        # From the server's cache: a node that joined this moment has no work yet.
        async for page in self._client.pages(NODES, labelSelector=selector, resourceVersion="0"):
            found |= {_node.decode(each).key for each in page.items or ()}
        return found

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def pods_load(
    pods: Iterable[QueuedPod],
    resource: str,
    node_labels: Mapping[str, str],
    nodes: Container[str] | None = None,
    claims: Mapping[str, int] = MappingProxyType({}),
) -> Load:
    """Return what waits and what is busy. Pure.

    The pods of a gang wait together. A placed pod is busy where it runs: on one of the pool's
    `nodes`; None: on any. `claims`: GPUs of each claim that waits, which is counted once.
    """
    alone: Counter[int] = Counter()
    together: dict[str, Counter[int]] = {}
    busy: set[str] = set()
    counted: set[str] = set()
    other = for_others = 0
    for pod in pods:
        if pod.spec.node_name:
            if nodes is None or pod.spec.node_name in nodes:
                busy.add(pod.spec.node_name)
        elif not pod.metadata.deletion_timestamp:
            wanted = set(claims_of(pod)) - counted
            counted |= wanted
            gpus = requested(pod.spec, resource) + sum(claims.get(each, 0) for each in wanted)
            if not gpus:
                continue
            if not fits(pod.spec, node_labels):
                for_others += 1
            elif not _unschedulable(pod):
                other += 1
            elif gang := gang_of(pod.metadata, pod.spec.scheduling_group.pod_group_name):
                together.setdefault(gang, Counter())[gpus] += 1
            else:
                alone[gpus] += 1
    gangs = Counter(tuple(sorted(each.items())) for each in together.values())
    waiting = [gang_shape(dict(parts), count) for parts, count in gangs.items()]
    waiting += [WaitingJobs(gpus=gpus, count=count) for gpus, count in alone.items()]
    return Load(
        pending_jobs=sum(each.count for each in waiting),
        waiting=tuple(waiting[:SHAPES_MAX]),
        busy_nodes=len(busy),
        not_for_nodes=other,
        not_for_pool=for_others,
    )


def with_workloads(load: Load, demand: KueueDemand) -> Load:
    """Add the workloads that have no pods yet; those with pods are to run first. Pure."""
    waiting = (*(load.waiting or ()), *demand.waiting)
    return Load(
        pending_jobs=sum(each.count for each in waiting),
        waiting=waiting[:SHAPES_MAX],
        busy_nodes=load.busy_nodes,
        not_for_nodes=load.not_for_nodes + demand.not_for_nodes,
        not_for_pool=load.not_for_pool + demand.not_for_pool,
    )


def _unschedulable(pod: QueuedPod) -> bool:
    return any(
        each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable"
        for each in pod.status.conditions
    )
