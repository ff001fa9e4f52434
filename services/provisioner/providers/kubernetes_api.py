"""Requests to a Kubernetes API as every provider makes them, and which pod a token is of."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

import msgspec

from services.provisioner.provider_client.provider_errors import ProviderError, none_if
from services.provisioner.providers.kubernetes_errors import error_of
from services.provisioner.providers.request_checks import invalid
from services.workload_systems.cluster_access import ClusterAccess
from services.workload_systems.kubernetes_client import KubernetesClient, KubernetesError

NODES: Final = "/api/v1/nodes"
REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
AUDIENCE: Final = "navarch"
ACCOUNT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}/[a-z0-9][a-z0-9.-]{0,252}")
NODE_KEY: Final = "authentication.kubernetes.io/node-name"


class KubernetesApi:
    """Calls the API of one cluster."""

    def __init__(self, access: ClusterAccess, timeout_seconds: float) -> None:
        """Connect at the first request; ConfigurationError where that could not work."""
        access.check()
        self._client = KubernetesClient(access, timeout_seconds=timeout_seconds)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def pages(self, path: str, selector: str) -> list[Any]:
        """Every object with these labels, from all pages."""
        found: list[Any] = []
        with _provider_errors(f"GET {path}"):
            async for page in self._client.pages(path, labelSelector=selector):
                if page.items is None:
                    raise ProviderError("TRANSIENT", f"GET {path}: the answer is not a list")
                found += map(msgspec.json.decode, page.items)
        return found

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Make one request."""
        with _provider_errors(f"{method} {path}"):
            answer = await self._client.call(method, path, body=body, query=query)
            return msgspec.json.decode(answer or b"{}", type=dict[str, Any])

    async def delete(self, path: str, *, uid: str = "") -> bool:
        """Begin to delete an object; with a uid only if it has that one. False: there is none."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body |= {"preconditions": {"uid": uid}} if uid else {}
        gone = (HTTPStatus.NOT_FOUND, *([HTTPStatus.CONFLICT] if uid else []))
        return await none_if(self.call("DELETE", path, body=body), *gone) is not None


@contextmanager
def _provider_errors(call: str) -> Iterator[None]:
    try:
        yield
    except KubernetesError as error:
        raise error_of(error.status, error.reason, error.message, error.retry_after) from error
    except (TimeoutError, OSError) as error:
        raise ProviderError("TRANSIENT", f"{call}: {str(error) or 'no answer'}") from error
    except ValueError as error:  # msgspec's are such
        raise ProviderError("TRANSIENT", f"{call}: unreadable answer: {error}") from error


def check_account(account: str) -> None:
    """Raise ValueError if an option names no service account."""
    if account and not ACCOUNT.fullmatch(account):
        raise ValueError("`agent_account` is not NAMESPACE/NAME")


async def reviewed_node(api: KubernetesApi, provider: str, token: str, account: str) -> str:
    """Return the node of the pod of an account (`NAMESPACE/NAME`) that has this token.

    The kubelet writes such a token into the pod, for the audience `navarch` alone, so it opens
    nothing else, and it is void once the pod is gone. Kubernetes names the node from 1.30 on.
    """
    if not account:
        raise invalid(f"providers.{provider}.agent_account names no agents; set it")
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [AUDIENCE]},
    }
    answer = await api.call("POST", REVIEWS, body=body)
    return node_in(answer.get("status") or {}, account)


def node_in(status: Any, account: str) -> str:
    """Return the node that a review names; INVALID where it names none. Pure."""
    user = status.get("user") or {}
    if status.get("authenticated") is not True or AUDIENCE not in (status.get("audiences") or ()):
        raise invalid("the cluster does not know the pod's token")
    name = f"system:serviceaccount:{account.replace('/', ':')}"
    if user.get("username") != name:
        raise invalid(f"the token is not of the agents' service account {account}")
    match (user.get("extra") or {}).get(NODE_KEY):
        case [str(node)] if node:
            return node
        case _:
            raise invalid("the cluster does not say on which node the pod runs: it needs 1.30")
