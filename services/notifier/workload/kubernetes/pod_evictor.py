"""Asks pods for a checkpoint, and evicts those of draining nodes until their budgets allow it.

Which nodes drain is marked on the nodes themselves, so a replica that starts, or takes over,
continues what another ordered. Several replicas evict the same pods, which changes nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from services.notifier.workload.kubernetes.cluster_state import ClusterState
from services.notifier.workload.kubernetes.kubernetes_pods import (
    BatchPods,
    announced_checkpoint,
    evictable,
    gang,
    holds_node,
    may_checkpoint,
    was_asked,
)
from services.primitives.clock import Clock
from services.primitives.race import race
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

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
"""Between two evictions of a pod, as kubectl does it."""
PER_SECOND_MAX: Final = 50.0
"""Evictions; where more pods are refused than this allows, each is retried less often."""
AT_ONCE_MAX: Final = 16
GONE: Final = frozenset({404, 409})
"""No such pod, or another one of the same name."""
BUDGET: Final = 429


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

    A pod is asked if its owner has annotated it so, and with it the pods of its job on other nodes.
    A pod that announces its next checkpoint is reported, and not asked unless it is annotated for
    both.
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
        except KubernetesError as error:
            if error.status not in GONE:
                raise

    await asyncio.gather(*(ask(each) for each in pods.values() if not was_asked(each, now)))
    return [each for each in work if each in here or announced_checkpoint(each)]


class PodEvictor:
    """Evicts pods of one cluster."""

    def __init__(
        self, client: KubernetesClient, state: ClusterState, clock: Clock, batch_pods: BatchPods
    ) -> None:
        """`batch_pods`: whether pods that run to completion are evicted or left to finish."""
        self._client = client
        self._state = state
        self._clock = clock
        self._batch_pods: BatchPods = batch_pods
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)
        self._due: dict[str, float] = {}
        """By the pods' UIDs: when each is to be evicted, again or for the first time."""
        self._known: frozenset[str] = frozenset()
        """Nodes that drained a moment ago already."""
        self.refusals: dict[str, str] = {}
        """By the pods' UIDs: why an eviction was refused."""
        self._answered: set[str] = set()
        """UIDs of the pods whose eviction the API has answered, if only by refusing it."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, once; the cluster must be listed."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop all evictions."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._state.evictions_due.clear()
            pods, now = self._wanted(), self._clock.monotonic()
            uids = {each.metadata.uid for each in pods}
            self._due = {uid: at for uid, at in self._due.items() if uid in uids}
            self.refusals = {uid: why for uid, why in self.refusals.items() if uid in uids}
            self._answered &= uids
            for each in pods:
                # One that comes back to a draining node is not evicted as fast as it is recreated.
                back = each.spec.node_name in self._known
                self._due.setdefault(each.metadata.uid, now + RETRY_SECONDS if back else now)
            self._known = frozenset(self._state.draining)
            due = [each for each in pods if self._due[each.metadata.uid] <= now]
            retry_at = now + max(RETRY_SECONDS, len(self.refusals) / PER_SECOND_MAX)
            self._due |= {each.metadata.uid: retry_at for each in due}
            await asyncio.gather(*(self._evict(each) for each in due))
            wait = min(self._due.values(), default=float("inf")) - self._clock.monotonic()
            if wait == float("inf"):
                await self._state.evictions_due.wait()
            else:
                await race(self._state.evictions_due.wait(), self._clock.sleep(max(wait, 0.05)))

    async def left_after_trying(self, pods: Sequence[KubernetesPod]) -> Sequence[KubernetesPod]:
        """Return the pods that stay, of which each that may be evicted has been asked to leave.

        ConnectionError where the API has not answered: no disruption budget was asked.
        """
        untried = [
            each
            for each in evictable(pods, self._batch_pods)
            if each.metadata.uid not in self._answered
        ]
        answers = await asyncio.gather(*(self._evict(each) for each in untried))
        if silent := answers.count(None):
            raise ConnectionError(f"no eviction of {silent} pods was answered")
        left = {each.metadata.uid for each, gone in zip(untried, answers, strict=True) if gone}
        return [
            each
            for each in pods
            if not each.metadata.deletion_timestamp and each.metadata.uid not in left
        ]

    def _wanted(self) -> list[KubernetesPod]:
        state = self._state
        return [
            pod
            for node in state.draining
            for pod in evictable(state.pods_of(node), self._batch_pods)
        ]

    async def _evict(self, pod: KubernetesPod) -> bool | None:
        """Return whether the pod leaves; None: the API has not answered."""
        about = pod.metadata
        path = f"/api/v1/namespaces/{about.namespace}/pods/{about.name}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": about.name, "namespace": about.namespace},
            # Not a later pod of the same name, which may run on another node.
            "deleteOptions": {"preconditions": {"uid": about.uid}},
        }
        try:
            async with self._slots:
                await self._client.call("POST", path, body=body)
        except Exception as error:  # noqa: BLE001 - it is retried, whatever it is
            answered = isinstance(error, KubernetesError)
            if answered:
                self._answered.add(about.uid)
            if isinstance(error, KubernetesError) and error.status in GONE:
                return True
            self._refuse(pod, error)
            return False if answered else None
        self._answered.add(about.uid)
        self.refusals.pop(about.uid, None)
        log.info("evicted a pod", extra={"pod": pod.key, "node": pod.spec.node_name})
        return True

    def _refuse(self, pod: KubernetesPod, error: Exception) -> None:
        said = str(error) or type(error).__name__
        if isinstance(error, KubernetesError) and error.status == BUDGET:
            said = f"waits for its disruption budget ({error.message})"
        elif isinstance(error, KubernetesError):
            said = f"cannot be evicted ({error.message})"
        if pod.metadata.uid not in self.refusals or isinstance(error, MissingRightError):
            log.warning(
                "a pod was not evicted; retrying until the drain's deadline",
                extra={"pod": pod.key, "node": pod.spec.node_name, "reason": said},
            )
        self.refusals[pod.metadata.uid] = said
