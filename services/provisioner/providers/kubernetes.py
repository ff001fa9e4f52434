"""Kubernetes: nodes of a cluster that others make, found by label and adopted.

It launches nothing. An auto-scaling group, Karpenter or a person keeps the cluster at its size, and
the provisioner's sweep adopts each node that joins and retires each that leaves. A node's instance
is named by its `spec.providerID`.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

from schemas.duration import Duration
from schemas.names import POOL_NAME_CHARS_MAX, TOKEN, node_token
from schemas.settings import FilePath, Setting
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    ProvisionRequest,
)
from services.provisioner.provider_client.rate_limit import MakeRateLimiter
from services.provisioner.providers.aws_clients import AwsClients
from services.provisioner.providers.group_removal import (
    AutoScalingGroups,
    AutoScalingRemoval,
    GroupRemoval,
    NodeClaimDeletion,
    NodeDeletion,
)
from services.provisioner.providers.kubernetes_api import (
    NODES,
    KubernetesApi,
    check_account,
    reviewed_node,
)
from services.provisioner.providers.request_checks import distinctly_named, invalid
from services.workload_systems.cluster_access import ClusterAccess

TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
REGION_LABEL: Final = "topology.kubernetes.io/region"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
VISIBLE: Final = re.compile(r"[!-~]{1,512}")
SELECTOR_CHARS_MAX: Final = 1024
NAME_TAG: Final = "kubernetes-node"


class KubernetesProvider:
    """Lists and removes the nodes of one cluster."""

    capabilities = Capabilities(adopts=True)
    """It launches nothing."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures the provider by each pool's label selector.

        `providers: {eks: {type: kubernetes, selectors: {training: nvidia.com/gpu.present}}}`.
        """

        selectors: dict[str, str]
        """Pool -> label selector of its nodes, as `kubectl get nodes -l` takes it; a node that
        several select is the first one's."""
        kubeconfig: FilePath = ""
        """File; empty: the service account of the pod in which the provisioner runs."""
        context: str = ""
        """Of the kubeconfig; empty: its current one."""
        removal: Literal["", "node-claim", "auto-scaling-group", "node-object"] = ""
        """How the machine of a node is removed, so that its maker makes another: Karpenter's
        NodeClaim is deleted; the instance is terminated in its group; or the Node object alone is
        deleted, and the owner of the machine does the rest. Empty: nothing is removed."""
        agent_account: str = ""
        """Service account of the agents' pods, `NAMESPACE/NAME`: by its tokens the cluster says on
        which node an agent runs that requests credentials. Empty: none get any."""
        region: str = ""
        """Of the auto-scaling groups, which must be set for them."""
        profile: str = ""
        """In the shared AWS configuration; empty: the SDK searches for credentials."""
        endpoint_url: str = ""
        """Of AWS; empty: its own."""
        timeout: Duration = Duration(30)
        """Time limit of one request."""

        def __post_init__(self) -> None:
            """Refuse what would select every node, or none."""
            if not self.selectors:
                raise ValueError("`selectors` is empty; name the labels of each pool's nodes")
            for pool, selector in self.selectors.items():
                if not TOKEN.match(pool) or len(pool) > POOL_NAME_CHARS_MAX:
                    raise ValueError(f"selectors: {pool!r} is not the name of a pool")
                if not selector.strip() or len(selector) > SELECTOR_CHARS_MAX:
                    raise ValueError(
                        f"selectors.{pool}: write a label selector, as `nvidia.com/gpu.present`"
                    )
            check_account(self.agent_account)
            if self.region and self.removal != "auto-scaling-group":
                raise ValueError("`region` is of `removal: auto-scaling-group`; remove it")
            if self.removal == "auto-scaling-group" and not self.region:
                raise ValueError("`region` of the auto-scaling groups is missing; add it")

    def __init__(self, *, options: Options, environment: Environment) -> None:
        self.options = options
        self.name = environment.name
        access = ClusterAccess(kubeconfig=options.kubeconfig, context=options.context)
        self._api = KubernetesApi(access, options.timeout)
        self._removal = self._way(environment.rate_limiter)

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Raise ProviderError of kind INVALID: others make the nodes."""
        raise invalid(
            f"provider {self.name} launches nothing: add `nodes: adopted` to pool {request.pool}"
        )

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove the machine of a node; success if the cluster has none."""
        nodes = [each for each, _ in await self._nodes() if id_of(each) == provider_id]
        if nodes and self._removal is None:
            raise invalid(
                f"provider {self.name} has no `removal`, so it removes nothing: set it to "
                "node-claim, auto-scaling-group or node-object"
            )
        for each in nodes:
            assert self._removal is not None
            await self._removal.remove(each)

    async def list(self) -> list[Instance]:
        """Every node that a pool's selector selects."""
        found = [node_instance(node, pool) for node, pool in await self._nodes()]
        return distinctly_named(found, NAME_TAG)

    async def node_of_pod(self, token: str) -> str:
        """Ask the cluster on which node the pod of a token runs."""
        account = self.options.agent_account
        return node_token(await reviewed_node(self._api, self.name, token, account))

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()
        if self._removal is not None:
            await self._removal.close()

    async def _nodes(self) -> Sequence[tuple[Any, str]]:
        """The nodes, each once, with their pools."""
        found: dict[str, tuple[Any, str]] = {}
        for pool, selector in self.options.selectors.items():
            for node in await self._api.pages(NODES, selector):
                found.setdefault(node["metadata"]["uid"], (node, pool))
        return [*found.values()]

    def _way(self, rate_limiter: MakeRateLimiter) -> GroupRemoval | None:
        options = self.options
        match options.removal:
            case "node-claim":
                return NodeClaimDeletion(self._api)
            case "node-object":
                return NodeDeletion(self._api)
            case "auto-scaling-group":
                clients = AwsClients(
                    options.region,
                    profile=options.profile,
                    endpoint_url=options.endpoint_url,
                    timeout_seconds=options.timeout,
                    rate_limiter=rate_limiter,
                )
                return AutoScalingRemoval(self._api, AutoScalingGroups(clients))
            case _:
                return None


def node_instance(node: Any, pool: str) -> Instance:
    """Return a node as an instance. Pure."""
    about = node["metadata"]
    labels = about.get("labels") or {}
    created = about.get("creationTimestamp")
    return Instance(
        name=node_token(about["name"]),
        provider_id=id_of(node),
        status="stopping" if about.get("deletionTimestamp") else "running",
        pool=pool,
        instance_type=labels.get(TYPE_LABEL, ""),
        region=labels.get(REGION_LABEL, ""),
        zone=labels.get(ZONE_LABEL, ""),
        address=_address(node),
        created_at=datetime.fromisoformat(created) if created else None,
        tags={NAME_TAG: about["name"]},
    )


def id_of(node: Any) -> str:
    """Return the provider ID of a node, or what distinguishes one that has none."""
    given = str((node.get("spec") or {}).get("providerID") or "")
    return given if VISIBLE.fullmatch(given) else f"kubernetes://{node['metadata']['uid']}"


def _address(node: Any) -> str:
    addresses = (node.get("status") or {}).get("addresses") or ()
    return next((each["address"] for each in addresses if each["type"] == "InternalIP"), "")
