"""Makes CoreWeave's node pool for one node, and reads instances from its answers. Pure."""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from schemas.launch_offers import Market
from services.provisioner.instances.instance_tags import tags_of, unique_name, with_tags
from services.provisioner.provider_client.provider import Instance, InstanceStatus, ProvisionRequest
from services.provisioner.providers.request_checks import check_labels, invalid

GROUP: Final = "compute.coreweave.com"
POOL_LABEL: Final = f"{GROUP}/node-pool"
"""The label that CoreWeave sets on each node."""
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_NAME: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", re.ASCII
)
LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
CLASSES: Final[dict[Market, str]] = {"on-demand": "default", "spot": "spot"}
ADDRESS_KINDS: Final = ("ExternalIP", "InternalIP")
"""In order of preference."""


class Taint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keeps pods that do not tolerate it off a node."""

    key: str
    """Name of the taint."""
    value: str = ""
    """Its value, which a toleration may name."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    """As Kubernetes defines them."""


def check(request: ProvisionRequest, provider: str, zone: str) -> None:
    """Raise INVALID with the remedy if CoreWeave cannot do what the pool needs."""
    pool = request.pool
    if request.zone not in ("", zone) or request.region:
        raise invalid(
            f"pool {pool} names a place, and provider {provider} is one cluster in zone "
            f"{zone or '(not configured)'}; remove `region` and `zones`, or add a provider",
        )
    if not NAME.fullmatch(unique_name(request)):
        raise invalid(f"Kubernetes refuses the name {request.name!r}; rename {pool}")
    if request.placement_group:
        raise invalid(
            f"pool {pool} names a placement group, and CoreWeave has none; take it out",
        )
    for what, given in (("ssh_keys", request.ssh_keys), ("user_data", request.user_data)):
        if given:
            raise invalid(
                f"pool {pool} has `{what}`, and nodes of a CKS cluster take none; take it out and "
                "run the agent as a DaemonSet",
            )
    rule = (
        "in Kubernetes: letters, digits, - _ and ., at most 63, with a letter or digit at both ends"
    )
    check_labels(tags_of(request), (LABEL_NAME, LABEL_VALUE), pool, rule)


def body(
    request: ProvisionRequest, market: Market, taints: Iterable[Taint], gpu_driver: str
) -> dict[str, Any]:
    """Return the body of a node pool of one node; the node has the same labels."""
    labels = tags_of(request)
    spec: dict[str, Any] = {
        "computeClass": CLASSES[market],
        "instanceType": request.instance_type,
        "autoscaling": False,
        "targetNodes": 1,
        "nodeLabels": labels,
        # A node is drained before its removal; what still runs must not delay it.
        "lifecycle": {"scaleDownStrategy": "PreferIdle"},
    }
    tainted = [msgspec.to_builtins(each) for each in taints]
    spec |= {"nodeTaints": tainted} if tainted else {}
    spec |= {"gpu": {"version": gpu_driver}} if gpu_driver else {}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "NodePool",
        "metadata": {"name": unique_name(request), "labels": labels},
        "spec": spec,
    }


def is_terminating(pool: Any) -> bool:
    """Return whether a pool is being removed."""
    return bool(pool["metadata"].get("deletionTimestamp"))


def nodes_of(pool: Any) -> int:
    """Return how many nodes a pool has."""
    return int((pool.get("status") or {}).get("currentNodes") or 0)


def instances(found: Iterable[Any], nodes: Iterable[Any], zone: str) -> list[Instance]:
    """Return every pool, and every node whose pool is gone: it is being removed."""
    nodes = list(nodes)
    made = {each["metadata"]["name"]: instance(each, nodes, zone) for each in found}
    left: dict[str, Instance] = {}
    for node in nodes:
        name = _pool_of(node)
        if name and name not in made:
            shown = Instance(
                name=name,
                provider_id=name,
                status="stopping",
                zone=zone,
                address=_address(node),
                host=node["metadata"]["name"],
            )
            left[name] = with_tags(shown, node["metadata"].get("labels") or {})
    return [*made.values(), *left.values()]


def instance(pool: Any, nodes: Iterable[Any], zone: str) -> Instance:
    """Return a pool as an instance, with the address and host of its node if it has one."""
    about = pool["metadata"]
    node = next((each for each in nodes if _pool_of(each) == about["name"]), None)
    created = about.get("creationTimestamp")
    made = Instance(
        name=about["name"],
        provider_id=about["name"],
        status=_status(pool),
        instance_type=(pool.get("spec") or {}).get("instanceType", ""),
        zone=zone,
        address=_address(node) if node else "",
        host=node["metadata"]["name"] if node else "",
        created_at=datetime.fromisoformat(created) if created else None,
    )
    return with_tags(made, about.get("labels") or {})


def _status(pool: Any) -> InstanceStatus:
    if is_terminating(pool):
        return "stopping"
    return "running" if nodes_of(pool) else "pending"


def _pool_of(node: Any) -> str:
    return str((node["metadata"].get("labels") or {}).get(POOL_LABEL, ""))


def _address(node: Any) -> str:
    addresses = {
        each["type"]: each["address"] for each in (node.get("status") or {}).get("addresses", ())
    }
    return next((addresses[kind] for kind in ADDRESS_KINDS if kind in addresses), "")
