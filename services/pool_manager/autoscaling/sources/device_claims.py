"""Counts the GPUs that pods request by ResourceClaims: dynamic resource allocation (DRA)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from services.workload_systems.kubernetes_client import KubernetesClient
from services.workload_systems.kubernetes_gangs import controller_of
from services.workload_systems.kubernetes_objects import ObjectMetadata, QueuedPod

GROUP: Final = "/apis/resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Newest first; v1beta1 has the fields of `exactly` in the request itself."""
GPUS_MAX: Final = 1_024
"""Of one claim."""


class _Part(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A part of an object; everything in it may be missing."""


class _Devices(_Part, frozen=True):
    device_class_name: str = ""
    count: int = 1
    """Not given where all devices of a node are claimed; that is at least one."""
    admin_access: bool | None = None
    """It shares the devices with what uses them, to monitor them."""


class _Request(_Devices, frozen=True):
    exactly: _Devices | None = None
    first_available: tuple[_Devices, ...] = ()
    """Alternatives, the preferred one first."""


class _Requests(_Part, frozen=True):
    requests: tuple[_Request, ...] = ()


class _Spec(_Part, frozen=True):
    devices: _Requests = _Requests()


class _Status(_Part, frozen=True):
    allocation: dict[str, Any] | None = None


class ResourceClaim(_Part, frozen=True):
    """Requests devices, and says whether it has them."""

    metadata: ObjectMetadata = ObjectMetadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()


_claim: Final = msgspec.json.Decoder(ResourceClaim)


def holds_claims(pod: QueuedPod) -> bool:
    """Return whether the pod is work that holds devices, or waits for them. Pure."""
    owner = controller_of(pod.metadata)
    return bool(pod.spec.resource_claims) and not (owner and owner.kind == "DaemonSet")


def claims_of(pod: QueuedPod) -> Iterator[str]:
    """Return the claims of a pod, `NAMESPACE/NAME`, those of templates once they exist. Pure."""
    for each in (*pod.spec.resource_claims, *pod.status.resource_claim_statuses):
        if each.resource_claim_name:
            yield f"{pod.metadata.namespace}/{each.resource_claim_name}"


def gpus_of(claim: ResourceClaim, device_class: str) -> int:
    """Return the GPUs that a claim waits for; 0: none, or it has them. Pure."""
    if claim.status.allocation is not None:
        return 0
    total = 0
    for each in claim.spec.devices.requests:
        wanted = each.exactly or next(iter(each.first_available), each)
        if wanted.device_class_name == device_class and not wanted.admin_access:
            total += wanted.count
    return min(max(total, 0), GPUS_MAX)


async def claimed_gpus(client: KubernetesClient, device_class: str) -> Mapping[str, int]:
    """List the claims that wait for GPUs, by `NAMESPACE/NAME`."""
    found = dict[str, int]()
    version = await client.version(GROUP, VERSIONS)
    if not version:
        return found
    async for page in client.pages(f"{GROUP}/{version}/resourceclaims"):
        for raw in page.items or ():
            claim = _claim.decode(raw)
            if gpus := gpus_of(claim, device_class):
                found[f"{claim.metadata.namespace}/{claim.metadata.name}"] = gpus
    return found
