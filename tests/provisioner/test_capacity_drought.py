"""An hour without capacity, in virtual time, with the real services: calls counted, return met."""

import pytest

from services.provisioner.offerings.offering_choice import PACE_FIRST
from services.simulator.engine import virtual_time
from tests.provisioner.capacity_drought import Drought, live
from tests.provisioner.test_offering_blocks import probe_budget
from tests.support.wide import WHOLE

pytestmark = pytest.mark.slow

NODES = 50
HOURLY = NODES if WHOLE else 8
"""So many wait a whole hour: calls are the offerings', whatever number of launches waits."""
HOUR = 3600.0 if WHOLE else 1200.0
"""By day a third of it: the pace of the probes is constant after a few minutes."""
REPLICAS = 2


def test_an_hour_without_capacity_costs_the_probe_budget_and_no_minute_more() -> None:
    """Many nodes wanted, three offerings empty: few calls, and the return is used at once."""
    drought = Drought(
        begins=dict.fromkeys("abc", 0.0), ends={"a": 10 * HOUR, "b": 10 * HOUR, "c": HOUR}
    )
    virtual_time.run(lambda: live(drought, HOURLY, HOUR + 120, REPLICAS))
    assert len(drought.waited) >= HOURLY
    budget = probe_budget(HOUR) + REPLICAS * PACE_FIRST
    assert all(drought.asked_while_dry(zone) <= budget for zone in "abc")
    made = drought.made["c"]
    assert len(made) == HOURLY
    assert made[0] - HOUR <= 60.0
    assert made[-1] - made[0] <= 60.0


def test_little_capacity_is_all_used_with_few_failed_calls() -> None:
    """Five come back where twenty are wanted: five are taken, and the rest waits again."""
    drought = Drought(
        begins=dict.fromkeys("abc", 0.0),
        ends={"a": 600.0, "b": HOUR, "c": HOUR},
        room={"a": 5},
    )
    virtual_time.run(lambda: live(drought, 20, 900.0, 1))
    assert len(drought.made["a"]) == 5
    failed = len([at for at in drought.calls["a"] if at >= 600.0]) - 5
    assert failed <= probe_budget(300.0) + 3


def test_capacity_that_ends_sends_launches_on_to_the_next() -> None:
    """The second offering is taken in the same launch, without waiting and without a new one."""
    drought = Drought(begins=dict.fromkeys("abc", 0.0), ends={"a": HOUR, "b": HOUR, "c": 0.0})
    virtual_time.run(lambda: live(drought, NODES, 120.0, 1))
    assert len(drought.made["c"]) == NODES
    assert max(drought.made["c"]) <= 60.0
