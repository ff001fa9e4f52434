"""Autoscalers: a pool's metrics in, its recommended size out; bounds and cooldown."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.duration import Duration, decode_hook
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from services.pool_manager.autoscaling.autoscaler_plugins import autoscaler_of
from services.pool_manager.autoscaling.autoscalers import (
    PoolMetrics,
    PoolState,
    Recommendation,
    slope,
)
from services.pool_manager.autoscaling.scaling_decision import decide
from services.primitives.errors import ConfigurationError

NOW = datetime(2030, 1, 1, 10, 30, tzinfo=UTC)  # a Tuesday


def state(current: int = 4, ready: int | None = None, **metrics: Any) -> PoolState:
    """Return the state of a pool of two to ten nodes."""
    return PoolState(
        pool="training",
        current_nodes=current,
        ready_nodes=current if ready is None else ready,
        min_nodes=2,
        max_nodes=10,
        metrics=PoolMetrics(**metrics),
        now=NOW,
    )


REACTIVE = {"type": "reactive", "scale_up_at": 80, "scale_down_at": 20}
QUEUE = {"type": "queue", "jobs_per_node": 1}
HALF = {"type": "queue", "jobs_per_node": 2}
DAY = {"start": "0 9 * * 1-5", "duration": "8h", "nodes": 8}
NIGHT = {"start": "0 22 * * *", "duration": "8h", "nodes": 9}
MORNING = {"start": "0 10 * * *", "duration": "1h", "nodes": 10}
BUSY_HOURS = {"start": "0 9 * * 1-5", "duration": "8h", "min_nodes": 6, "max_nodes": 8}
BOUNDED = {"type": "scheduled", "schedule": [BUSY_HOURS], "fallback": QUEUE}
AT_NIGHT = {"type": "scheduled", "schedule": [NIGHT], "fallback": QUEUE}
RISING = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
BOTH = [QUEUE, REACTIVE]


@pytest.mark.parametrize(
    ("raw", "given_state", "nodes"),
    [
        (REACTIVE, state(utilization=95.0), 5),
        (REACTIVE, state(utilization=5.0), 3),
        (REACTIVE, state(utilization=50.0), 4),
        (REACTIVE, state(utilization=80.0), 4),
        (REACTIVE, state(), 4),
        ({**REACTIVE, "step": 3}, state(utilization=95.0), 7),
        (REACTIVE, state(utilization=95.0, pending_jobs=2), 5),
        (REACTIVE, state(utilization=95.0, pending_jobs=0), 4),
        ({**REACTIVE, "grow_without_queue": True}, state(utilization=95.0, pending_jobs=0), 5),
        (REACTIVE, state(current=6, ready=4, utilization=95.0), 6),
        (REACTIVE, state(current=5, ready=4, utilization=100.0), 5),
        ({**REACTIVE, "step": 3}, state(utilization=19.0), 1),
        ({**REACTIVE, "scale_down_at": 79}, state(current=2, utilization=70.0), 2),
        (REACTIVE, state(current=1, utilization=0.0), 1),
        (REACTIVE, state(current=1, utilization=0.0, pending_jobs=0), 0),
        (REACTIVE, state(current=0, pending_jobs=0), 0),
        (REACTIVE, state(current=0, pending_jobs=1), 1),
        (QUEUE, state(queue_depth=24, pending_jobs=20), 24),
        (QUEUE, state(queue_depth=0), 0),
        (HALF, state(queue_depth=5), 3),
        (QUEUE, state(pending_jobs=20), 24),
        (QUEUE, state(current=24, ready=4, pending_jobs=20), 24),
        (QUEUE, state(pending_jobs=0), 4),
        (QUEUE, state(), 4),
        ({"type": "scheduled", "schedule": [DAY, NIGHT]}, state(), 8),
        ({"type": "scheduled", "schedule": [DAY, MORNING]}, state(), 10),
        ({"type": "scheduled", "schedule": [NIGHT]}, state(), 2),
        ({"type": "scheduled", "schedule": [NIGHT], "otherwise": 5}, state(), 5),
        (BOUNDED, state(queue_depth=2), 6),
        (BOUNDED, state(queue_depth=7), 7),
        (BOUNDED, state(queue_depth=24), 8),
        (AT_NIGHT, state(queue_depth=5), 5),
        ({"type": "scheduled", "schedule": [BUSY_HOURS]}, state(), 6),
        (
            {**BOUNDED, "schedule": [{**BUSY_HOURS, "autoscaler": REACTIVE}]},
            state(current=7, queue_depth=24, utilization=5.0),
            6,
        ),
        ({**BOUNDED, "schedule": [BUSY_HOURS, {**DAY, "nodes": 7}]}, state(queue_depth=1), 7),
        (
            {"type": "predictive", "ahead": "60s", "growth_factor": 2},
            state(utilization_history=RISING),
            7,
        ),
        ({"type": "predictive", "fallback": QUEUE}, state(utilization_history=RISING), 4),
        (
            {"type": "predictive", "fallback": QUEUE},
            state(utilization_history=RISING, queue_depth=9),
            9,
        ),
        (
            {"type": "composite", "mode": "avg", "autoscalers": BOTH},
            state(queue_depth=2, utilization=95.0),
            4,
        ),
        ({"type": "reactive"}, state(utilization=99.0, source_problem="refused"), 4),
        ({"type": "queue"}, state(queue_depth=9, source_problem="refused"), 4),
        ({"type": "predictive"}, state(utilization_history=RISING, source_problem="refused"), 4),
        ({"type": "predictive"}, state(utilization_history=(50.0, 60.0)), 4),
        ({"type": "predictive", "ahead": "60s"}, state(utilization_history=RISING), 6),
        ({"type": "predictive"}, state(utilization_history=(60.0, 61.0, 60.0, 61.0)), 4),
        ({"type": "predictive"}, state(utilization_history=(30.0, 20.0, 10.0)), 0),
        ({"type": "composite", "autoscalers": BOTH}, state(queue_depth=2, utilization=95.0), 5),
        ({"type": "composite", "autoscalers": BOTH}, state(queue_depth=9, utilization=95.0), 9),
        (
            {"type": "composite", "mode": "min", "autoscalers": BOTH},
            state(queue_depth=9, utilization=95.0),
            5,
        ),
    ],
)
def test_recommended_sizes(raw, given_state, nodes):
    """Each of the five; unknown metrics change nothing."""
    assert (
        nodes == autoscaler_of(raw, "pools.a.autoscaling", None).recommend(given_state).target_nodes
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"scale_up_at": 80}, "`type` is missing"),
        ({"type": "clever"}, "no navarch.autoscalers named 'clever'"),
        ({"type": "reactive", "scale_up": 80}, "unknown key; did you mean `scale_up_at`"),
        ({"type": "reactive", "scale_up_at": 10, "scale_down_at": 20}, "must be less"),
        ({"type": "scheduled", "schedule": [{**DAY, "start": "9 o'clock"}]}, "cron expression"),
        ({"type": "composite", "autoscalers": [{"type": "queue", "jobs": 1}]}, "unknown key"),
        ({**BOUNDED, "otherwise": 2}, "`otherwise` and `fallback` exclude each other"),
        ({**BOUNDED, "schedule": [{**BUSY_HOURS, "nodes": 7}]}, "`nodes` excludes min_nodes"),
        ({**BOUNDED, "schedule": [{**BUSY_HOURS, "min_nodes": 9}]}, "min_nodes 9 is above"),
        ({**BOUNDED, "schedule": [{"start": "0 9 * * *", "duration": "1h"}]}, "has no size"),
        ({**BOUNDED, "fallback": {"type": "reactiv"}}, r"fallback.type: no navarch.autoscalers"),
        (
            {**BOUNDED, "schedule": [{**BUSY_HOURS, "autoscaler": {"type": "queue", "jobs": 1}}]},
            r"schedule.0.autoscaler.jobs: unknown key",
        ),
    ],
)
def test_invalid_autoscaler_is_refused_at_start(raw, message):
    """The refusal of an invalid autoscaler has the known names."""
    with pytest.raises(ConfigurationError, match=message):
        autoscaler_of(raw, "pools.a.autoscaling", None)


def record(**changes: Any) -> PoolRecord:
    """Return a pool of two to ten nodes with a cooldown of five minutes."""
    text = {"provider": "fake", "instance_type": "x", "min_nodes": 2, "max_nodes": 10}
    spec = msgspec.convert({**text, **changes.pop("spec", {})}, PoolSpec, dec_hook=decode_hook)
    return PoolRecord(name="training", spec=spec, desired=4, **changes)


@pytest.mark.parametrize(
    ("before", "target", "nodes"),
    [
        (record(), 6, 6),
        (record(), 99, 10),
        (record(), 0, 2),
        (record(), 4, None),
        (record(scaled_at=NOW - timedelta(seconds=299)), 6, None),
        (record(scaled_at=NOW - timedelta(seconds=300)), 6, 6),
        (record(spec={"mode": "observe"}), 6, None),
    ],
)
def test_recommendation_is_followed_within_bounds_and_cooldown(before, target, nodes):
    """No recommendation is performed in observe mode."""
    change = decide(before, 7, Recommendation(target_nodes=target, reason="so"), "mine", NOW)
    assert nodes == (change.record.desired if change else None)
    if change:
        assert (change.event.previous, change.event.nodes, change.record.scaled_at) == (
            4,
            nodes,
            NOW,
        )
        assert change.event.reason.startswith("autoscaler mine: so")


@given(
    target=st.integers(-1_000_000, 1_000_000),
    desired=st.integers(2, 10),
    seconds=st.integers(0, 1_000),
)
def test_no_recommendation_exceeds_the_bounds(target, desired, seconds):
    """A pool keeps to its bounds and its cooldown, whatever a plugin recommends."""
    before = msgspec.structs.replace(
        record(scaled_at=NOW - timedelta(seconds=seconds)), desired=desired
    )
    change = decide(before, 1, Recommendation(target_nodes=target, reason=""), "mine", NOW)
    if change is not None:
        assert 2 <= change.record.desired <= 10
        assert seconds >= before.spec.cooldown == Duration(300)


def test_slope_of_a_line():
    """The slope is that of least squares."""
    assert slope((1.0, 3.0, 5.0, 7.0)) == pytest.approx(2.0)
    assert slope((5.0, 5.0, 5.0)) == pytest.approx(0.0)
