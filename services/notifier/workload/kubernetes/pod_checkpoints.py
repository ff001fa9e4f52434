"""Asks pods for a checkpoint: an annotation, which a pod reads in a volume of its own metadata.

A pod is asked if its owner has annotated it so, and with it the pods of its job on other nodes. A
pod that announces its next checkpoint is reported, and not asked unless it is annotated for both.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from services.notifier.workload.kubernetes.cluster_state import ClusterState
from services.notifier.workload.kubernetes.kubernetes_pods import (
    announced_checkpoint,
    gang,
    holds_node,
    may_checkpoint,
    was_asked,
)
from services.notifier.workload.kubernetes.kubernetes_rights import CHECKPOINT_GRANT
from services.notifier.workload.workload_notifier import StepFailure
from services.workload_systems.kubernetes_client import (
    MERGE,
    KubernetesClient,
    KubernetesError,
    MissingRightError,
)
from services.workload_systems.kubernetes_objects import (
    BY_NAVARCH,
    CHECKPOINT_BY,
    KubernetesPod,
)

GONE = frozenset({404, 409})
"""No such pod, or another one of the same name."""


async def ask_pods(
    client: KubernetesClient,
    state: ClusterState,
    slots: asyncio.Semaphore,
    node: str,
    *,
    now: datetime,
    until: datetime,
) -> Sequence[KubernetesPod]:
    """Ask the pods on a node, and those of their jobs.

    Those on the node are the answer, and those on it that announce a checkpoint.
    """
    work = [each for each in state.pods_of(node) if holds_node(each)]
    here = [each for each in work if may_checkpoint(each)]
    pods = {each.key: each for each in here}
    for job in {gang(each) for each in here}:
        pods |= {each.key: each for each in state.pods_of_job(job) if may_checkpoint(each)}
    moment = until.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    async def ask(pod: KubernetesPod) -> None:
        about = pod.metadata
        path = f"/api/v1/namespaces/{about.namespace}/pods/{about.name}"
        # With its UID: not a later pod of the same name.
        patch = {"metadata": {"uid": about.uid, "annotations": {CHECKPOINT_BY: moment}}}
        try:
            async with slots:
                manager = {"fieldManager": BY_NAVARCH}
                await client.call("PATCH", path, body=patch, query=manager, content_type=MERGE)
        except MissingRightError as error:
            raise StepFailure(
                f"Kubernetes refuses: {error}", "INVALID", CHECKPOINT_GRANT
            ) from error
        except KubernetesError as error:
            if error.status not in GONE:
                raise

    await asyncio.gather(*(ask(each) for each in pods.values() if not was_asked(each, now)))
    return [each for each in work if each in here or announced_checkpoint(each)]
