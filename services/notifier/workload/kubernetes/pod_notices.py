"""Notifies the owners of pods that a drain will end them: an event on each pod and controller.

`kubectl describe pod` and `kubectl describe job` show them, and what an owner has that watches the
events of a namespace. Their names follow from the drain and the object, so that no object has two.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from services.notifier.workload.kubernetes.kubernetes_nodes import object_event
from services.notifier.workload.kubernetes.kubernetes_pods import (
    BatchPods,
    holds_node,
    waits_because,
)
from services.notifier.workload.owner_text import disruption_text
from services.notifier.workload.workload_notifier import OwnerNotice, WorkloadOrder
from services.workload_systems.kubernetes_client import KubernetesClient, KubernetesError
from services.workload_systems.kubernetes_gangs import controller_of
from services.workload_systems.kubernetes_objects import KubernetesPod

EVENT: Final = "NavarchWillEnd"
PODS_MAX: Final = 250
"""Pods of one node that get an event; a kubelet runs 110 by default."""
CONFLICT: Final = 409


async def notify_owners(
    client: KubernetesClient,
    slots: asyncio.Semaphore,
    order: WorkloadOrder,
    pods: Sequence[KubernetesPod],
    texts: "PodTexts",
    now: datetime,
) -> Sequence[OwnerNotice]:
    """Write an event on each pod that holds the node, and one on each controller of such pods."""
    work = [each for each in pods if holds_node(each)][:PODS_MAX]
    events = {
        body["metadata"]["name"]: body for pod in work for body in texts.events(order, pod, now)
    }

    async def write(body: dict[str, Any]) -> str:
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        try:
            async with slots:
                await client.call("POST", path, body=body)
        except KubernetesError as error:
            return "" if error.status == CONFLICT else f"no event was written: {error}"
        except OSError as error:
            return f"no event was written: {str(error) or type(error).__name__}"
        return ""

    outcomes = await asyncio.gather(*(write(each) for each in events.values()))
    failures: dict[str, str] = {}
    for body, failure in zip(events.values(), outcomes, strict=True):
        if failure:
            failures.setdefault(body["metadata"]["namespace"], failure)
    owners = dict.fromkeys(each.metadata.namespace for each in work)
    return [
        OwnerNotice(
            owner=owner,
            work=tuple(each.key for each in work if each.metadata.namespace == owner),
            failure=failures.get(owner, ""),
        )
        for owner in owners
    ]


class PodTexts:
    """Writes the events, by what the notifier does with pods at the deadline."""

    def __init__(self, batch_pods: BatchPods, *, deletes: bool) -> None:
        """`deletes`: pods that are left at the deadline are deleted."""
        self._batch_pods = batch_pods
        self._deletes = deletes

    def events(
        self, order: WorkloadOrder, pod: KubernetesPod, now: datetime
    ) -> Sequence[dict[str, Any]]:
        """Return the events about a pod: its own, and its controller's. Pure."""
        about = pod.metadata
        text = disruption_text(order, self._then(pod))
        objects = [("v1", "Pod", about.name, about.uid)]
        if owner := controller_of(about):
            objects.append((owner.api_version, owner.kind, owner.name, owner.uid))
        return [
            object_event(
                {
                    "apiVersion": version,
                    "kind": kind,
                    "name": name,
                    "uid": uid,
                    "namespace": about.namespace,
                },
                _name(order, uid),
                reason=EVENT,
                message=text,
                now=f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
                kind="Warning",
            )
            for version, kind, name, uid in objects
        ]

    def _then(self, pod: KubernetesPod) -> str:
        ends = "is deleted" if self._deletes else "ends with the node"
        if controller_of(pod.metadata) is not None:
            ends += ", and its controller makes it again elsewhere"
        if waits_because(pod, self._batch_pods):
            return ends
        return f"{ends}; pods that may be evicted are evicted now"


def _name(order: WorkloadOrder, uid: str) -> str:
    digest = hashlib.sha256(f"{uid} {EVENT} {order.saga}".encode()).hexdigest()[:20]
    return f"navarch-{digest}"
