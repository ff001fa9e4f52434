"""Live mode: simulated agents against real services."""

from datetime import UTC, datetime, timedelta

from services.simulator.engine.real_time_fleet import RealTimeContext


def test_live_agents_tell_the_real_time() -> None:
    """Whatever clock hosts of a simulation have: in live mode theirs is this machine's."""
    now = RealTimeContext("1", lambda _: None).clock_of("node-1").now()
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)
