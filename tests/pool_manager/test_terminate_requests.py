"""`navarch terminate`: this node leaves, and its pool wants one fewer."""

from datetime import UTC, datetime

import msgspec
import pytest

from schemas.node_records import NodeRecord
from schemas.pool_events import RequestAccepted, RequestRefused
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.requests.request_decisions import decide
from services.pool_manager.requests.request_replies import QueuedRequest, RequestDecision
from services.pool_manager.service import build
from tests.pool_manager.fleet import ask, events, peers, settings, settled
from tests.support.inprocess import Running, eventually

__all__ = ["peers"]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = PoolSpec(provider="test", instance_type="t", min_nodes=1, max_nodes=9)
POOL = PoolRecord(name="training", spec=SPEC, desired=2)
NODE = NodeRecord(pool="training", node="n1", state="active", health="healthy")
HELD = {"held_until": datetime(2026, 1, 2, tzinfo=UTC), "held_by": "ada"}


def answered(record: PoolRecord, node: NodeRecord) -> RequestDecision:
    """Return the answer to a request about n1."""
    asked = QueuedRequest(
        id="request-1",
        sequence=1,
        time=NOW,
        pool="training",
        verb="terminate",
        payload=b'{"node": "n1", "timeout": "10m"}',
    )
    snapshot = PoolSnapshot(fleet="f", record=record, revision=1, nodes=Nodes((node,)))
    return decide(asked, snapshot, NOW)


def test_the_pool_wants_one_node_fewer_and_this_one_leaves() -> None:
    """The drain has the limit that was asked for; a repeat changes nothing further."""
    decision = answered(POOL, NODE)
    assert isinstance(decision.event, RequestAccepted)
    assert decision.event.note == "the desired size of training is 1 now"
    assert decision.record is not None
    (opened,) = decision.record.open.values()
    assert (opened.kind, opened.node, opened.drain_timeout_seconds) == ("scale-down", "n1", 600.0)
    assert decision.record.desired == 1
    again = answered(decision.record, NODE)
    assert isinstance(again.event, RequestAccepted)
    assert (again.event.id, again.event.saga) == (decision.event.id, decision.event.saga)
    assert again.record is None


@pytest.mark.parametrize(
    ("pool", "node", "refusal"),
    [
        ({"desired": 1}, {}, "below-minimum"),
        ({"removing": True}, {}, "wrong-state"),
        ({"spec": msgspec.structs.replace(SPEC, workload_names="gpu[1-9]")}, {}, "wrong-state"),
        ({"spec": msgspec.structs.replace(SPEC, nodes="adopted")}, {}, "wrong-state"),
        ({"spec": msgspec.structs.replace(SPEC, mode="observe")}, {}, "observing"),
        ({}, {"spare": True}, "wrong-state"),
        ({}, {"state": "leaving"}, "not-active"),
        ({}, HELD, "held"),
    ],
)
def test_what_the_pool_cannot_spare_stays(
    pool: dict[str, object], node: dict[str, object], refusal: str
) -> None:
    """The request is refused, and the pool's size stays."""
    decision = answered(
        msgspec.structs.replace(POOL, **pool), msgspec.structs.replace(NODE, **node)
    )
    assert isinstance(decision.event, RequestRefused)
    assert decision.event.refusal == refusal
    assert decision.record is None


@pytest.mark.usefixtures("peers")
async def test_no_other_node_leaves_and_none_is_launched(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """The pool-manager itself carries it out."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        await ask(bus, "scale", nodes=3)
        before = await eventually(settled(bus, 3))
        await ask(bus, "terminate", node=before[1])
        after = await eventually(settled(bus, 2))
        opened = await events(bus, "saga-opened")

    assert after == [before[0], before[2]]
    assert [each["kind"] for each in opened].count("scale-up") == 3
    assert [each["kind"] for each in opened].count("scale-down") == 1
