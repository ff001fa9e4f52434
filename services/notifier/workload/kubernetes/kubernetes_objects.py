"""The parts of Kubernetes objects that are read here. Pure."""

from typing import Any, Final

import msgspec

CORDONED: Final = "node.navarch.io/cordoned"
"""Annotation (the order's key) and taint of a node that Navarch has cordoned."""
DRAINING: Final = "node.navarch.io/draining"
"""Annotation: the key of the drain whose pods are being evicted."""
UNSCHEDULABLE_SET: Final = "node.navarch.io/unschedulable-set"
"""Annotation: Navarch set `spec.unschedulable`, so Navarch may clear it."""
PROTECTIONS_SET: Final = "node.navarch.io/protections-set"
"""Annotation: which of PROTECTIONS Navarch has set, separated by spaces."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Kubernetes' taint of a machine that is gone: its pods are removed and recreated elsewhere."""
BY_NAVARCH: Final = "navarch"
"""Value of that taint if Navarch has set it."""
CONDITION: Final = "NavarchCordoned"
NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"


class _Part(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A part of an object; everything in it may be missing."""


class OwnerReference(_Part, frozen=True):
    """What an object belongs to."""

    kind: str = ""
    name: str = ""
    controller: bool = False


class ObjectMetadata(_Part, frozen=True):
    """Of every object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    deletion_timestamp: str = ""


class PodVolume(_Part, frozen=True):
    """A volume of a pod."""

    empty_dir: dict[str, Any] | None = None


class PodSpec(_Part, frozen=True):
    """What a pod shall be."""

    node_name: str = ""
    restart_policy: str = "Always"
    active_deadline_seconds: int | None = None
    volumes: tuple[PodVolume, ...] = ()


class PodStatus(_Part, frozen=True):
    """What a pod is."""

    phase: str = ""
    start_time: str = ""


class KubernetesPod(_Part, frozen=True):
    """A pod."""

    metadata: ObjectMetadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """Its name in the cluster."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class KubernetesNodeSpec(_Part, frozen=True):
    """What a node shall be."""

    unschedulable: bool = False
    provider_id: str = msgspec.field(default="", name="providerID")
    taints: tuple[dict[str, str], ...] = ()


class NodeCondition(_Part, frozen=True):
    """One thing that is, or is not, so with a node."""

    type: str = ""
    status: str = ""


class KubernetesNodeStatus(_Part, frozen=True):
    """What a node is."""

    conditions: tuple[NodeCondition, ...] = ()


class KubernetesNode(_Part, frozen=True):
    """A node."""

    metadata: ObjectMetadata
    spec: KubernetesNodeSpec = KubernetesNodeSpec()
    status: KubernetesNodeStatus = KubernetesNodeStatus()

    @property
    def key(self) -> str:
        """Its name in the cluster."""
        return self.metadata.name
