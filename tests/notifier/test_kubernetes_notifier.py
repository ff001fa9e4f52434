"""The Kubernetes notifier against a server that answers as the API does."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from services.notifier.workload.workload_notifier import NodeReference, Notifier, WorkloadOrder
from tests.notifier.kubernetes_site import KubernetesSite
from tests.notifier.workload_sites import NODES

NODE = NODES[0]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[KubernetesSite]:
    """A cluster with a job on each node."""
    async with KubernetesSite(tmp_path).running() as made:
        yield made


@pytest.fixture
async def notifier(site: KubernetesSite) -> AsyncIterator[Notifier]:
    """A notifier of that cluster."""
    made = site.make()
    yield made
    await made.close()


def order(step: str = "cordon", **known: str) -> WorkloadOrder:
    """An order about a node, of which this is known."""
    about = NodeReference(pool="gpu", node=NODE, hostname=NODE)
    return WorkloadOrder(node=replace(about, **known), key=f"replace-1/{step}")


async def test_an_adopted_node_without_a_provider_id_is_found_by_its_uid(
    site: KubernetesSite, notifier: Notifier
) -> None:
    """Also where its agent reported the name of its pod as the host name."""
    await notifier.cordon(
        order(hostname="navarch-agent-x7k2p", provider_id=f"kubernetes://uid-{NODE}")
    )
    assert site.is_cordoned(NODE)
