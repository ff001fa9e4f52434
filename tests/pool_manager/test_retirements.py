"""A node that its cloud retires in days leaves when that costs no work, and in time."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.duration import Duration
from schemas.node_records import CloudNotice, GpuUse, NodeRecord
from schemas.pool_records import OpenSaga
from schemas.settings import BudgetSpec, WindowSpec
from services.pool_manager.planner import retirements
from services.pool_manager.planner.explanation.pool_explanation import present_answer
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import NodeUse
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec
from tests.support.explained import node_blocks

HOUR = timedelta(hours=1)
NEEDED = timedelta(hours=1, minutes=20, seconds=5)
BUSY = NodeUse(gpus=GpuUse(busy=True, since=NOW - HOUR))
IDLE = NodeUse(gpus=GpuUse(busy=False, since=NOW - HOUR), work="none")
WAITS = replace(IDLE, work="runs")
UNASKED = replace(IDLE, work="unknown")
RESTED = NodeUse(gpus=GpuUse(busy=False, since=NOW - timedelta(minutes=4)), work="none")
SERVICE = WindowSpec(name="now", kind="service", start="0 12 * * *", duration=Duration(3600))
TONIGHT = WindowSpec(name="night", kind="service", start="0 22 * * *", duration=Duration(3600))


def retiring(name: str = "a", hours: float = 48, **changes: Any) -> NodeRecord:
    """A node that is to be retired in so many hours."""
    notice = CloudNotice(
        kind="maintenance", effect="retire", deadline=NOW + hours * HOUR, at=NOW, reason="retires"
    )
    found = {"notices": {"n": notice}, "health": "degraded", "health_kind": "maintenance"}
    return node(name, **{**found, **changes})


def begun(*nodes: NodeRecord, use: NodeUse | None = None, **changes: Any) -> list[str]:
    """The nodes that are replaced now."""
    budget = BudgetSpec(max_quarantined=0, max_unavailable=2, max_replacements="unlimited")
    record = pool(10, spec=spec(budget=budget, **changes))
    others = (node(f"n{number}") for number in range(10 - len(nodes)))
    found = snapshot(record, *nodes, *others)
    used = {each.node: use for each in nodes} if use else None
    decided = plan(replace(found, use=used), NOW)
    return sorted(each.node for each in decided.start.values() if each.kind == "replace")


@pytest.mark.parametrize(
    ("case", "use", "changes", "leaves"),
    [
        (retiring(), None, {}, False),
        (retiring(), BUSY, {}, False),
        (retiring(), RESTED, {}, False),
        (retiring(), WAITS, {}, False),
        (retiring(), UNASKED, {}, False),
        (retiring(), IDLE, {}, True),
        (retiring(gangs=("4711",)), IDLE, {}, False),
        (retiring(), BUSY, {"windows": (SERVICE,)}, True),
        (retiring(), BUSY, {"windows": (TONIGHT,)}, False),
        (retiring(), IDLE, {"windows": (TONIGHT,)}, False),
        (retiring(hours=9), IDLE, {"windows": (TONIGHT,)}, True),  # none opens in time
        (retiring(hours=9), BUSY, {"windows": (TONIGHT,)}, False),
        (retiring(hours=1.3), BUSY, {}, True),
        (retiring(health="unhealthy", health_kind="xid", health_at=NOW), BUSY, {}, True),
        (retiring(health="unhealthy", health_kind="maintenance", health_at=NOW), BUSY, {}, False),
        (retiring(spare=True, cordoned=True), BUSY, {"spares": 1}, True),
        (retiring(cordoned=True), BUSY, {}, True),
    ],
)
def test_it_leaves_when_that_costs_no_work(
    case: NodeRecord, use: NodeUse | None, changes: dict[str, Any], leaves: bool
) -> None:
    """A node without work leaves, or one that must; unknown counts as work."""
    assert (begun(case, use=use, **changes) == ["a"]) is leaves


def test_a_notice_without_a_time_is_not_waited_for() -> None:
    """The notice may take effect at any moment."""
    case = retiring()
    notice = msgspec.structs.replace(case.notices["n"], deadline=None)
    assert begun(msgspec.structs.replace(case, notices={"n": notice}), use=BUSY) == ["a"]


@pytest.mark.parametrize(("count", "rounds"), [(1, 1), (2, 1), (3, 2), (10, 5)])
def test_of_many_the_first_begin_earlier(count: int, rounds: int) -> None:
    """Half of the level is two at a time, and all are to be done before the cloud takes them."""
    nodes = [retiring(f"a{number}") for number in range(count)]
    record = pool(10, spec=spec(budget=BudgetSpec(max_unavailable=4)))
    latest = NOW + 48 * HOUR - rounds * NEEDED
    assert plan(snapshot(record, *nodes), NOW).wake_at == latest
    answer = present_answer(record, Nodes(nodes), NOW)
    named = [each for name in ("a0", f"a{count - 1}") for each in answer.of(name).blocked]
    assert {latest} == {each.until for each in named if each.gate == "retirement"}


def test_the_use_of_those_that_leave_first_is_asked_for() -> None:
    """Every decision asks for a bounded number."""
    many = [retiring(f"a{number:03}", hours=200 - number) for number in range(150)]
    record = pool(150, spec=spec(budget=BudgetSpec(max_unavailable=150)))
    asked = retirements.asked_about(record, many, NOW)
    assert (len(asked), asked[0], asked[-1]) == (100, "a149", "a050")


def test_the_use_of_those_that_leave_anyway_is_not_asked_for() -> None:
    """A window is open, it is time, or a saga is about the node."""
    record = pool(10, spec=spec())
    drains = {"s": OpenSaga(kind="replace", node="a", since=NOW)}
    served = pool(10, spec=spec(windows=(SERVICE,)))
    tonight = pool(10, spec=spec(windows=(TONIGHT,)))
    cases = [(record, 48), (served, 48), (record, 1), (pool(10, open=drains), 48)]
    cases += [(tonight, 48), (tonight, 9)]
    asked = [retirements.asked_about(each, [retiring(hours=hours)], NOW) for each, hours in cases]
    assert asked == [["a"], [], [], [], [], ["a"]]


def test_why_says_until_when_it_waits() -> None:
    """The line also says how to end that."""
    record = pool(1, spec=spec())
    [line] = node_blocks(retiring(), record, NOW)
    latest: datetime = NOW + 48 * HOUR - NEEDED
    assert f"at {latest.astimezone():%m-%d %H:%M:%S} at last" in line
    assert line.endswith("navarch replace a")
    assert node_blocks(retiring(hours=1), record, NOW) == ()


def test_why_says_in_which_window_it_leaves() -> None:
    """A pool with service windows has what can wait done in them."""
    [line] = node_blocks(retiring(), pool(1, spec=spec(windows=(TONIGHT,))), NOW)
    opens = (NOW + 10 * HOUR).astimezone()
    assert f"it leaves in the window night, from {opens:%m-%d %H:%M:%S}, or at " in line
    assert line.endswith("At once: navarch replace a")
