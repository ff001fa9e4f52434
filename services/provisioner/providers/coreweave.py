"""Launches CoreWeave nodes of one Kubernetes cluster (CKS), each as a node pool of its own.

A NodePool is a custom resource of the cluster's API with a target number of nodes; which nodes a
smaller target removes is CoreWeave's choice. So every node has a pool with a target of one. The
pool's name is derived from the intention and unique in the cluster, so that a repeated launch is
harmless and a removal removes exactly that node.
"""

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar, Final

from schemas.duration import Duration
from schemas.launch_offers import OpenMarket
from schemas.settings import FilePath, Setting
from services.primitives.errors import ConfigurationError
from services.provisioner.instances.instance_tags import (
    FLEET_TAG,
    NODE_TAG,
    TOKEN_TAG,
    unique_name,
)
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError, none_if
from services.provisioner.providers import coreweave_pool as pools
from services.provisioner.providers.coreweave_errors import is_settled, pool_error
from services.provisioner.providers.kubernetes_api import (
    NODES,
    KubernetesApi,
    check_account,
    reviewed_node,
)
from services.provisioner.providers.provider_secret import read_secret
from services.provisioner.providers.request_checks import invalid, options_of
from services.workload_systems.cluster_access import ClusterAccess

POOLS: Final = "/apis/compute.coreweave.com/v1alpha1/nodepools"
EVENTS: Final = "/api/v1/events"
PAGE: Final = 500
TRIES_MAX: Final = 3
"""Attempts of one launch whose pool is removed meanwhile."""
STRICT: Final = {"fieldValidation": "Strict"}
"""The cluster refuses unknown fields instead of dropping them."""


class CoreWeaveProvider:
    """Launches and removes nodes of one CKS cluster."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures the provider by its cluster's kubeconfig.

        `providers: {coreweave: {type: coreweave, kubeconfig: /etc/navarch/cks.yaml}}`.
        """

        kubeconfig: FilePath = ""
        """File of the cluster's kubeconfig."""
        context: str = ""
        """Of the kubeconfig; empty: its current one."""
        server: str = ""
        """The cluster's API server, where there is no kubeconfig."""
        token_env: str = "COREWEAVE_API_TOKEN"  # noqa: S105 - a variable's name
        """Environment variable that holds the token, with `server`."""
        token_file: FilePath = ""
        """File that holds it instead."""
        ca_file: FilePath = ""
        """Certificate authority of the server; empty: the machine's own."""
        zone: str = ""
        """The cluster's zone (US-EAST-04A), reported for its nodes; a pool may name no other."""
        market: OpenMarket = "on-demand"
        """The market of pools that name none."""
        taints: tuple[pools.Taint, ...] = ()
        gpu_driver: str = ""
        """Version of the driver on the nodes; empty: CoreWeave's own choice."""
        agent_account: str = ""
        """Service account of the agents' pods, `NAMESPACE/NAME`: by its tokens the cluster says on
        which node an agent runs that requests credentials. Empty: none get any."""
        settle: Duration = Duration(20)
        """How long a new pool is watched for an error that denies it its node."""
        poll_interval: Duration = Duration(2)
        """Interval between two looks at a new pool."""
        timeout: Duration = Duration(30)
        """Time limit of one request."""

        def __post_init__(self) -> None:
            """Refuse what is no service account."""
            check_account(self.agent_account)

    per_pool: ClassVar = frozenset({"taints", "gpu_driver"})
    """Options that a pool may set for its own nodes."""

    def __init__(self, *, options: Options, environment: Environment) -> None:
        self.options = options
        self.name = environment.name
        self._fleet = environment.fleet
        if bool(options.kubeconfig) == bool(options.server):
            raise ConfigurationError(
                "set either kubeconfig or server", key=f"providers.{self.name}"
            )
        token = options.server and read_secret(
            *(self.name, "token", "an API token"), env=options.token_env, file=options.token_file
        )
        access = ClusterAccess(
            kubeconfig=options.kubeconfig,
            context=options.context,
            server=options.server,
            token=token,
            ca_file=options.ca_file,
        )
        self._api = KubernetesApi(access, options.timeout)

    @property
    def capabilities(self) -> Capabilities:
        """A derived name serves as the idempotency token."""
        return Capabilities(idempotency_token=True, market=self.options.market, spot=True)

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Create a node pool of one node and watch whether it gets it; or adopt the existing."""
        pools.check(request, self.name, self.options.zone)
        market = request.market or self.options.market
        options = options_of(self, self.options, request)
        body = pools.body(request, market, options.taints, options.gpu_driver)
        for _ in range(TRIES_MAX):
            pool = await self._create_or_find(unique_name(request), body)
            pool = pool and await self._watch(pool, request)
            if pool is not None:
                selector = f"{pools.POOL_LABEL}={pool['metadata']['name']}"
                nodes = await self._api.pages(NODES, selector)
                return pools.instance(pool, nodes, self.options.zone)
        raise ProviderError("TRANSIENT", f"{request.name} is removed as fast as it is launched")

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove a node pool and its node; success if there is none."""
        if pools.NAME.fullmatch(provider_id):
            await self._api.delete(f"{POOLS}/{provider_id}")

    async def list(self) -> list[Instance]:
        """Return every node pool of a fleet, and every node left without its pool."""
        nodes = await self._api.pages(NODES, FLEET_TAG)
        found = await self._api.pages(POOLS, FLEET_TAG)
        return pools.instances(found, nodes, self.options.zone)

    async def node_of_pod(self, token: str) -> str:
        """Ask the cluster on which node the pod of a token runs, and of whose launch that is."""
        host = await reviewed_node(self._api, self.name, token, self.options.agent_account)
        node = await none_if(self._api.call("GET", f"{NODES}/{host}"), HTTPStatus.NOT_FOUND)
        labels = ((node or {}).get("metadata") or {}).get("labels") or {}
        if labels.get(FLEET_TAG) != self._fleet or not labels.get(NODE_TAG):
            raise invalid(f"the pod runs on {host}, which this fleet has not launched")
        return str(labels[NODE_TAG])

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    # --- a launch --------------------------------------------------------------------------------

    async def _create_or_find(self, name: str, body: dict[str, Any]) -> Any:
        """Return the pool of this name, created if there is none; None if removed meanwhile."""
        created = await none_if(
            self._api.call("POST", POOLS, body=body, query=STRICT), HTTPStatus.CONFLICT
        )
        return created or await self._pool(name)

    async def _watch(self, pool: Any, request: ProvisionRequest) -> Any:
        """Return the pool when it has no error, or time is up; None if it is being removed.

        A pool that will get no node is removed before the error is raised: it would keep waiting,
        and take a node later.
        """
        name = pool["metadata"]["name"]
        until = asyncio.get_running_loop().time() + self.options.settle
        while pool is not None:
            labels = pool["metadata"].get("labels") or {}
            if (labels.get(FLEET_TAG), labels.get(TOKEN_TAG)) != (request.fleet, request.token):
                raise invalid(f"another node pool is named {name}; remove or rename it")
            terminating = pools.is_terminating(pool)
            if not terminating:
                if pools.nodes_of(pool) or is_settled(pool):
                    return pool
                error = pool_error(pool, await self._events(pool))
                if error is not None:
                    await self._remove_failed(pool, error)
                    raise error
                if asyncio.get_running_loop().time() >= until:
                    return pool
            await asyncio.sleep(self.options.poll_interval)
            pool = await self._pool(name)
        return None

    async def _remove_failed(self, pool: Any, error: ProviderError) -> None:
        """Remove a pool that will get no node; where that fails the launch is in doubt."""
        try:
            about = pool["metadata"]
            await self._api.delete(f"{POOLS}/{about['name']}", uid=about["uid"])
        except ProviderError as again:
            raise ProviderError(
                "TRANSIENT",
                f"{error.message}; its pool could not be removed: {again.message}",
                retry_after=again.retry_after,
                unknown=error.unknown,
            ) from again

    async def _pool(self, name: str) -> Any:
        return await none_if(self._api.call("GET", f"{POOLS}/{name}"), HTTPStatus.NOT_FOUND)

    # --- requests --------------------------------------------------------------------------------

    async def _events(self, pool: Any) -> Any:
        """Return the events of this pool."""
        about = f"involvedObject.kind=NodePool,involvedObject.uid={pool['metadata']['uid']}"
        answer = await self._api.call(
            "GET", EVENTS, query={"fieldSelector": about, "limit": str(PAGE)}
        )
        return answer.get("items") or []
