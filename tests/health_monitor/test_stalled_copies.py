"""The copy of a fact that waits begins again, for a server that has all of EVENTS."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.health_monitor.fact_intake import (
    STALLED,
    STALLED_MAX,
    MissingFact,
    successor_of,
)

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def test_each_further_beginning_waits_three_times_as_long() -> None:
    """A disk that is full is no reason to elect a leader each second."""
    missing, waits = MissingFact(7, NOW), []
    for _ in range(6):
        at = missing.since + missing.patience
        assert not missing.is_stalled(at - timedelta(milliseconds=1))
        assert missing.is_stalled(at)
        waits.append(missing.patience)
        missing = missing.begun_again(at)
    assert waits == [STALLED, 3 * STALLED, 9 * STALLED, 27 * STALLED, STALLED_MAX, STALLED_MAX]


def replica(name: str, **changes: Any) -> dict[str, Any]:
    """Return a replica as nats-server describes one that has everything."""
    return {"name": name, "current": True, "active": 5, **changes}


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([replica("n2", active=9), replica("n3", active=3)], "n3"),
        ([replica("n2", offline=True), replica("n3", active=9)], "n3"),
        ([replica("n2", lag=4), replica("n3", active=9)], "n3"),
        ([replica("n2", current=False), replica("n3", offline=True)], ""),
        ([], ""),
    ],
)
def test_a_leader_steps_down_for_a_server_that_has_everything(
    replicas: list[dict[str, Any]], expected: str
) -> None:
    """An election without such a server would leave EVENTS without a leader for long."""
    assert successor_of({"cluster": {"leader": "n1", "replicas": replicas}}) == expected
    assert successor_of({}) == ""
