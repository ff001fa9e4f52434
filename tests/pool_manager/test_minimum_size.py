"""A pool below its minimum is reported, unless what fills it is under way."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.node_records import NodeRecord
from schemas.pool_events import PoolCondition
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import PoolSpec
from services.pool_manager.planner import pool_conditions
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = PoolSpec(provider="p", instance_type="t", min_nodes=3, max_nodes=9)


def snapshot(*nodes: NodeRecord) -> PoolSnapshot:
    """A pool that wants three nodes."""
    record = PoolRecord(name="training", spec=SPEC, desired=3)
    return PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7)


def node(name: str, **changes: Any) -> NodeRecord:
    """A node, in service unless the changes say otherwise."""
    found = NodeRecord(pool="training", node=name, state="active", health="healthy")
    return msgspec.structs.replace(found, **changes)


def opened(kind: Any, minutes: float, **changes: Any) -> OpenSaga:
    """A saga that began so many minutes ago."""
    return OpenSaga(kind=kind, since=NOW - timedelta(minutes=minutes), **changes)


def published(record: PoolRecord, world: PoolSnapshot, seconds: float) -> bool:
    """Return whether the condition is published when it holds for so many seconds."""
    record, events, _ = pool_conditions.reported(world, record, NOW)
    if not events:
        later = NOW + timedelta(seconds=seconds)
        record, events, _ = pool_conditions.reported(world, record, later)
    return [each.status for each in events] == ["opened"]


LAUNCH = opened("scale-up", 1, new_node="new")
OLD = opened("scale-up", 60 * 24, new_node="new")
CASES = [
    # What is wrong with the third node, what is open, failed launches: is it published in a minute?
    ({}, [], 0, False, "it is in service"),
    ({"cordoned": True}, [], 0, True, "it is cordoned, and nothing is done"),
    ({"lost": True}, [], 0, True, "it is silent"),
    ({"state": "registered"}, [LAUNCH], 0, False, "it boots"),
    ({"state": "registered"}, [OLD], 0, True, "it has booted for longer than launch_timeout"),
    ({"state": "launching"}, [OLD], 0, True, "its launch has lasted longer than that"),
    ({"cordoned": True}, [LAUNCH], 0, False, "a launch is young"),
    ({"cordoned": True}, [OLD], 0, True, "a launch is older than launch_timeout"),
    ({"cordoned": True}, [opened("reboot", 5, node="c")], 0, False, "it is being rebooted"),
    (
        *({"cordoned": True}, [opened("scale-up", 1, new_node="x", spare=True)], 0, True),
        "a spare that is launched fills no gap",
    ),
    (
        *({"cordoned": True}, [opened("scale-up", 1, new_node="x", called_off="r")], 0, True),
        "nor does a launch that is given up",
    ),
]


@pytest.mark.parametrize(
    ("third", "sagas", "failures", "expected"),
    [each[:4] for each in CASES],
    ids=[each[4] for each in CASES],
)
def test_a_pool_below_its_minimum_says_so(
    third: dict[str, Any], sagas: list[OpenSaga], failures: int, expected: bool
) -> None:
    """The condition is published within a minute, except while what would fill it is young."""
    world = snapshot(node("a"), node("b"), node("c", **third))
    known = {f"s-{number}": each for number, each in enumerate(sagas)}
    record = msgspec.structs.replace(world.record, open=known, failures=failures)
    assert published(record, world, 60) is expected


def test_launches_that_fail_excuse_it_once() -> None:
    """Each try is young, and the gap is as old as the first."""
    world = snapshot(node("a"), node("b"))
    record = msgspec.structs.replace(world.record, open={"s": LAUNCH}, failures=3)
    record, _, _ = pool_conditions.reported(world, record, NOW)
    later = NOW + timedelta(seconds=float(SPEC.launch_timeout))
    again = msgspec.structs.replace(LAUNCH, since=later)
    record = msgspec.structs.replace(record, open={"s": again})
    _, events, _ = pool_conditions.reported(world, record, later)
    assert [each.status for each in events] == ["opened"]


def test_the_end_is_published_once() -> None:
    """The end of a condition is published where its beginning was."""
    short = snapshot(node("a"), node("b"))
    whole = snapshot(node("a"), node("b"), node("c"))
    record, _, wake_at = pool_conditions.reported(short, short.record, NOW)
    assert wake_at == NOW + timedelta(seconds=30)
    assert pool_conditions.reported(whole, record, NOW)[:2] == (whole.record, ())
    record, _, _ = pool_conditions.reported(short, record, NOW + timedelta(minutes=1))
    record, events, _ = pool_conditions.reported(whole, record, NOW)
    assert [each.status for each in events if isinstance(each, PoolCondition)] == ["closed"]
    assert pool_conditions.reported(whole, record, NOW)[1] == ()
