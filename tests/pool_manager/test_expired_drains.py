"""A drain that ended at its deadline with work left is not one that emptied the node."""

from datetime import UTC, datetime
from typing import Literal

import pytest

from schemas.fleet_queries import NodeView
from schemas.node_records import GpuUse, NodeRecord
from services.cli.text.tables import node_rows
from services.pool_manager.planner.idle_nodes import IDLE_MIN, use_of
from services.pool_manager.planner.pool_snapshot import NodeUse
from services.pool_manager.planner.saga_projection import leaving_node
from services.pool_manager.queries import node_view
from services.saga.saga_state import SagaParams, StepState
from tests.support.saga_states import saga_state

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "words", "use"),
    [("succeeded", "drained", "idle"), ("expired", "drain expired", "unknown")],
)
def test_an_expired_drain_is_not_called_drained(
    status: Literal["succeeded", "expired"], words: str, use: str
) -> None:
    """The list and the decision whether a node is idle know the difference."""
    steps = {"cordon": StepState(status="succeeded"), "drain": StepState(status=status)}
    state = saga_state(
        saga="drain-p-1-1",
        kind="drain",
        params=SagaParams(pool="p", node="p-1"),
        status="done",
        started_at=NOW,
        steps=steps,
    )
    found = leaving_node(NodeRecord(pool="p", node="p-1", state="active", cordoned=True), state)
    assert found is not None
    assert found.drained
    [row] = node_rows([node_view(NodeView, found, None, now=NOW, detailed=False)], NOW)
    assert words in row[-1].split(", ")
    rests = NodeUse(gpus=GpuUse(busy=False, since=NOW - IDLE_MIN))
    assert use_of(found, {"p-1": rests}, NOW) == use
