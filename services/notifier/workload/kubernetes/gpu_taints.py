"""Keeps new work off single GPUs of a Kubernetes node.

With dynamic resource allocation (DRA): by a DeviceTaintRule for each device of a faulty GPU, which
the scheduler then allocates to no claim. The Node object owns the rules, so they go with it. In any
case a label of the node has the indices, and an annotation the UUIDs, for what else reads them.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from services.notifier.workload.workload_notifier import (
    GpuReference,
    StepFailure,
    WorkloadOrder,
    refuse_unset,
)
from services.workload_systems.kubernetes_client import (
    MERGE,
    KubernetesClient,
    KubernetesError,
)
from services.workload_systems.kubernetes_objects import NODES, KubernetesNode

FAULTY: Final = "node.navarch.io/faulty-gpus"
"""Label and annotation of the node."""
TAINT: Final = "node.navarch.io/faulty-gpu"
NODE_UID: Final = "node.navarch.io/node-uid"
"""Label of the rules: whose GPUs they are about."""
GROUP: Final = "/apis/resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1alpha3")
"""Newest first. DeviceTaintRule is in v1 from Kubernetes 1.37 on, in v1beta2 in 1.36, in v1alpha3
from 1.33 to 1.35, where it must be enabled."""
NOT_FOUND: Final = 404
CONFLICT: Final = 409


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


class _Attribute(msgspec.Struct, frozen=True):
    string: str = ""


class _Device(msgspec.Struct, frozen=True):
    name: str
    attributes: dict[str, _Attribute] = {}


class _Pool(msgspec.Struct, frozen=True):
    name: str = ""


class _SliceSpec(msgspec.Struct, frozen=True):
    driver: str
    pool: _Pool = _Pool()
    devices: tuple[_Device, ...] | None = None


class _Slice(msgspec.Struct, frozen=True):
    spec: _SliceSpec


class _Metadata(msgspec.Struct, frozen=True):
    name: str


class _Rule(msgspec.Struct, frozen=True):
    metadata: _Metadata


class GpuCordons:
    """Keeps the cordoned GPUs of one cluster."""

    def __init__(self, client: KubernetesClient, how: Literal["", "device-taint", "label"]) -> None:
        self._client = client
        self._how = how

    async def apply(self, node: KubernetesNode, order: WorkloadOrder) -> None:
        """Have these GPUs of the node cordoned, and no others."""
        if not self._how:
            refuse_unset("gpu_cordon", order)
            return
        if self._how == "device-taint":
            await self._taint(node, order)
        patch = label_patch(order.gpus)
        await self._client.call("PATCH", f"{NODES}/{node.key}", body=patch, content_type=MERGE)

    async def _taint(self, node: KubernetesNode, order: WorkloadOrder) -> None:
        version = await self._version("devicetaintrules")
        if not version:
            if order.gpus:
                raise _unable()
            return
        rules = f"{GROUP}/{version}/devicetaintrules"
        wanted: dict[str, Mapping[str, Any]] = {}
        if order.gpus:
            slices = [each async for each in self._slices(node.key)]
            for gpu in order.gpus:
                for body in _rules_of(node, gpu, slices, version, order.reason):
                    wanted[body["metadata"]["name"]] = body
        known = {each.metadata.name async for each in self._rules(rules, node)}
        for name in sorted(wanted.keys() - known):
            await self._call("POST", rules, CONFLICT, body=wanted[name])
        for name in sorted(known - wanted.keys()):
            await self._call("DELETE", f"{rules}/{name}", NOT_FOUND)

    async def _call(self, method: str, path: str, done_already: int, **call: Any) -> None:
        try:
            await self._client.call(method, path, **call)
        except KubernetesError as error:
            if error.status != done_already:
                raise

    async def _version(self, resource: str) -> str:
        """The newest version of the API that has a resource; empty: there is none."""
        for version in VERSIONS:
            try:
                found = await self._client.get(f"{GROUP}/{version}", _Resources)
            except KubernetesError as error:
                if error.status != NOT_FOUND:
                    raise
                continue
            if any(each.name == resource for each in found.resources):
                return version
        return ""

    async def _slices(self, node: str) -> AsyncIterator[_Slice]:
        version = await self._version("resourceslices")
        if not version:
            raise _unable()
        path = f"{GROUP}/{version}/resourceslices"
        async for page in self._client.pages(path, fieldSelector=f"spec.nodeName={node}"):
            for each in page.items or ():
                yield msgspec.json.decode(each, type=_Slice)

    async def _rules(self, path: str, node: KubernetesNode) -> AsyncIterator[_Rule]:
        selector = f"{NODE_UID}={node.metadata.uid}"
        async for page in self._client.pages(path, labelSelector=selector):
            for each in page.items or ():
                yield msgspec.json.decode(each, type=_Rule)


def _unable() -> StepFailure:
    return StepFailure(
        "this Kubernetes serves no DeviceTaintRule or ResourceSlice, so it cannot keep pods off a "
        "single GPU",
        "INVALID",
        "enable the feature gate DRADeviceTaintRules and its API version, or set `gpu_cordon: "
        f"label` if something of yours reads the label {FAULTY}; else remove `gpu_cordon`",
    )


def label_patch(gpus: Sequence[GpuReference]) -> dict[str, Any]:
    """The merge patch of the node that names these GPUs, or none."""
    indices = "_".join(str(each.index) for each in gpus) or None
    uuids = ",".join(each.uuid for each in gpus if each.uuid) or None
    return {"metadata": {"labels": {FAULTY: indices}, "annotations": {FAULTY: uuids}}}


def _rules_of(
    node: KubernetesNode, gpu: GpuReference, slices: Sequence[_Slice], version: str, reason: str
) -> Sequence[dict[str, Any]]:
    """The rules about a GPU: about itself, and about its parts."""
    found = [
        (each.spec, device)
        for each in slices
        for device in each.spec.devices or ()
        if gpu.uuid and any(value.string == gpu.uuid for value in device.attributes.values())
    ]
    if not found:
        raise StepFailure(
            f"no ResourceSlice of node {node.key} has a device with the UUID {gpu.uuid!r} (GPU "
            f"{gpu.index}), so its scheduler does not know this GPU by itself",
            "INVALID",
            "see `kubectl get resourceslices`: the GPUs' DRA driver must publish their UUIDs; "
            "without one remove `gpu_cordon`, and nodes are cordoned whole",
        )
    return [_rule(node, gpu, spec, device.name, version, reason) for spec, device in found]


def _rule(
    node: KubernetesNode,
    gpu: GpuReference,
    spec: _SliceSpec,
    device: str,
    version: str,
    reason: str,
) -> dict[str, Any]:
    about = f"{node.metadata.uid} {spec.driver} {spec.pool.name} {device}"
    digest = hashlib.sha256(about.encode()).hexdigest()[:20]
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": f"navarch-{digest}",
            "labels": {NODE_UID: node.metadata.uid},
            "annotations": {"node.navarch.io/reason": reason},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node.key, "uid": node.metadata.uid}
            ],
        },
        "spec": {
            "deviceSelector": {"driver": spec.driver, "pool": spec.pool.name, "device": device},
            "taint": {"key": TAINT, "value": f"gpu-{gpu.index}", "effect": "NoSchedule"},
        },
    }
