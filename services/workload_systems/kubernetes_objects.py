"""The parts of Kubernetes objects that are read here. Pure."""

from typing import Any, Final

import msgspec

CORDONED: Final = "node.navarch.io/cordoned"
"""Annotation (the order's key) and taint of a node that Navarch has cordoned."""
DRAINING: Final = "node.navarch.io/draining"
"""Annotation: the key of the drain whose pods are being evicted."""
DRAIN_UNTIL: Final = "node.navarch.io/drain-until"
"""Annotation: when that drain's time is up, and nothing is evicted any more."""
UNSCHEDULABLE_SET: Final = "node.navarch.io/unschedulable-set"
"""Annotation: Navarch set `spec.unschedulable`, so Navarch may clear it."""
PROTECTIONS_SET: Final = "node.navarch.io/protections-set"
"""Annotation: which of PROTECTIONS Navarch has set, separated by spaces."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Kubernetes' taint of a machine that is gone: its pods are removed and recreated elsewhere."""
BY_NAVARCH: Final = "navarch"
"""Value of that taint if Navarch has set it; also the name under which Navarch owns fields."""
CHECKPOINTS: Final = "pod.navarch.io/checkpoint"
"""Annotation by which the owner of a pod says that it answers a request for a checkpoint."""
CHECKPOINT_BY: Final = "pod.navarch.io/checkpoint-by"
"""Annotation: until when such a pod may save itself and leave."""
CHECKPOINT_AT: Final = "pod.navarch.io/checkpoint-at"
"""Annotation by which a pod announces when its next checkpoint is written."""
CONDITION: Final = "NavarchCordoned"
NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"


class _Part(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A part of an object; everything in it may be missing."""


class OwnerReference(_Part, frozen=True):
    """Names what an object belongs to."""

    kind: str = ""
    name: str = ""
    controller: bool = False
    api_version: str = ""
    uid: str = ""


class OwnedSpec(_Part, frozen=True, rename={"unschedulable": "f:unschedulable"}):
    """Says which fields of a spec a client owns; only one of them matters here."""

    unschedulable: dict[str, Any] | None = None


class OwnedFields(_Part, frozen=True, rename={"spec": "f:spec"}):
    """Says which fields a client owns."""

    spec: OwnedSpec = OwnedSpec()


class FieldManager(_Part, frozen=True):
    """A client that has set fields of an object, as the API server records it."""

    manager: str = ""
    time: str = ""
    fields: OwnedFields = msgspec.field(default=OwnedFields(), name="fieldsV1")


class ObjectMetadata(_Part, frozen=True):
    """Holds the metadata that every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    deletion_timestamp: str = ""
    managed_fields: tuple[FieldManager, ...] = ()


class SchedulingGroup(_Part, frozen=True):
    """Names the PodGroup that a pod is scheduled with."""

    pod_group_name: str = ""


class PodClaim(_Part, frozen=True):
    """Names a ResourceClaim of a pod: by itself, or in the status as it was made of a template."""

    name: str = ""
    resource_claim_name: str | None = None


class PodVolume(_Part, frozen=True):
    """Describes a volume of a pod."""

    empty_dir: dict[str, Any] | None = None


class PodSpec(_Part, frozen=True):
    """Describes the pod that is to run."""

    node_name: str = ""
    restart_policy: str = "Always"
    active_deadline_seconds: int | None = None
    volumes: tuple[PodVolume, ...] = ()
    scheduling_group: SchedulingGroup = SchedulingGroup()


class TerminatedContainer(_Part, frozen=True):
    """Describes how a container ended."""

    exit_code: int = 0
    reason: str = ""
    finished_at: str | None = None


class ContainerState(_Part, frozen=True):
    """Says whether a container runs or has ended."""

    terminated: TerminatedContainer | None = None


class ContainerStatus(_Part, frozen=True):
    """Describes the state of a container of a pod."""

    name: str = ""
    state: ContainerState = ContainerState()


class StatusCondition(_Part, frozen=True):
    """One thing that is, or is not, so with a node or a pod."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    """None: the API writes a time that is not set as null."""


class PodStatus(_Part, frozen=True):
    """Describes the state of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str = ""
    conditions: tuple[StatusCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaim, ...] = ()


class PodResources(_Part, frozen=True):
    """Describes what a container requests."""

    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}


class PodContainer(_Part, frozen=True):
    """Describes a container of a pod."""

    resources: PodResources = PodResources()


class LabelRequirement(_Part, frozen=True):
    """Requires certain values of a node's label."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(_Part, frozen=True):
    """Requirements that a node must meet together; without any, no node meets them."""

    match_expressions: tuple[LabelRequirement, ...] = ()
    match_fields: tuple[LabelRequirement, ...] = ()


class NodeTerms(_Part, frozen=True):
    """Lists terms of which a node must meet one."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class NodeAffinity(_Part, frozen=True):
    """The nodes that a pod may run on."""

    required: NodeTerms | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinity(_Part, frozen=True):
    """Says what a pod is to be near; only the terms on nodes matter here."""

    node_affinity: NodeAffinity | None = None


class RequestedPod(_Part, frozen=True):
    """Describes the pod that a controller requests."""

    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: PodAffinity | None = None
    containers: tuple[PodContainer, ...] = ()
    init_containers: tuple[PodContainer, ...] = ()
    resource_claims: tuple[PodClaim, ...] = ()
    scheduling_group: SchedulingGroup = SchedulingGroup()


class QueuedPod(_Part, frozen=True):
    """A pod as its place in the queue needs it."""

    metadata: ObjectMetadata = ObjectMetadata()
    spec: RequestedPod = RequestedPod()
    status: PodStatus = PodStatus()


class KubernetesPod(_Part, frozen=True):
    """Describes a pod and its state."""

    metadata: ObjectMetadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """Return the pod's name in the cluster."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class KubernetesNodeSpec(_Part, frozen=True):
    """Describes what a node shall be."""

    unschedulable: bool = False
    provider_id: str = msgspec.field(default="", name="providerID")
    taints: tuple[dict[str, str], ...] = ()


class KubernetesNodeStatus(_Part, frozen=True):
    """Describes the state of a node."""

    conditions: tuple[StatusCondition, ...] = ()


class KubernetesNode(_Part, frozen=True):
    """Describes a node and its state."""

    metadata: ObjectMetadata
    spec: KubernetesNodeSpec = KubernetesNodeSpec()
    status: KubernetesNodeStatus = KubernetesNodeStatus()

    @property
    def key(self) -> str:
        """Return the node's name in the cluster."""
        return self.metadata.name
