"""A healthy node drained by an operator returns to service if its replacement fails."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas.node_records import NodeRecord
from schemas.pool_events import RequestAccepted
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.requests.request_decisions import decide
from services.pool_manager.requests.request_replies import QueuedRequest
from services.pool_manager.service import build
from tests.pool_manager.fleet import ask, events, nodes, peers, pools, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
SPEC = PoolSpec(provider="p", instance_type="t", min_nodes=1, max_nodes=9)
SPARE = NodeRecord(pool="training", node="s1", state="active", spare=True, cordoned=True)


@pytest.mark.parametrize(
    ("verb", "changes", "others", "restores_service"),
    [
        pytest.param("replace", {}, (), True, id="healthy and in service"),
        pytest.param("replace", {"health": "degraded"}, (), True, id="degraded, and in service"),
        pytest.param("reset-gpu", {}, (), True, id="a reset"),
        pytest.param("reboot", {}, (), True, id="a reboot"),
        pytest.param("replace", {"health": "unhealthy"}, (), False, id="unhealthy"),
        pytest.param("replace", {"lost": True}, (), False, id="silent"),
        pytest.param("replace", {"cordoned": True}, (), False, id="cordoned by an operator"),
        pytest.param("replace", {}, (SPARE,), False, id="a spare replaces it"),
        pytest.param("cordon", {}, (), False, id="a saga that restores the node itself"),
    ],
)
def test_which_nodes_are_uncordoned(
    verb: str, changes: dict[str, Any], others: tuple[NodeRecord, ...], *, restores_service: bool
) -> None:
    """A node that was healthy and in service at the request, and has no replacement."""
    node = NodeRecord(pool="training", node="n1", state="active", health="healthy")
    snapshot = PoolSnapshot(
        fleet="f",
        record=PoolRecord(name="training", spec=SPEC, desired=1),
        nodes=Nodes([msgspec.structs.replace(node, **changes), *others]),
    )
    payload = msgspec.json.encode({"node": "n1"})
    asked = QueuedRequest(id="request-5", time=NOW, pool="training", verb=verb, payload=payload)

    answer = decide(asked, snapshot, NOW)

    assert isinstance(answer.event, RequestAccepted)
    assert answer.record is not None
    assert restores_service == answer.record.open[answer.event.saga].restores_service


async def test_healthy_node_is_uncordoned_when_its_replacement_fails(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The launch fails: the node is uncordoned, and no longer counts as out of service."""
    async with Running(
        server.url, "pool-manager", build, settings(replace_order="provision_first")
    ):
        before = await eventually(settled(bus, 3))
        peers.fail["provision"] = "no capacity"
        await ask(bus, "replace", node=before[0])
        [failed] = await eventually(lambda: events(bus, "saga-failed"))
        after = await eventually(settled(bus, 3))
        [view] = [each for each in await nodes(bus) if each.id == before[0]]
        [pool] = await pools(bus)

    assert "no capacity" in failed["reason"]
    assert sorted(before) == sorted(after)
    assert (False, "active", 0) == (view.cordoned, view.status, pool.unavailable)
    assert {before[0]: 1} == peers.count("undo-cordon")
