"""A stream that only agents write to is known to be unwritable from their heartbeats."""

from datetime import UTC, datetime

from schemas.messages import encode
from schemas.node_records import HeartbeatRecord
from services.health_monitor.rules.expired_heartbeats import NAMED_MAX, RefusedAgents

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def beat(node: str, *, unwritable: bool) -> bytes:
    """Return a heartbeat that says whether the node's stream is unwritable."""
    return encode(HeartbeatRecord(pool="training", node=node, time=NOW, unwritable=unwritable))


def test_nodes_that_cannot_publish_are_named_until_they_can_or_are_silent() -> None:
    """The nodes are named in order, and not all of many."""
    known = RefusedAgents()
    nodes = [f"training.n{number}" for number in range(NAMED_MAX + 1)]
    assert known.reason(nodes) == ""
    for key in nodes:
        known.add(key, beat(key.partition(".")[2], unwritable=True))
    assert known.reason(nodes).startswith("agents cannot publish their events: training/n0, ")
    assert known.reason(nodes).endswith("training/n4 and others")
    assert known.reason(["training.n2"]) == "agents cannot publish their events: training/n2"
    known.add("training.n2", beat("n2", unwritable=False))
    assert known.reason(["training.n2"]) == ""
