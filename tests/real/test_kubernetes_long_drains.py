"""Drains on a real control plane over expired tokens and outages, and what they ask of the API.

NAVARCH_TOKEN_SECONDS=600 has the tokens live for ten minutes, as a cluster's own do at the least,
and the drain for half an hour.
"""

import asyncio
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
import yaml

from services.notifier.workload.drain_watch import DrainWatch
from services.primitives.clock import SystemClock
from tests.real.kubernetes_cluster import Cluster, needs_kubernetes, real_cluster
from tests.real.kubernetes_work import (
    add_budget,
    add_nodes,
    add_replicas,
    asked,
    kinds,
    notifier,
    order,
    pods,
    reference,
    release,
    until_drained,
    until_said,
)
from tests.support.cutting import Proxy
from tests.support.inprocess import eventually

log = logging.getLogger(__name__)

TOKEN_SECONDS: Final = float(os.environ.get("NAVARCH_TOKEN_SECONDS", "20"))
TOKENS: Final = 3
"""So many lives of a token does a drain last."""
EVICTED_EVERY_SECONDS_MAX: Final = 20.0
"""An eviction is tried each five seconds; a new login may take a few."""
OUTAGE_SECONDS: Final = 60.0
WARNINGS_MAX: Final = 10
TRIES_MAX: Final = 60
"""In half a minute without an answer, of watches and evictions."""
IDLE_REQUESTS_MAX: Final = 5
"""In a minute, with 500 nodes."""
DRAINED: Final = 50
DRAIN_REQUESTS_MAX: Final = 12 * DRAINED
"""Each reads and patches its node twice, and evicts one pod; it was 963 once."""
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(240 + TOKENS * TOKEN_SECONDS),
    pytest.mark.asyncio(loop_scope="module"),
    needs_kubernetes(),
]
RBAC: Final = Path(__file__).parents[2] / "deploy/kubernetes/notifier-rbac.yaml"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Start one control plane, with the notifier's rights."""
    async with real_cluster(tmp_path_factory.mktemp("kubernetes")) as made:
        await made.apply(RBAC)
        yield made


async def test_tokens_expire_while_a_budget_holds_a_drain(cluster: Cluster) -> None:
    """Evictions go on from each token to the next, and the drain ends when the budget lets it."""
    first, _ = await add_nodes(cluster, "tokens", 2)
    await add_replicas(cluster, "tokens", 4)
    await add_budget(cluster, "tokens", 4)
    account = await cluster.get("/api/v1/namespaces/navarch/serviceaccounts/navarch-notifier")
    given = cluster.short_lived(account["metadata"]["uid"], TOKEN_SECONDS)
    login = yaml.safe_load(given.read_text())["users"][0]["user"]

    async def renew() -> None:
        while True:
            await asyncio.sleep(TOKEN_SECONDS * 0.8)
            cluster.short_lived(account["metadata"]["uid"], TOKEN_SECONDS)

    renewing = asyncio.create_task(renew())
    begun = len(asked(cluster))
    async with notifier(cluster, user="short-lived") as made:
        await made.drain(order(first, "drain"))
        await until_said(made, first, "disruption budget")
        await asyncio.sleep(TOKENS * TOKEN_SECONDS)  # the lives of the tokens themselves
        assert await pods(cluster, "tokens", first)
        await release(cluster, "tokens")
        await until_drained(made, first)
    renewing.cancel()
    expired = {"Authorization": f"Bearer {login['token']}"}
    assert (await cluster.api.get("/api/v1/nodes", headers=expired)).status_code == 401
    requests = asked(cluster, begun)
    tried = [
        time.mktime(time.strptime(each["requestReceivedTimestamp"][:19], "%Y-%m-%dT%H:%M:%S"))
        for each in requests
        if each["objectRef"].get("subresource") == "eviction"
    ]
    apart = [after - before for before, after in itertools.pairwise(tried)]
    assert max(apart) < EVICTED_EVERY_SECONDS_MAX, apart
    assert tried[-1] - tried[0] > TOKENS * TOKEN_SECONDS - EVICTED_EVERY_SECONDS_MAX


async def test_a_minute_without_the_api_server(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The drain counts as unfinished, is warned of a few times, and goes on at once afterwards."""
    first, _ = await add_nodes(cluster, "outage", 2)
    await add_replicas(cluster, "outage", 4)
    await add_budget(cluster, "outage", 4)
    proxy, tries = Proxy(cluster.port), Counter[str]()
    await proxy.restore()

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries["all"] += 1
        writer.close()

    async with notifier(cluster, port=proxy.port) as made:
        await made.drain(order(first, "drain"))
        drained = asyncio.create_task(DrainWatch(made, SystemClock()).drained(reference(first)))
        await until_said(made, first, "disruption budget")
        caplog.clear()
        caplog.set_level(logging.INFO)
        await proxy.cut()
        await cluster.kill("kube-apiserver")
        await asyncio.sleep(OUTAGE_SECONDS / 2)  # first half: connections are refused
        async with await asyncio.start_server(hang_up, "127.0.0.1", proxy.port):
            await asyncio.sleep(OUTAGE_SECONDS / 2)  # second half: they are closed
        assert 0 < tries["all"] <= TRIES_MAX
        assert not drained.done()
        warned = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert len(warned) <= WARNINGS_MAX, [each.getMessage() for each in warned]
        assert [each for each in caplog.records if each.exc_info] == []
        await cluster.start_api()
        await release(cluster, "outage")
        await proxy.restore()
        back = time.monotonic()
        async with asyncio.timeout(60):
            await drained
    await proxy.cut()
    log.info("drained %.1f s after the return, %s", time.monotonic() - back, tries)


async def test_a_version_that_the_server_has_forgotten(cluster: Cluster) -> None:
    """The notifier lists everything again (410), and sees what happened meanwhile."""
    (name,) = await add_nodes(cluster, "forgotten", 1)
    await add_replicas(cluster, "forgotten", 1)
    await add_budget(cluster, "forgotten", 1)
    proxy = Proxy(cluster.port)
    await proxy.restore()
    login = yaml.safe_load(cluster.kubeconfig("notifier").read_text())["users"][0]["user"]

    async def has_rights() -> bool:
        allowed = {"Authorization": f"Bearer {login['token']}"}
        return (await cluster.api.get("/api/v1/pods?limit=1", headers=allowed)).is_success

    async with notifier(cluster, port=proxy.port) as made:
        await made.drain(order(name, "drain"))
        await until_said(made, name, "disruption budget")
        await proxy.cut()
        await cluster.kill("kube-apiserver")
        await cluster.touch_and_compact()
        await cluster.start_api()
        await eventually(has_rights, every=0.2)  # else a 403 is what has it list again
        begun = len(asked(cluster))
        await release(cluster, "forgotten")
        await proxy.restore()
        await until_drained(made, name)
    await proxy.cut()
    again = kinds(asked(cluster, begun))
    assert min(again["list/pods"], again["list/nodes"]) >= 1, again


async def test_how_much_five_hundred_nodes_ask_of_the_server(cluster: Cluster) -> None:
    """The audit log counts a minute in which nothing happens, and fifty drains at once."""
    await add_nodes(cluster, "asks", 500)
    await add_replicas(cluster, "asks", 500)
    busy = sorted({each["spec"]["nodeName"] for each in await pods(cluster, "asks")})[:DRAINED]
    assert len(busy) == DRAINED
    async with notifier(cluster) as made:
        await made.node_states([reference(each) for each in busy])
        begun = len(asked(cluster))
        await asyncio.sleep(60)  # the minute itself
        idle = kinds(asked(cluster, begun))
        assert idle.total() <= IDLE_REQUESTS_MAX, idle
        begun = len(asked(cluster))
        watch = DrainWatch(made, SystemClock())
        for step in ("cordon", "drain"):
            act = getattr(made, step)
            await asyncio.gather(*(act(order(each, step)) for each in busy))
        async with asyncio.timeout(120):
            await asyncio.gather(*(watch.drained(reference(each)) for each in busy))
        drains = kinds(asked(cluster, begun))
    log.info("requests in a minute: %s; for %d drains: %s", idle, DRAINED, drains)
    assert drains.total() <= DRAIN_REQUESTS_MAX, drains

    async def left() -> bool:
        found = await pods(cluster, "asks")
        return not {each["spec"]["nodeName"] for each in found} & set(busy)

    await eventually(left, within_seconds=60, every=0.5)
