"""Asks a cluster which pod a service account's token is of, and on which node it runs.

The kubelet writes such a token into the pod, for the audience `navarch` alone, so it opens nothing
else, and it is void once the pod is gone. Kubernetes names the node from 1.30 on.
"""

import re
from typing import Any, Final

from services.provisioner.providers.kubernetes_api import KubernetesApi
from services.provisioner.providers.request_checks import invalid

REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
AUDIENCE: Final = "navarch"
ACCOUNT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}/[a-z0-9][a-z0-9.-]{0,252}")
NODE_KEY: Final = "authentication.kubernetes.io/node-name"


def check_account(account: str) -> None:
    """Raise ValueError if an option names no service account."""
    if account and not ACCOUNT.fullmatch(account):
        raise ValueError("`agent_account` is not NAMESPACE/NAME")


async def reviewed_node(api: KubernetesApi, provider: str, token: str, account: str) -> str:
    """Return the node of the pod of an account (`NAMESPACE/NAME`) that has this token."""
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
