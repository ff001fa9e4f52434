"""Tests show what every Autoscaler must keep; the author of a plugin runs them with pytest.

A class of tests in a package of yours inherits from the one here and makes the autoscaler:

    import pytest
    from navarch.services.pool_manager.autoscaling import autoscaler_conformance

    class TestOfficeHours(autoscaler_conformance.AutoscalerConformance):
        @pytest.fixture
        def make(self):
            return lambda: OfficeHours(options=OfficeHours.Options(begin=9, end=18))

It needs pytest (`navarch[conformance]`).
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Final

import pytest

from schemas.settings import Setting
from services.pool_manager.autoscaling.autoscalers import (
    Autoscaler,
    PoolMetrics,
    PoolState,
    Recommendation,
)
from services.pool_manager.autoscaling.metrics_sources import WaitingJobs

Make = Callable[[], Autoscaler]

NODES_MAX: Final = 100_000
MONDAY: Final = datetime(2030, 1, 7, tzinfo=UTC)
MOMENTS: Final = tuple(MONDAY + timedelta(hours=hours) for hours in (0, 10, 23, 130))
NOTHING: Final = PoolMetrics()
METRICS: Final = (
    NOTHING,
    PoolMetrics(utilization=0.0, utilization_history=(0.0,)),
    PoolMetrics(utilization=100.0, utilization_history=(10.0, 40.0, 70.0, 100.0)),
    PoolMetrics(utilization=50.0, pending_jobs=0, queue_depth=0),
    PoolMetrics(utilization=99.0, pending_jobs=10_000, queue_depth=20_000),
    PoolMetrics(pending_jobs=3),
    PoolMetrics(queue_depth=3),
    PoolMetrics(waiting=(WaitingJobs(nodes=8, count=2), WaitingJobs(gpus=1, count=9))),
    PoolMetrics(waiting=(WaitingJobs(nodes=5_000),), busy_nodes=2, not_for_nodes=1),
    PoolMetrics(waiting=(), busy_nodes=0),
    PoolMetrics(source_problem="no answer for 20 s"),
)
SIZES: Final = ((0, 0), (1, 0), (4, 4), (1_000, 900))
"""Nodes wanted, and those of them that serve."""


def states() -> Iterator[PoolState]:
    """Pools in every condition: empty, full, busy, idle, by day and night, known and unknown."""
    for (current, ready), metrics, now in product(SIZES, METRICS, MOMENTS):
        yield PoolState(
            pool="training",
            current_nodes=current,
            ready_nodes=ready,
            min_nodes=0,
            max_nodes=1_000,
            gpus_per_node=8,
            metrics=metrics,
            now=now,
        )


class AutoscalerConformance:
    """Inherit, name the class `Test…`, and write the fixture `make`."""

    @pytest.fixture
    def make(self) -> Make:
        """Return how the autoscaler is made: a fixture that each subclass overrides."""
        raise NotImplementedError("write the fixture `make`: see the module's first lines")

    def test_its_options_are_a_struct(self, make: Make) -> None:
        """Options are a strict struct, so that a configuration error names file, line and key."""
        options = getattr(type(make()), "Options", None)
        assert options is not None, "it has no inner struct `Options`"
        assert issubclass(options, Setting), "Options is no schemas.settings.Setting"
        assert options.__struct_config__.forbid_unknown_fields, "Options takes unknown keys"

    def test_it_has_an_answer_for_whatever_it_meets(self, make: Make) -> None:
        """A whole number that is no less than nothing, and a reason that a person can read."""
        for state in states():
            found = make().recommend(state)
            assert isinstance(found, Recommendation), f"{found!r} is no Recommendation: {state}"
            assert type(found.target_nodes) is int, f"{found.target_nodes!r} is no int: {state}"
            assert 0 <= found.target_nodes <= NODES_MAX, f"{found.target_nodes} nodes: {state}"
            assert found.reason.strip(), f"it says no reason: {state}"

    def test_the_same_state_has_the_same_answer(self, make: Make) -> None:
        """Earlier questions change no answer, so that replicas and restarts decide alike."""
        one = make()
        first = [one.recommend(state) for state in states()]
        again = [one.recommend(state) for state in reversed(list(states()))][::-1]
        assert first == again, "it remembers what it was asked before"
        fresh = [make().recommend(state) for state in states()]
        assert first == fresh, "another one answers otherwise"
