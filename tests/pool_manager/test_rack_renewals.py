"""Healthy nodes of racks are replaced at leisure rack by rack."""

from datetime import timedelta

import msgspec
import pytest

from schemas.duration import Duration
from schemas.fault_signature import EXPIRED
from schemas.pool_records import OpenSaga
from schemas.settings import BudgetSpec
from tests.pool_manager.test_racks import NOW, decide, pool, rack, replaced


@pytest.mark.parametrize(
    ("signatures", "expected"),
    [
        pytest.param({}, {1}, id="one rack at a time"),
        pytest.param({1: "xid-79", 2: "xid-79"}, set(), id="a node of each is replaced already"),
        pytest.param({1: "xid-79"}, set(), id="a node of one is replaced already"),
        pytest.param({2: EXPIRED}, {2}, id="the rack that is begun is gone through"),
    ],
)
def test_racks_with_broken_nodes_are_not_emptied_for_their_age(
    signatures: dict[int, str], expected: set[int]
) -> None:
    """Two may be out of service, and half of that for what can wait."""
    old = {"admitted_at": NOW - timedelta(days=31)}
    record = pool(
        2,
        expire_after=Duration(30 * 86_400),
        budget=BudgetSpec(max_unavailable=2, max_replacements="unlimited", max_quarantined=0),
    )
    opened = {
        f"replace-r{number}n0-1": OpenSaga(
            kind="replace", node=f"r{number}n0", new_node=f"m{number}", rack=f"r{number}",
            fault_signature=signature, since=NOW,
        )
        for number, signature in signatures.items()
    }  # fmt: skip
    record = msgspec.structs.replace(record, open=opened)
    found = replaced(decide(record, [*rack(1, **old), *rack(2, **old)]))
    assert {int(name[1]) for name in found} == expected
