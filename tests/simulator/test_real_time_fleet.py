"""Simulated agents in real time, against real services."""

from datetime import UTC, datetime, timedelta

from services.simulator.engine.real_time_fleet import RealTimeContext


def test_real_time_agents_use_the_machines_clock() -> None:
    """A simulated host's clock may be wrong; in real time it is this machine's clock."""
    now = RealTimeContext("1", lambda _: None).clock_of("node-1").now()
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)
