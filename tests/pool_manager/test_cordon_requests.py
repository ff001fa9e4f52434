"""An operator's cordon keeps a node out that is cordoned already and would come back by itself."""

from datetime import UTC, datetime

import msgspec
import pytest

from schemas.node_records import NodeRecord, RemediationAttempt
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.requests.request_decisions import decide
from services.pool_manager.requests.request_replies import QueuedRequest

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = PoolSpec(provider="p", instance_type="t", min_nodes=1, max_nodes=9)
POOL = PoolRecord(name="training", spec=SPEC, desired=1)
OUT = NodeRecord(pool="training", node="a", state="active", health="degraded", cordoned=True)
FAILED = RemediationAttempt(
    saga="reset-gpu-a-0", kind="reset-gpu", at=NOW, outcome="failed", cordoned_by_operator=False
)


@pytest.mark.parametrize(
    ("node", "kinds"),
    [
        (OUT, []),
        (msgspec.structs.replace(OUT, spare=True), []),
        (msgspec.structs.replace(OUT, attempts=(FAILED,)), ["cordon"]),
        (msgspec.structs.replace(OUT, sole_notice="n1"), ["cordon"]),
    ],
)
def test_a_cordon_of_a_node_that_is_out_already(node: NodeRecord, kinds: list[str]) -> None:
    """The request was once accepted without effect, and the node uncordoned within the minute."""
    asked = QueuedRequest(
        id="request-1",
        sequence=1,
        time=NOW,
        pool="training",
        verb="cordon",
        payload=b'{"node": "a"}',
    )
    decision = decide(asked, PoolSnapshot(fleet="f", record=POOL, nodes=Nodes([node])), NOW)
    opened = decision.record.open.values() if decision.record is not None else ()
    assert [each.kind for each in opened] == kinds
