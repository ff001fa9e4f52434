"""Kubernetes: cordons nodes, evicts their pods under disruption budgets, watches them leave.

A cordon sets `spec.unschedulable`, a taint, a condition and an event; an uncordon removes only what
Navarch set. A drain marks the node; the evictor acts on the mark, so that a restart continues it.
A node is drained when a list of its pods, read after the watch saw the last one leave, is empty.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.settings import FilePath, Setting
from services.notifier.workload.kubernetes.cluster_state import ClusterState
from services.notifier.workload.kubernetes.gpu_taints import GpuCordons
from services.notifier.workload.kubernetes.kubernetes_nodes import (
    condition_patch,
    cordon_patch,
    is_another,
    is_closed,
    is_draining,
    node_event,
    says_cordoned,
    uncordon_patch,
    valid_name,
)
from services.notifier.workload.kubernetes.kubernetes_pods import (
    BatchPods,
    holds_node,
    node_workload,
    running_work,
)
from services.notifier.workload.kubernetes.kubernetes_rights import (
    CHECKPOINT_GRANT,
    GPU_GRANT,
    GRANT,
    needed_rights,
)
from services.notifier.workload.kubernetes.missing_rights import RefusedOrders, missing_rights
from services.notifier.workload.kubernetes.pod_evictor import PodEvictor, ask_pods
from services.notifier.workload.kubernetes.pod_notices import PodTexts, notify_owners
from services.notifier.workload.node_name import check_template, node_name
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    OwnerNotice,
    RunningWork,
    StepFailure,
    WorkloadAnswer,
    WorkloadCheck,
    WorkloadNodeState,
    WorkloadOrder,
)
from services.primitives.clock import Clock
from services.workload_systems.cluster_access import ClusterAccess
from services.workload_systems.kubernetes_client import (
    MERGE,
    STRATEGIC_MERGE,
    KubernetesClient,
    KubernetesError,
)
from services.workload_systems.kubernetes_objects import (
    BY_NAVARCH,
    CORDONED,
    NODES,
    PODS,
    KubernetesNode,
    KubernetesPod,
)

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
"""Only in case a change was missed: the watch reports them."""
PATCH_TRIES_MAX: Final = 10
"""A node that changes between reading and patching is read again."""
AT_ONCE_MAX: Final = 16
NOT_FOUND: Final = 404
CONFLICT: Final = 409
Event = Literal["NavarchCordoned", "NavarchDraining", "NavarchUncordoned", "NavarchDeadline"]


class _Pods(msgspec.Struct, frozen=True):
    items: tuple[KubernetesPod, ...] | None = None


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


class KubernetesNotifier:
    """Orders one Kubernetes cluster."""

    name = "kubernetes"
    confirms_drains = True
    """The API lists the pods."""
    batches = True
    """All nodes are watched at once."""
    reports_running = True
    """It is asked about any node."""
    poll_seconds = POLL_SECONDS
    """Long: changes are pushed."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `notifiers: {NAME: {type: kubernetes, kubeconfig: …}}`."""

        kubeconfig: FilePath = ""
        """File; empty: the service account of the pod in which the notifier runs."""
        context: str = ""
        """Of the kubeconfig; empty: its current one."""
        node_name: str = "{hostname}"
        """Name of the Kubernetes node. Where none has it, `spec.providerID` is compared."""
        batch_pods: BatchPods = "finish"
        """Pods that run to completion (Jobs, training jobs): left until the drain's deadline, or
        evicted at once like every other pod."""
        at_deadline: Literal["delete", "leave"] = "delete"
        """Pods that are left at the drain's deadline: deleted, so that their controllers recreate
        them elsewhere while the node still exists, or left to end with the node."""
        notify_owners: bool = True
        """Whether pods and their controllers get an event when a drain with a deadline begins."""
        checkpoint_pods: bool = False
        """Whether pods with `pod.navarch.io/checkpoint: "true"` are asked for a checkpoint before a
        drain, in pools with a `checkpoint_timeout`."""
        gpu_cordon: Literal["", "device-taint", "label"] = ""
        """How new work is kept off a single GPU: by a DeviceTaintRule, or by what reads the node's
        label `node.navarch.io/faulty-gpus`; empty: nodes are cordoned whole."""
        unknown_nodes: Literal["refuse", "ignore"] = "refuse"
        """refuse: a node that Kubernetes does not know is not drained, because it may be there
        under another name; ignore: it has no pods."""
        timeout: Duration = Duration(30)
        """For one call."""

        def __post_init__(self) -> None:
            """Refuse what can never work."""
            check_template(self.node_name)
            if self.timeout <= 0:
                raise ValueError("timeout must be more than 0 (30s is the default)")
            if self.context and not self.kubeconfig:
                raise ValueError("`context` is of a kubeconfig; add `kubeconfig`")

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Connect at the first order."""
        self._options = options
        self._clock = clock
        self._client = KubernetesClient(
            ClusterAccess(kubeconfig=options.kubeconfig, context=options.context),
            timeout_seconds=options.timeout,
        )
        self._state = ClusterState(self._client, clock)
        self._evictor = PodEvictor(self._client, self._state, clock, options.batch_pods)
        self._rights = RefusedOrders(clock)
        self._gpus = GpuCordons(self._client, options.gpu_cordon)
        self._texts = PodTexts(options.batch_pods, deletes=options.at_deadline == "delete")
        self.notifies_owners: bool = options.notify_owners
        self._seen: set[str] = set()
        """Navarch's names of the nodes that this process has seen in Kubernetes."""
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def cordon(self, order: WorkloadOrder) -> None:
        """Make the node unschedulable and say why."""
        await self._mark(order, drain=False)

    async def drain(self, order: WorkloadOrder) -> None:
        """Cordon the node and have its pods evicted."""
        await self._mark(order, drain=True)
        await self._watched()

    async def checkpoint(self, order: WorkloadOrder) -> Sequence[RunningWork]:
        """Annotate the pods whose owners say that they read it."""
        with self._rights.needed(order, CHECKPOINT_GRANT):
            node = await self._find(order.node) if self._options.checkpoint_pods else None
            if node is None:
                return ()
            await self._state.listed()
            now = self._clock.now()
            pods = await ask_pods(
                *(self._client, self._state, self._slots, node.key),
                now=now,
                until=order.deadline or now,
            )
        return [running_work(each, self._state.spans_nodes) for each in pods]

    async def notify_owners(self, order: WorkloadOrder) -> Sequence[OwnerNotice]:
        """Write events on the pods on the node, and on what controls them."""
        node = await self._find(order.node)
        if node is None:
            return ()
        pods, now = await self._list_pods(node.key), self._clock.now()
        return await notify_owners(self._client, self._slots, order, pods, self._texts, now)

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Remove what Navarch set; a cordon by another stays."""
        with self._rights.needed(order, GRANT, always=True):
            node, changed = await self._patch(order, uncordon_patch)
        if node is not None and (changed or says_cordoned(node)):
            await self._describe(node, order, "NavarchUncordoned")

    async def cordon_gpus(self, order: WorkloadOrder) -> None:
        """Taint their devices, or only say so in the node's label."""
        with self._rights.needed(order, GPU_GRANT):
            node = await self._find(order.node)
            if node is None and order.gpus:
                raise self._refuse_unknown(order.node)
            if node is not None:
                await self._gpus.apply(node, order)

    async def evict(self, order: WorkloadOrder) -> None:
        """Delete the pods that are left, or leave them.

        None is deleted of which no eviction was tried: its disruption budget would be passed over.
        """
        with self._rights.needed(order, GRANT):
            node = await self._find(order.node)
            if node is None or self._options.at_deadline == "leave":
                return
            pods = [each for each in await self._list_pods(node.key) if holds_node(each)]
            left = await self._evictor.left_after_trying(pods)
            await asyncio.gather(*(self._delete(each, order) for each in left))
        if left:
            await self._describe(node, order, "NavarchDeadline", f"deleted {len(left)} pods")

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        """Return what the watch has seen; a node that looks empty is listed again to be sure."""
        self._state.changed.clear()
        await self._watched()
        answers = await asyncio.gather(
            *(self._workload(each) for each in nodes), return_exceptions=True
        )
        known = {
            node.node: answer
            for node, answer in zip(nodes, answers, strict=True)
            if isinstance(answer, NodeWorkload | StepFailure)
        }
        failed = [each for each in answers if isinstance(each, BaseException)]
        if failed and not known:
            raise failed[0]
        return known

    async def self_check(self) -> Sequence[WorkloadCheck]:
        """The API's version, each missing right, and the nodes that are seen."""
        version = await self._client.get("/version", _Version)
        checks = [WorkloadCheck(what="connect", detail=f"Kubernetes {version.git_version}")]
        needed = needed_rights(
            deletes=self._options.at_deadline != "leave",
            checkpoints=self._options.checkpoint_pods,
            taints_gpus=self._options.gpu_cordon == "device-taint",
        )
        if missing := await missing_rights(self._client, needed):
            return [*checks, *missing]
        checks.append(WorkloadCheck(what="rights", detail=f"all {len(needed)} that are needed"))
        await self._state.listed()
        nodes = self._state.nodes.values()
        closed = sum(is_closed(each) for each in nodes)
        ours = sum(CORDONED in each.metadata.annotations for each in nodes)
        detail = f"{len(nodes)} nodes, {closed} cordoned, {ours} of them by Navarch"
        return [*checks, WorkloadCheck(what="list nodes", detail=detail)]

    async def wait_for_change(self) -> None:
        """Return when a pod of a draining node, or such a node, has changed."""
        await self._state.changed.wait()

    async def node_states(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadNodeState]:
        """Return what the watches have seen."""
        self._state.states_changed.clear()
        await self._state.failures_listed()
        found = ((each, self._state.find(self._name(each), each)) for each in nodes)
        return {each.node: self._state.state_of(node) for each, node in found if node is not None}

    async def wait_for_node_change(self) -> None:
        """Return when a node became ready, not ready, cordoned or uncordoned, or a pod failed."""
        await self._state.states_changed.wait()

    async def close(self) -> None:
        """Stop the watches and close the connections."""
        await self._evictor.close()
        await self._state.close()
        await self._client.close()

    async def _watched(self) -> None:
        await self._state.listed()
        self._evictor.start()

    async def _workload(self, reference: NodeReference) -> WorkloadAnswer:
        name = self._name(reference)
        node = self._state.find(name, reference)
        if node is None:
            # One that was there and is not any more was removed: nothing is placed on it.
            if self._may_be_elsewhere(reference) and reference.node not in self._seen:
                return self._refuse_unknown(reference)
            return NodeWorkload(drained=True, detail=self._unknown(reference))
        self._seen.add(reference.node)
        answer = self._answer(node, self._state.pods_of(node.key))
        if not answer.drained:
            return answer
        # The watches of nodes and pods are two: a pod placed just before the cordon may be missing.
        async with self._slots:
            return self._answer(node, await self._list_pods(node.key))

    def _answer(self, node: KubernetesNode, pods: Sequence[KubernetesPod]) -> NodeWorkload:
        return node_workload(
            pods,
            closed=is_closed(node),
            draining=is_draining(node, self._clock.now()),
            batch_pods=self._options.batch_pods,
            refusals=self._evictor.refusals,
            spans_nodes=self._state.spans_nodes,
        )

    async def _mark(self, order: WorkloadOrder, *, drain: bool) -> None:
        def patch(node: KubernetesNode) -> dict[str, Any] | None:
            until = order.deadline if drain else None
            gone = drain and order.node.gone
            return cordon_patch(node, order.key, drain=drain, until=until, gone=gone)

        with self._rights.needed(order, GRANT):
            node, changed = await self._patch(order, patch)
        if node is None:
            self._check_unknown(order)
        elif changed or not says_cordoned(node):
            await self._describe(node, order, "NavarchDraining" if drain else "NavarchCordoned")

    async def _patch(
        self,
        order: WorkloadOrder,
        change: Callable[[KubernetesNode], Mapping[str, Any] | None],
    ) -> tuple[KubernetesNode | None, bool]:
        """The node, None where Kubernetes has none, and whether there was something to change."""
        for _ in range(PATCH_TRIES_MAX):
            node = await self._find(order.node)
            patch = change(node) if node else None
            if node is None or patch is None:
                return node, False
            try:
                path = f"{NODES}/{node.key}"
                manager = {"fieldManager": BY_NAVARCH}
                await self._client.call(
                    "PATCH", path, body=patch, query=manager, content_type=MERGE
                )
            except KubernetesError as error:
                if error.status not in (CONFLICT, NOT_FOUND):
                    raise
            else:
                return node, True
        raise RuntimeError(f"the node {order.node.node} changes all the time; it is tried again")

    def _name(self, reference: NodeReference) -> str:
        return valid_name(node_name(self._options.node_name, reference))

    async def _find(self, reference: NodeReference) -> KubernetesNode | None:
        name = self._name(reference)
        try:
            found = await self._client.get(f"{NODES}/{name}", KubernetesNode) if name else None
            if found is not None and not is_another(found, reference):
                return found
        except KubernetesError as error:
            if error.status != NOT_FOUND:
                raise
        await self._state.listed()
        other = self._state.find(name, reference)
        if other is not None:
            return await self._client.get(f"{NODES}/{other.key}", KubernetesNode)
        return None

    def _check_unknown(self, order: WorkloadOrder) -> None:
        """A node that Kubernetes does not know: raise, unless that means that it has no pods."""
        if order.key.endswith("/reserve"):
            raise RuntimeError(f"{self._unknown(order.node)} yet: its kubelet has not joined")
        if self._may_be_elsewhere(order.node):
            raise self._refuse_unknown(order.node)

    def _may_be_elsewhere(self, reference: NodeReference) -> bool:
        left = reference.lost or reference.gone
        return self._options.unknown_nodes == "refuse" and not left

    def _refuse_unknown(self, reference: NodeReference) -> StepFailure:
        return StepFailure(
            f"{self._unknown(reference)}; its pods may run on a node of another name",
            "INVALID",
            "set `node_name` in the kubernetes notifier's options to a template of the names that "
            "`kubectl get nodes` shows; if the node has left the cluster, set `unknown_nodes: "
            "ignore`, or `navarch terminate` it",
        )

    def _unknown(self, reference: NodeReference) -> str:
        by_id = f" and none whose providerID ends with {reference.provider_id}"
        known = by_id if reference.provider_id else ""
        return f"Kubernetes has no node {self._name(reference)!r}{known}"

    async def _describe(
        self, node: KubernetesNode, order: WorkloadOrder, event: Event, more: str = ""
    ) -> None:
        """Say in the node's condition and events what was done; failing, it was done anyway."""
        now = self._clock.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        parts = (order.reason, more, f"Navarch {order.key}, pool {order.node.pool}")
        message = "; ".join(each for each in parts if each)
        name = hashlib.sha256(f"{node.metadata.uid} {event} {order.key}".encode()).hexdigest()[:20]
        condition = condition_patch(
            cordoned=event != "NavarchUncordoned", reason=event, message=message, now=now
        )
        body = node_event(node, f"navarch-{name}", reason=event, message=message, now=now)
        try:
            path = f"{NODES}/{node.key}/status"
            await self._client.call("PATCH", path, body=condition, content_type=STRATEGIC_MERGE)
            await self._client.call("POST", "/api/v1/namespaces/default/events", body=body)
        except Exception as error:  # noqa: BLE001 - a text that is missing prevents no repair
            if isinstance(error, KubernetesError) and error.status == CONFLICT:
                return  # the same order, repeated
            log.warning(
                "the node's condition or event in Kubernetes was not written",
                extra={"node": node.key, "reason": str(error) or type(error).__name__},
            )

    async def _delete(self, pod: KubernetesPod, order: WorkloadOrder) -> None:
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
        body = {"preconditions": {"uid": pod.metadata.uid}}
        try:
            async with self._slots:
                await self._client.call("DELETE", path, body=body)
        except KubernetesError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            return
        log.warning(
            "deleted a pod at the drain's deadline",
            extra={"pod": pod.key, "node": order.node.node, "key": order.key},
        )

    async def _list_pods(self, node: str) -> Sequence[KubernetesPod]:
        # Without a resourceVersion the list is as new as the store.
        return (
            await self._client.get(PODS, _Pods, fieldSelector=f"spec.nodeName={node}")
        ).items or ()
