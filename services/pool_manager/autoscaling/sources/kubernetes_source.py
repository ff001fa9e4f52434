"""The pods of a Kubernetes cluster that no node has room for."""

from collections import Counter
from collections.abc import Iterable, Mapping
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
from services.workload_systems.kubernetes_client import KubernetesClient, KubernetesError
from services.workload_systems.kubernetes_labels import GANG_LABELS
from services.workload_systems.kubernetes_objects import PODS, PodContainer, QueuedPod

LIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"
TOGETHER: Final = tuple(
    GANG_LABELS[each] for each in ("JobSet", "PodGroup", "SchedulingPodGroup", "TrainingJob")
)
"""Labels of pods that are of no use without each other."""


_pod: Final = msgspec.json.Decoder(QueuedPod)


class KubernetesSource:
    """Lists the pods that request GPUs."""

    class Options(Setting, frozen=True, kw_only=True):
        """What the configuration may say."""

        kubeconfig: FilePath = ""
        """File; empty: the service account of the pod in which the pool-manager runs."""
        context: str = ""
        """Of the kubeconfig; empty: its current one."""
        resource: str = "nvidia.com/gpu"
        """Extended resource of the GPUs; pods that request none of it do not count."""
        node_labels: dict[str, str] = msgspec.field(default_factory=dict)
        """Labels of the pool's nodes: pods whose nodeSelector names another value, or another
        label, do not count. Needed where several pools are in one cluster."""
        timeout: Duration = Duration(10)
        """For one call; a call lists 500 pods."""

    def __init__(self, *, options: Options) -> None:
        """Connect at the first question."""
        self._options = options
        self._client = KubernetesClient(
            kubeconfig=options.kubeconfig,
            context=options.context,
            timeout_seconds=float(options.timeout),
        )

    async def load(self, pool: str) -> Load:
        """List the pods once."""
        pods: list[QueuedPod] = []
        try:
            async for page in self._client.pages(PODS, fieldSelector=LIVE):
                found = (_pod.decode(each) for each in page.items or ())
                pods += (each for each in found if requested(each, self._options.resource))
        except (KubernetesError, TimeoutError, OSError) as error:
            problem = str(error) or f"no answer within {float(self._options.timeout):g} s"
            raise SourceError(f"Kubernetes, for pool {pool}: {problem}") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise SourceError(f"Kubernetes, for pool {pool}: not understood: {error}") from error
        return pods_load(pods, self._options.resource, self._options.node_labels)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def pods_load(pods: Iterable[QueuedPod], resource: str, node_labels: Mapping[str, str]) -> Load:
    """What waits and what is busy. Pure.

    Each pod of a job that needs all of its pods counts as a whole node.
    """
    alone: Counter[int] = Counter()
    together: dict[str, list[int]] = {}
    busy: set[str] = set()
    other = 0
    for pod in pods:
        gpus = requested(pod, resource)
        selector = pod.spec.node_selector.items()
        if any(node_labels.get(key) != value for key, value in selector if node_labels):
            continue
        if pod.spec.node_name:
            busy.add(pod.spec.node_name)
        elif not pod.metadata.deletion_timestamp:
            if not _unschedulable(pod):
                other += 1
            elif job := _job(pod):
                together.setdefault(job, []).append(gpus)
            else:
                alone[gpus] += 1
    gangs = Counter((len(each), max(each)) for each in together.values())
    waiting = [
        WaitingJobs(nodes=nodes, gpus=gpus, count=count) for (nodes, gpus), count in gangs.items()
    ]
    waiting += [WaitingJobs(gpus=gpus, count=count) for gpus, count in alone.items()]
    return Load(
        pending_jobs=sum(each.count for each in waiting),
        waiting=tuple(waiting[:SHAPES_MAX]),
        busy_nodes=len(busy),
        not_for_nodes=other,
    )


def requested(pod: QueuedPod, resource: str) -> int:
    """The GPUs that a pod requests: its containers together, or its largest init container."""

    def of(container: PodContainer) -> int:
        resources = container.resources
        text = str(resources.requests.get(resource) or resources.limits.get(resource) or 0)
        return int(text) if text.isdecimal() else 0

    first = max((of(each) for each in pod.spec.init_containers), default=0)
    return max(sum(of(each) for each in pod.spec.containers), first)


def _unschedulable(pod: QueuedPod) -> bool:
    return any(
        each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable"
        for each in pod.status.conditions
    )


def _job(pod: QueuedPod) -> str:
    labels = pod.metadata.labels
    name = next((f"{each}={labels[each]}" for each in TOGETHER if labels.get(each)), "")
    return f"{pod.metadata.namespace}/{name}" if name else ""
