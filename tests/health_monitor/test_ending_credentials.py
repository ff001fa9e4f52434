"""The command `status` shows the nodes whose credentials are not renewed."""

from datetime import UTC, datetime, timedelta

from schemas.messages import encode
from schemas.node_records import HeartbeatRecord
from services.health_monitor.rules.expired_heartbeats import NAMED_MAX, EndingCredentials

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def beat(node: str, until: datetime | None) -> bytes:
    """Return a heartbeat that says when the node's credentials end."""
    return encode(HeartbeatRecord(pool="training", node=node, time=NOW, credentials_until=until))


def test_nodes_near_their_expiry_are_named_until_they_are_renewed_or_silent() -> None:
    """The first to expire first; a heartbeat without the date ends the warning."""
    known = EndingCredentials()
    for day in range(NAMED_MAX + 1, 0, -1):
        known.add(f"training.n{day}", beat(f"n{day}", NOW + timedelta(days=day)))
    everyone = {f"training.n{day}" for day in range(1, NAMED_MAX + 2)}

    (warning,) = known.warnings(everyone)
    assert "training/n1 at 2026-11-24 00:00 UTC, training/n2 at" in warning.reason
    assert warning.reason.endswith("2026-11-28 00:00 UTC and others")
    assert "navarch nats-config agent POOL/NODE" in warning.remedy
    known.add("training.n1", beat("n1", None))
    (warning,) = known.warnings(everyone)
    assert "training/n1 " not in warning.reason
    assert known.warnings({"training.n1"}) == []


def test_silence_is_explained_from_the_expiry_on() -> None:
    """Not before, not of other nodes, and not by a heartbeat that cannot be read."""
    known = EndingCredentials()
    known.add("training.n1", beat("n1", NOW))
    known.add("training.n2", b'{"credentials_until": 7}')

    assert known.expired("training.n1", NOW)
    assert not known.expired("training.n1", NOW - timedelta(seconds=1))
    assert not known.expired("training.n2", NOW)
