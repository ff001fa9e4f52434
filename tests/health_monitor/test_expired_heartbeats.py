"""When an expired heartbeat is a loss, and when it is our own lag."""

import pytest

from services.health_monitor.rules.expired_heartbeats import (
    CONFIRM_SECONDS,
    HOLD_SECONDS_MAX,
    ExpiredHeartbeats,
)

INTERVAL_SECONDS = 10.0
ALIVE = 200
TOGETHER_HOLD_SECONDS = INTERVAL_SECONDS + CONFIRM_SECONDS

CASES = [
    # expired together, lag, seconds after -> published, reported as lag
    pytest.param(1, 0.0, 1.0, 0, False, id="one-is-confirmed-first"),
    pytest.param(1, 0.0, CONFIRM_SECONDS, 1, False, id="one-is-a-loss"),
    pytest.param(1, 60.0, CONFIRM_SECONDS, 1, False, id="one-is-a-loss-whatever-lags"),
    pytest.param(50, 0.0, CONFIRM_SECONDS, 0, False, id="many-wait-for-one-more-heartbeat"),
    pytest.param(50, 0.0, TOGETHER_HOLD_SECONDS, 50, False, id="many-are-losses"),
    pytest.param(50, 5.0, TOGETHER_HOLD_SECONDS, 0, True, id="many-while-we-lag"),
    pytest.param(50, 5.0, HOLD_SECONDS_MAX, 50, False, id="not-for-ever"),
]


@pytest.mark.parametrize(("count", "lag_seconds", "after", "published", "lags"), CASES)
def test_what_is_published(count, lag_seconds, after, published, lags):
    """A few expire, some time passes, and the bus answers slowly or not."""
    expired = ExpiredHeartbeats(INTERVAL_SECONDS)
    for number in range(count):
        expired.expired(f"training.node-{number}", 100.0)
    now = 100.0 + after
    assert bool(expired.lag_reason(now, ALIVE, lag_seconds)) == lags
    assert len(expired.due(now, ALIVE, lag_seconds)) == published


def test_many_that_beat_again_were_never_lost():
    """Nodes that beat again are not published as lost, and their delay is reported as our lag."""
    expired = ExpiredHeartbeats(INTERVAL_SECONDS)
    for number in range(50):
        expired.expired(f"training.node-{number}", 100.0)
    for number in range(40):
        expired.beats(f"training.node-{number}")
    assert "50 heartbeats expired" in expired.lag_reason(105.0, ALIVE, 0.0)
    due = expired.due(100.0 + TOGETHER_HOLD_SECONDS, ALIVE, 0.0)
    assert due == [f"training.node-{number}" for number in range(40, 50)]
    assert expired.lag_reason(161.0, ALIVE, 0.0) == ""
