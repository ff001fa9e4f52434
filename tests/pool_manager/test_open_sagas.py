"""Counts how many sagas a pool has open at once, and how large its record is then."""

import cProfile
import pstats
import random
import string
from collections import Counter
from datetime import datetime, timedelta

import msgspec
import pytest

from schemas.messages import encode_record
from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import (
    ANNOUNCED_UNITS_MAX,
    LAUNCH_UNITS_MAX,
    OPEN_UNITS_MAX,
    REASON_CHARS,
    RECORD_BYTES_MAX,
    SAGA_UNITS,
    PoolRecord,
    WorkloadName,
)
from schemas.settings import BudgetSpec
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.sizing.open_sagas import units_of_texts
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec

LARGE = 5_000
SAGAS_MAX = OPEN_UNITS_MAX // SAGA_UNITS
REASON_LENGTH = 300
LONG_SAGA_UNITS = SAGA_UNITS + REASON_LENGTH // REASON_CHARS
WAVE_BYTES_MAX = 320 * 1024
"""Of a pool's record in a wave of notices with long texts, beside as many launches as may be."""
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
    for turn in range(6 * LARGE // LAUNCH_UNITS_MAX):
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


def calls_of_a_wave(size: int) -> int:
    """Count the function calls in which every node of a pool is found to need its replacement."""
    record = pool(size, spec=spec(max_nodes=LARGE, budget=BUDGET))
    whole = [node(f"n{n}", health="unhealthy", health_at=NOW, health_code=79) for n in range(size)]
    asked, profile = snapshot(record, *whole), cProfile.Profile()
    decided = profile.runcall(plan, asked, NOW)
    assert len(decided.start) == size
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_the_calls_of_a_wave_grow_with_its_size_and_not_with_its_square() -> None:
    """A count that is made again for each saga that begins makes large waves slow."""
    assert calls_of_a_wave(1_200) < 4.4 * calls_of_a_wave(300)


def size_bytes(record: PoolRecord) -> int:
    """The size of a record whose events are published."""
    return len(encode_record(msgspec.structs.replace(record, pending_events=())))


def incompressible(number: int) -> str:
    """The longest text of a fault, as an agent that means harm would choose it."""
    return "".join(random.Random(number).choices(string.printable[:94], k=REASON_LENGTH))


def with_repairs(record: PoolRecord, count: int) -> PoolRecord:
    """The record once so many nodes have failed, each with the longest text of a fault."""
    failed = [
        node(
            f"{LONG_NAME}-{at}-0000",
            pool=LONG_NAME,
            health="unhealthy",
            health_at=NOW - timedelta(hours=at),
            health_code=79,
            health_fault=FAULT,
            health_reason=incompressible(at),
        )
        for at in range(count)
    ]
    for _ in range(4):
        record = plan(snapshot(record, *failed), NOW).record
    return record


@pytest.mark.parametrize(
    ("named", "launches", "failed", "repairs"),
    [
        (False, LAUNCH_UNITS_MAX, 3_000, (OPEN_UNITS_MAX - LAUNCH_UNITS_MAX) // LONG_SAGA_UNITS),
        (True, LAUNCH_UNITS_MAX // 2, 1_000, 1_000),
    ],
)
def test_a_pool_that_launches_as_many_as_it_may_repairs_its_nodes(
    named: bool, launches: int, failed: int, repairs: int
) -> None:
    """A record with long names and texts leaves requests room, as with the most repairs."""
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
    record = with_repairs(record, failed)
    kinds = Counter(each.kind for each in record.open.values())
    assert kinds == {"scale-up": launches, "replace": repairs}
    assert size_bytes(record) < RECORD_BYTES_MAX


def test_the_most_repairs_leave_requests_room() -> None:
    """Each repair has the longest text of a fault."""
    record = pool(LARGE, name=LONG_NAME, spec=spec(max_nodes=LARGE, budget=BUDGET))
    record = with_repairs(record, LARGE)
    assert len(record.open) == OPEN_UNITS_MAX // LONG_SAGA_UNITS
    assert size_bytes(record) < RECORD_BYTES_MAX


def due(taken: NodeRecord) -> tuple[bool, datetime, str]:
    """Return the order in which nodes that the cloud takes leave."""
    return cloud_notices.urgency(taken, NOW)


def announced(number: int, *, reason: str, notice: str) -> NodeRecord:
    """Return a spot node that the cloud takes within minutes, the highest number first."""
    deadline = NOW + timedelta(seconds=120 + LARGE - number)
    note = CloudNotice(at=NOW, deadline=deadline, reason=reason)
    name = f"{LONG_NAME}-{number}-0000"
    return node(name, pool=LONG_NAME, market="spot", notices={notice: note})


@pytest.mark.parametrize("launches", [0, LAUNCH_UNITS_MAX])
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("count", [1_000, LARGE])
def test_a_wave_of_notices_leaves_in_the_order_of_its_deadlines_and_bounded(
    count: int, long: bool, launches: int
) -> None:
    """Each has a long text of its own; those that wait begin as others end."""
    units = units_of_texts(incompressible(0) if long else "spot", "x" * 60 if long else "x")
    most = ANNOUNCED_UNITS_MAX // units
    reasons = [incompressible(each) if long else "spot" for each in range(count)]
    notices = [f"{reasons[each][:60] if long else ''}-{each}" for each in range(count)]
    present = {
        each.node: each
        for number in range(count)
        for each in [announced(number, reason=reasons[number], notice=notices[number])]
    }
    wanted = [each.node for each in sorted(present.values(), key=due)]
    record = pool(count + launches, name=LONG_NAME, spec=spec(max_nodes=2 * LARGE, budget=BUDGET))
    begun: list[str] = []
    for _ in range(2 * LARGE // most + 2):
        decided = plan(snapshot(record, *present.values()), NOW)
        record = decided.record
        started = [each for each in decided.start.values() if each.kind == "replace"]
        begun += [each.node for each in started]
        leaving = [each for each in record.open.values() if each.notice]
        assert len(leaving) <= most
        assert size_bytes(record) < WAVE_BYTES_MAX
        assert record.breaker.state == "closed"
        for saga, each in record.open.items():
            if each.notice and len(begun) < count:
                present.pop(each.node)
                present[each.new_node] = node(each.new_node, pool=LONG_NAME)
                record = close(record, saga, failed=False, now=NOW)
        if len(begun) == count:
            break
    assert begun == wanted
