"""How many sagas a pool has open at once, and how large its record is then."""

from collections import Counter
from datetime import timedelta

import msgspec
import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.pool_records import (
    LAUNCH_UNITS_MAX,
    OPEN_UNITS_MAX,
    RECORD_BYTES_MAX,
    SAGA_UNITS,
    PoolRecord,
    WorkloadName,
)
from schemas.settings import BudgetSpec
from services.pool_manager.planner.pool_planner import close, plan
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec

LARGE = 5_000
SAGAS_MAX = OPEN_UNITS_MAX // SAGA_UNITS
BUDGET = BudgetSpec(max_quarantined=0, max_unavailable="100%", max_replacements="unlimited")
LONG_NAME = "training-of-the-largest-models"
FAULT = f"{LONG_NAME}.{LONG_NAME}-1234-0000.f44d4cdb.xid.79.1893456104890"


@pytest.mark.parametrize("unhealthy", [False, True])
def test_a_large_pools_record_stays_far_below_the_servers_limit(unhealthy: bool) -> None:
    """5,000 nodes to launch, or to replace: what does not fit in the record waits its turn."""
    record = pool(LARGE, spec=spec(max_nodes=LARGE, budget=BUDGET))
    present: dict[str, NodeRecord] = {}
    if unhealthy:
        at = [NOW - timedelta(hours=number) for number in range(LARGE)]
        present = {
            f"training-{number}-0000": node(
                f"training-{number}-0000", health="unhealthy", health_at=at[number], health_code=79
            )
            for number in range(LARGE)
        }
    begun: set[str] = set()
    for turn in range(4 * LARGE // SAGAS_MAX):
        decided = plan(snapshot(record, *present.values()), NOW)
        record = decided.record
        begun |= set(decided.start)
        assert len(record.open) <= (SAGAS_MAX if unhealthy else LAUNCH_UNITS_MAX)
        assert size_bytes(record) < RECORD_BYTES_MAX
        if turn % 3 == 2:
            for saga, each in record.open.items():
                present.pop(each.node, None)
                present[each.new_node] = node(each.new_node)
                record = close(record, saga, failed=False, now=NOW)
    assert len(begun) == LARGE


def size_bytes(record: PoolRecord) -> int:
    """The size of a record whose events are published."""
    return len(encode(msgspec.structs.replace(record, pending_events=())))


def with_repairs(record: PoolRecord) -> PoolRecord:
    """The record once all nodes have failed, with the longest text of a fault."""
    failed = [
        node(
            f"{LONG_NAME}-{at}-0000",
            pool=LONG_NAME,
            health="unhealthy",
            health_at=NOW - timedelta(hours=at),
            health_code=79,
            health_fault=FAULT,
            health_reason="r" * 300,
        )
        for at in range(LARGE // 5)
    ]
    for _ in range(4):
        record = plan(snapshot(record, *failed), NOW).record
    return record


@pytest.mark.parametrize(
    ("named", "launches", "repairs"),
    [(False, LAUNCH_UNITS_MAX, 166), (True, LAUNCH_UNITS_MAX // 2, 166)],
)
def test_a_pool_that_launches_as_many_as_it_may_repairs_its_nodes(
    named: bool, launches: int, repairs: int
) -> None:
    """With long names and texts its record leaves requests room, as with the most repairs."""
    well = [node(f"{LONG_NAME}-{number}-0000", pool=LONG_NAME) for number in range(LARGE // 5)]
    record = pool(
        LARGE,
        name=LONG_NAME,
        spec=spec(max_nodes=LARGE, budget=BUDGET, workload_names="n-[1-1000]" if named else ""),
    )
    if named:
        since = NOW - timedelta(hours=1)
        names = {
            f"{'n' * 58}{number}": WorkloadName(wanted=True, at=since)
            for number in range(LARGE // 5)
        }
        record = msgspec.structs.replace(record, workload_names=names)
        well = []
    for _ in range(LAUNCH_UNITS_MAX // 100):
        record = plan(snapshot(record, *well), NOW).record
    assert len(record.open) == launches
    record = with_repairs(record)
    kinds = Counter(each.kind for each in record.open.values())
    assert kinds == {"scale-up": launches, "replace": repairs}
    assert size_bytes(record) < RECORD_BYTES_MAX


def test_the_most_repairs_leave_requests_room() -> None:
    """Each with the longest text of a fault."""
    record = pool(LARGE // 5, name=LONG_NAME, spec=spec(max_nodes=LARGE, budget=BUDGET))
    record = with_repairs(record)
    assert len(record.open) == SAGAS_MAX
    assert size_bytes(record) < RECORD_BYTES_MAX
