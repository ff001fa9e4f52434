"""Runs Navarch's suite for autoscalers, and asks at different hours."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from navarch.services.pool_manager.autoscaling.autoscaler_conformance import AutoscalerConformance
from navarch.services.pool_manager.autoscaling.autoscalers import PoolMetrics, PoolState
from navarch_office_hours import OfficeHours


class TestOfficeHours(AutoscalerConformance):
    """Asks about pools in every condition."""

    @pytest.fixture
    def make(self) -> Callable[[], OfficeHours]:
        """Return what makes the autoscaler."""
        return lambda: OfficeHours(options=OfficeHours.Options())


@pytest.mark.parametrize(
    ("hour", "utilization", "wanted"),
    [
        (8, 95.0, 1),
        (9, 95.0, 5),
        (17, 60.0, 4),
        (17, 20.0, 3),
        (17, None, 4),
        (18, 95.0, 1),
    ],
)
def test_the_hour_decides_before_the_load(
    hour: int, utilization: float | None, wanted: int
) -> None:
    """Four nodes grow or shrink by one within office hours, and are one outside of them."""
    state = PoolState(
        pool="training",
        current_nodes=4,
        ready_nodes=4,
        min_nodes=0,
        max_nodes=8,
        metrics=PoolMetrics(utilization=utilization),
        now=datetime(2030, 1, 7, hour, tzinfo=UTC),
    )
    found = OfficeHours(options=OfficeHours.Options(outside=1)).recommend(state)
    assert found.target_nodes == wanted
    assert found.reason
