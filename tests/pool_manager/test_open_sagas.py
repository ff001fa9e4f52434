"""How many sagas a pool has open at once, and how large its record is then."""

from collections import Counter
from datetime import timedelta

import msgspec
import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.pool_records import OPEN_LAUNCHES_MAX, OPEN_SAGAS_MAX
from schemas.settings import BudgetSpec
from services.pool_manager.planner.pool_planner import close, plan
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec

LARGE = 5_000
MESSAGE_BYTES_MAX = 2**20


@pytest.mark.parametrize("unhealthy", [False, True])
def test_a_large_pools_record_stays_far_below_the_servers_limit(unhealthy: bool) -> None:
    """5,000 nodes to launch, or to replace: what does not fit in the record waits its turn."""
    budget = BudgetSpec(max_quarantined=0, max_unavailable="100%", max_replacements="unlimited")
    record = pool(LARGE, spec=spec(max_nodes=LARGE, budget=budget))
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
    for turn in range(4 * LARGE // OPEN_SAGAS_MAX):
        decided = plan(snapshot(record, *present.values()), NOW)
        record = decided.record
        begun |= set(decided.start)
        assert len(record.open) <= (OPEN_SAGAS_MAX if unhealthy else OPEN_LAUNCHES_MAX)
        assert (
            len(encode(msgspec.structs.replace(record, pending_events=()))) < MESSAGE_BYTES_MAX / 2
        )
        if turn % 3 == 2:
            for saga, each in record.open.items():
                present.pop(each.node, None)
                present[each.new_node] = node(each.new_node)
                record = close(record, saga, failed=False, now=NOW)
    assert len(begun) == LARGE


def test_a_pool_that_launches_as_many_as_it_may_repairs_its_nodes() -> None:
    """Launches leave room for the sagas about its nodes, and these for each other."""
    budget = BudgetSpec(max_quarantined=0, max_unavailable="100%", max_replacements="unlimited")
    record = pool(LARGE, spec=spec(max_nodes=LARGE, budget=budget))
    well = [node(f"training-{number}-0000") for number in range(LARGE // 5)]
    for _ in range(OPEN_LAUNCHES_MAX // 100):
        record = plan(snapshot(record, *well), NOW).record
    assert len(record.open) == OPEN_LAUNCHES_MAX
    failed = [
        node(each.node, health="unhealthy", health_at=NOW - timedelta(hours=at), health_code=79)
        for at, each in enumerate(well)
    ]
    for _ in range(4):
        record = plan(snapshot(record, *failed), NOW).record
    kinds = Counter(each.kind for each in record.open.values())
    assert kinds == {"scale-up": OPEN_LAUNCHES_MAX, "replace": OPEN_SAGAS_MAX}
    size_bytes = len(encode(msgspec.structs.replace(record, pending_events=())))
    assert size_bytes < MESSAGE_BYTES_MAX / 2
