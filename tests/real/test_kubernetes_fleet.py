"""Operators see what a replacement in a real cluster waits for, and it goes on by itself.

The services and agents run as `navarch serve` and `python -m agent` do.
"""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.real.kubernetes_cluster import Cluster, real_cluster
from tests.real.kubernetes_fleet import Fleet, known
from tests.real.kubernetes_work import (
    add_budget,
    add_replicas,
    asked,
    cordoned,
    node_of,
    pods,
    release,
)
from tests.real.test_existing_clusters import PAGE
from tests.real.test_existing_clusters import pytestmark as existing
from tests.real.test_kubernetes_page import blocks_of, run
from tests.real.test_kubernetes_situations import NODES_READ, ROLE, add_pod
from tests.support.inprocess import eventually

pytestmark = [*existing, pytest.mark.timeout(480)]

RECREATED_SECONDS_MAX: Final = 75.0
"""docs/existing-clusters.md says "within a minute", in which a busy machine is late."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Start a control plane without anything of Navarch."""
    async with real_cluster(tmp_path) as made:
        yield made


async def test_a_replacement_says_what_it_waits_for_and_goes_on(cluster: Cluster) -> None:
    """A missing right, a budget, a bare pod and an API server that is away; then a recreated node.

    Nothing needs a person but what the pods themselves wait for.
    """
    _, apply, _, grant, _ = blocks_of(PAGE, "bash")
    await run(cluster, apply)
    await run(cluster, grant)
    async with AsyncExitStack() as started:
        fleet = Fleet(cluster, started)
        await fleet.start(removal="node-object")
        names = [await fleet.join(f"i-{each}") for each in range(3)]
        await fleet.shows("list", *(known(each) for each in names))
        served = (cluster.folder / "serve.log").read_text()
        assert served.count("event about no node of ours") <= len(names)  # agents were early
        await add_replicas(cluster, "gpu", 3)
        await add_budget(cluster, "gpu", 3)
        broken = str((await pods(cluster, "gpu"))[0]["spec"]["nodeName"])
        await add_pod(cluster, "bare", broken)
        rules = (await cluster.get(ROLE))["rules"]
        await cluster.patch(ROLE, {"rules": NODES_READ})

        fleet.write_fault(broken)
        why = f"why {known(broken)}"

        async def refused() -> bool:
            tried = [each for each in asked(cluster) if each["verb"] == "patch"]
            return len(tried) > 1 and tried[-1]["responseStatus"]["code"] == 403

        await eventually(refused, within_seconds=90, every=0.2)
        await cluster.patch(ROLE, {"rules": rules})

        async def is_cordoned() -> bool:
            return cordoned(await node_of(cluster, broken)) == (True, True)

        await eventually(is_cordoned, within_seconds=60, every=0.1)
        for command in (why, f"events --node {known(broken)} --since 1h"):
            await fleet.shows(
                command, "waits for its disruption budget", "no controller would recreate it"
            )
        listed = await fleet.shows("list", known(broken))
        (row,) = (each for each in listed.splitlines() if known(broken) in each)
        assert "drained" not in row

        await cluster.kill("kube-apiserver")
        await fleet.shows(why, "disruption budget")
        await cluster.start_api()
        await release(cluster, "gpu")

        async def left() -> bool:
            return not await pods(cluster, "gpu", broken)

        await eventually(left, within_seconds=60, every=0.2)
        assert (await cluster.api.get(f"/api/v1/nodes/{broken}")).is_success
        assert (await cluster.api.delete("/api/v1/namespaces/default/pods/bare")).is_success

        async def removed() -> bool:
            return (await cluster.api.get(f"/api/v1/nodes/{broken}")).status_code == 404

        await eventually(removed, within_seconds=90, every=0.2)
        (other, _) = set(names) - {broken}
        assert (await cluster.api.delete(f"/api/v1/nodes/{other}")).is_success
        await fleet.register(other, "i-recreated")
        begun = time.monotonic()
        await fleet.shows("instances --output json", "i-recreated")
        assert time.monotonic() - begun < RECREATED_SECONDS_MAX
