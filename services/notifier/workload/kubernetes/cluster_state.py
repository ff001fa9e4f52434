"""The nodes and pods of a cluster in memory: listed, then watched, with the pods of each job."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from services.notifier.workload.kubernetes.kubernetes_nodes import (
    draining_nodes,
    find_node,
    id_part,
    id_parts,
    is_draining,
    is_failure,
    node_state,
)
from services.notifier.workload.kubernetes.kubernetes_pods import gang
from services.notifier.workload.workload_notifier import NodeReference, WorkloadNodeState
from services.primitives.backoff import doubled
from services.primitives.clock import Clock
from services.workload_systems.kubernetes_client import KubernetesClient, KubernetesError
from services.workload_systems.kubernetes_objects import (
    NODES,
    PODS,
    KubernetesNode,
    KubernetesPod,
    ObjectMetadata,
)

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 300
"""The server ends a watch after this time; it is then resumed."""
BACKOFF_FIRST_SECONDS: Final = 0.2
BACKOFF_MAX_SECONDS: Final = 10.0
GONE: Final = 410
SELECTOR = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Pods that are placed and have not finished: the others hold no node."""
FAILED = "spec.nodeName!=,status.phase=Failed"


class _Object(Protocol):
    @property
    def metadata(self) -> ObjectMetadata: ...

    @property
    def key(self) -> str: ...


T = TypeVar("T", bound=_Object)


class _Change(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata = ObjectMetadata()
    code: int = 0
    message: str = ""


_changes = msgspec.json.Decoder(_Change)
_versions = msgspec.json.Decoder(_Version)


class ObjectWatch(Generic[T]):
    """The objects of one kind; `run` keeps them current.

    A watch that ends is resumed from the last version that was seen, which bookmarks keep recent.
    Where the server no longer has that version (410), everything is listed again.
    """

    def __init__(
        self,
        client: KubernetesClient,
        path: str,
        kind: type[T],
        clock: Clock,
        on_change: Callable[[str, T | None], None],
        selector: str = "",
    ) -> None:
        """`on_change`: called with the key of each object and what it is now; None: it is gone."""
        self._client = client
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._clock = clock
        self._on_change = on_change
        self._query = {"fieldSelector": selector} if selector else {}
        self.objects: dict[str, T] = {}
        self._version = ""
        self._tried = asyncio.Event()
        self._listed = False
        self._problem: Exception | None = None
        self._failures = 0
        """Watches in a row that brought nothing."""
        self._warned = False

    async def listed(self) -> None:
        """Return when everything was listed once; raise what prevents it."""
        await self._tried.wait()
        if not self._listed:
            assert self._problem is not None
            raise self._problem

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            self._failures += 1  # until a line of the watch says otherwise
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Exception as error:  # noqa: BLE001 - whatever it is, the watch goes on
                self._interrupted(error)
            if self._failures > 0:
                wait = doubled(BACKOFF_FIRST_SECONDS, self._failures, BACKOFF_MAX_SECONDS)
                await self._clock.sleep(wait)

    def _interrupted(self, error: Exception) -> None:
        if isinstance(error, KubernetesError):
            self._version = ""  # what it refuses to continue is listed again
            if error.status == GONE:
                return
        self._problem = error
        self._tried.set()
        if not self._warned:
            self._warned = True
            log.warning(
                "the watch of Kubernetes was interrupted; resuming",
                extra={"path": self._path, "reason": str(error) or type(error).__name__},
            )

    async def _list(self) -> None:
        found: dict[str, T] = {}
        version = ""
        async for page in self._client.pages(self._path, **self._query):
            for raw in page.items or ():
                each = self._decoder.decode(raw)
                found[each.key] = each
            version = page.metadata.resource_version
        gone = self.objects.keys() - found.keys()
        self.objects = found
        for key in gone:
            self._on_change(key, None)
        for key, each in found.items():
            self._on_change(key, each)
        self._version = version
        self._listed = True
        self._tried.set()

    async def _watch(self) -> None:
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async with self._client.lines(self._path, **query) as lines:
            async for line in lines:
                change = _changes.decode(line)
                seen = _versions.decode(change.object)
                if change.type == "ERROR":
                    raise KubernetesError(f"watch {self._path}", seen.code, seen.message)
                self._failures, self._warned = 0, False
                if change.type != "BOOKMARK":
                    self._apply(change.type, self._decoder.decode(change.object))
                self._version = seen.metadata.resource_version

    def _apply(self, change: str, what: Any) -> None:
        if change == "DELETED":
            self.objects.pop(what.key, None)
            self._on_change(what.key, None)
        else:
            self.objects[what.key] = what
            self._on_change(what.key, what)


class ClusterState:
    """Watches the cluster from the first question on."""

    def __init__(self, client: KubernetesClient, clock: Clock) -> None:
        self._clock = clock
        self._nodes = ObjectWatch(client, NODES, KubernetesNode, clock, self._node_changed)
        self._pods = ObjectWatch(client, PODS, KubernetesPod, clock, self._pod_changed, SELECTOR)
        self._failed = ObjectWatch(client, PODS, KubernetesPod, clock, self._pod_failed, FAILED)
        self._names_by_id: dict[str, set[str]] = defaultdict(set)
        self._ids: dict[str, set[str]] = {}
        self._by_node: dict[str, dict[str, KubernetesPod]] = defaultdict(dict)
        self._failed_on: dict[str, dict[str, KubernetesPod]] = defaultdict(dict)
        self._failed_places: dict[str, str] = {}
        self._states: dict[str, WorkloadNodeState] = {}
        self._places: dict[str, tuple[str, str]] = {}
        self._gangs: dict[str, dict[str, str]] = defaultdict(dict)
        self._tasks: list[asyncio.Task[None]] = []
        self.changed = asyncio.Event()
        """Set when a draining node, or a pod on one, has changed; its user clears it."""
        self.evictions_due = asyncio.Event()
        """The same for the evictor."""
        self.states_changed = asyncio.Event()
        """Set when a node's state, or a failed pod, has changed; its user clears it."""
        self._watches_failures = False

    async def listed(self) -> None:
        """Return when everything was listed; raise what prevents it."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(each.run()) for each in (self._nodes, self._pods)]
        await self._nodes.listed()
        await self._pods.listed()

    async def failures_listed(self) -> None:
        """The same, with the pods that failed, which are watched from the first such call on."""
        await self.listed()
        if not self._watches_failures:
            self._watches_failures = True
            self._tasks.append(asyncio.create_task(self._failed.run()))
        await self._failed.listed()

    async def close(self) -> None:
        """Stop the watches."""
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def nodes(self) -> Mapping[str, KubernetesNode]:
        """Return every node by name."""
        return self._nodes.objects

    @property
    def draining(self) -> Sequence[str]:
        """Names of the nodes whose pods are to leave."""
        return draining_nodes(self.nodes.values(), self._clock.now())

    def find(self, name: str, reference: NodeReference) -> KubernetesNode | None:
        """The node of this name, else the one with the instance's ID."""
        names = self._names_by_id.get(id_part(reference.provider_id), ())
        return find_node(self.nodes.get(name), (self.nodes[each] for each in names), reference)

    def pods_of(self, node: str) -> Sequence[KubernetesPod]:
        """Return the unfinished pods of a node."""
        return list(self._by_node.get(node, {}).values())

    def pods_of_job(self, job: str) -> Sequence[KubernetesPod]:
        """Return the unfinished pods of a job, on all nodes."""
        return [self._by_node[place][key] for key, place in self._gangs.get(job, {}).items()]

    def state_of(self, node: KubernetesNode) -> WorkloadNodeState:
        """Return what Kubernetes says of a node."""
        return node_state(node, self._failed_on.get(node.key, {}).values())

    def spans_nodes(self, job: str) -> bool:
        """Return whether the job has pods on several nodes."""
        return len(set(self._gangs.get(job, {}).values())) > 1

    def _node_changed(self, name: str, node: KubernetesNode | None) -> None:
        for known in self._ids.pop(name, ()):
            self._names_by_id[known].discard(name)
            if not self._names_by_id[known]:
                del self._names_by_id[known]
        if node is not None:
            self._ids[name] = id_parts(node)
            for part in self._ids[name]:
                self._names_by_id[part].add(name)
        if node is None or is_draining(node):
            self._announce()
        state = node_state(node, ()) if node is not None else WorkloadNodeState()
        if self._states.pop(name, None) != state:
            self.states_changed.set()
        if node is not None:
            self._states[name] = state

    def _pod_failed(self, key: str, pod: KubernetesPod | None) -> None:
        place = self._failed_places.pop(key, "")
        if place:
            del self._failed_on[place][key]
            if not self._failed_on[place]:
                del self._failed_on[place]
        if pod is not None and is_failure(pod):
            self._failed_places[key] = pod.spec.node_name
            self._failed_on[pod.spec.node_name][key] = pod
            self.states_changed.set()

    def _pod_changed(self, key: str, pod: KubernetesPod | None) -> None:
        place, job = self._places.pop(key, ("", ""))
        if place:
            del self._by_node[place][key]
            if not self._by_node[place]:
                del self._by_node[place]
        if job:
            del self._gangs[job][key]
            if not self._gangs[job]:
                del self._gangs[job]
        if pod is not None:
            place, job = pod.spec.node_name, gang(pod)
            self._places[key] = (place, job)
            self._by_node[place][key] = pod
            if job:
                self._gangs[job][key] = place
        node = self.nodes.get(place)
        if node is not None and is_draining(node):
            self._announce()

    def _announce(self) -> None:
        self.changed.set()
        self.evictions_due.set()
