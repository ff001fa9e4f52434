"""`why` explains a degraded node that keeps its work and needs a remediation."""

from datetime import UTC, datetime

import pytest

from schemas.duration import Duration
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.settings import HealthSpec, PluginSettings, PoolSpec, WindowSpec
from services.fleet_client.why_text import why_node
from tests.support.explained import explained_node

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
LADDER = HealthSpec(remediation=PluginSettings(type="ladder"))
NIGHTLY = WindowSpec(name="nightly", kind="service", start="0 2 * * *", duration=Duration(3600))


@pytest.mark.parametrize(
    ("health", "windows", "at", "expected"),
    [
        (LADDER, (NIGHTLY,), 1, ". Remediation that can wait is done in the window nightly, at "),
        (LADDER, (NIGHTLY,), 2, ": it is done while the pool's service window is open."),
        (LADDER, (), 1, ": the pool has no service window for it; by hand: "),
        (
            HealthSpec(),
            (NIGHTLY,),
            1,
            ": the pool's remediation leaves that to operators; by hand: ",
        ),
    ],
    ids=["before the window", "in it", "no window", "no ladder"],
)
def test_a_degraded_node_names_when_it_is_remediated(
    health: HealthSpec, windows: tuple[WindowSpec, ...], at: int, expected: str
) -> None:
    """The answer names the time, or that an operator must remediate; until then the work stays."""
    node = NodeRecord(
        pool="training",
        node="n1",
        state="active",
        health="degraded",
        health_action="reset_gpu",
        health_reason="XID 156",
    )
    spec = PoolSpec(min_nodes=1, max_nodes=2, health=health, windows=windows)
    pool = PoolRecord(name="training", spec=spec, desired=1)
    answer = explained_node(node, pool, NOW.replace(hour=at))

    assert 1 == len(answer.blocked)
    assert answer.blocked[0].text.startswith(
        f"It keeps its work, and needs reset-gpu (XID 156){expected}"
    )


def test_without_a_window_it_waits_for_the_work_to_leave() -> None:
    """An operator need not do it by hand."""
    node = NodeRecord(
        pool="training", node="n1", state="active", health="degraded", health_action="reset_gpu"
    )
    spec = PoolSpec(min_nodes=1, max_nodes=2, health=LADDER)
    pool = PoolRecord(name="training", spec=spec, desired=1)
    [said] = explained_node(node, pool, NOW).blocked
    assert said.text.endswith(
        "it is done once it has no work and its GPUs have rested for 5 minutes"
    )


@pytest.mark.parametrize(
    ("health", "cordoned", "full", "expected"),
    [
        (HealthSpec(), (3,), False, "needs replace (XID 48): it is done while the pool's service"),
        (LADDER, (3,), False, "needs reset-gpu (XID 48): it is done while the pool's service"),
        (LADDER, (), True, "It still takes work, as budget.max_quarantined is reached"),
    ],
)
def test_a_node_with_a_faulty_gpu_names_its_repair(
    health: HealthSpec, cordoned: tuple[int, ...], *, full: bool, expected: str
) -> None:
    """The repair is that of an unhealthy node, in the window.

    A cap that delays the cordon is named.
    """
    node = NodeRecord(
        pool="training",
        node="n1",
        state="active",
        health="degraded",
        health_action="reset_gpu",
        health_reason="XID 48",
        faulty_gpus=(3,),
        cordoned_gpus=cordoned,
    )
    spec = PoolSpec(min_nodes=1, max_nodes=2, health=health, windows=(NIGHTLY,))
    pool = PoolRecord(name="training", spec=spec, desired=1, quarantine_full=full)
    answer = explained_node(node, pool, NOW.replace(hour=2))
    assert expected in answer.blocked[0].text
    summary = why_node(node, answer, [], []).summary
    assert ("GPU 3 cordoned" in summary) is bool(cordoned)
