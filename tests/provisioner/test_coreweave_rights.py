"""The manifest with CoreWeave's rights permits what the provider requests, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from schemas.duration import Duration
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.coreweave import CoreWeaveProvider
from tests.provisioner.coreweave_server import CoreWeaveServer
from tests.provisioner.provisioner_parts import request

MANIFEST: Final = (
    Path(__file__).resolve().parents[2] / "deploy/kubernetes/coreweave-provisioner-rbac.yaml"
)
TYPE: Final = "gd-8xh100ib-i128"
RIGHTS: Final = {
    "GET nodepool": ("compute.coreweave.com", "nodepools", "get"),
    "GET nodepools": ("compute.coreweave.com", "nodepools", "list"),
    "POST nodepools": ("compute.coreweave.com", "nodepools", "create"),
    "DELETE nodepool": ("compute.coreweave.com", "nodepools", "delete"),
    "GET node": ("", "nodes", "get"),
    "GET nodes": ("", "nodes", "list"),
    "GET events": ("", "events", "list"),
    "POST tokenreview": ("authentication.k8s.io", "tokenreviews", "create"),
}
"""Call of the strict server, which refuses any other -> what Kubernetes asks a role for."""


def manifest() -> dict[str, Any]:
    """Return the manifest's objects by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


async def test_the_role_has_the_verbs_that_the_provider_uses(
    coreweave: CoreWeaveServer, make_coreweave: Callable[..., CoreWeaveProvider]
) -> None:
    """A launch that waits, one that is refused, an agent's pod, a list and a removal."""
    provider = make_coreweave(agent_account="navarch-agents/navarch-agent", settle=Duration(0.1))
    made = await provider.provision(request("web-1", instance_type=TYPE))
    await provider.node_of_pod("pod on g00001")
    coreweave.waiting = True
    await provider.provision(request("web-2", instance_type=TYPE))
    coreweave.waiting = False
    coreweave.conditions = [{"type": "Quota", "reason": "Over", "status": "False"}]
    with pytest.raises(ProviderError, match="QUOTA"):
        await provider.provision(request("web-3", instance_type=TYPE))
    await provider.terminate(made.provider_id)
    await provider.list()
    granted = {
        (group, resource, verb)
        for rule in manifest()["ClusterRole"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {RIGHTS[each] for each in coreweave.calls}


def test_the_role_is_bound_to_its_account_alone() -> None:
    """The role is bound to one account, of which no pod gets a token by itself."""
    found = manifest()
    account, bound = found["ServiceAccount"], found["ClusterRoleBinding"]
    about = {key: account["metadata"][key] for key in ("name", "namespace")}
    assert [{"kind": "ServiceAccount", **about}] == bound["subjects"]
    assert found["ClusterRole"]["metadata"]["name"] == bound["roleRef"]["name"]
    assert "Namespace" not in found  # two manifests that declare one take each other's labels
    assert account["automountServiceAccountToken"] is False
