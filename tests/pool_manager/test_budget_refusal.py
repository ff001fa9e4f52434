"""A request that the budget refuses says what is out of service, and how to go beyond it."""

from datetime import UTC, datetime

import msgspec
import pytest

from schemas.node_records import NodeRecord
from schemas.pool_events import PoolEvent, RequestAccepted, RequestRefused
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, PoolSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.requests.request_decisions import decide
from services.pool_manager.requests.request_replies import QueuedRequest

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DISRUPTS = ("drain", "replace", "reset-gpu", "reboot")


def pool(max_unavailable: int = 1, **changes: object) -> PoolRecord:
    """Return a pool of three."""
    budget = BudgetSpec(max_unavailable=max_unavailable)
    spec = PoolSpec(provider="p", instance_type="t", min_nodes=1, max_nodes=9, budget=budget)
    record = PoolRecord(name="training", spec=spec, desired=3)
    return msgspec.structs.replace(record, **changes)


def node(name: str, *, cordoned: bool = False) -> NodeRecord:
    """Return a node in service."""
    return NodeRecord(
        pool="training", node=name, state="active", health="healthy", cordoned=cordoned
    )


def answered(verb: str, record: PoolRecord, *nodes: NodeRecord) -> PoolEvent:
    """Return the answer to a request about n1."""
    asked = QueuedRequest(
        id="request-1", sequence=1, time=NOW, pool="training", verb=verb, payload=b'{"node": "n1"}'
    )
    snapshot = PoolSnapshot(fleet="f", record=record, revision=1, nodes=Nodes(nodes))
    return decide(asked, snapshot, NOW).event


@pytest.mark.parametrize(
    ("record", "second", "out"),
    [
        (pool(), node("n2", cordoned=True), ": n2;"),
        (
            pool(open={"drain-n2-1": OpenSaga(kind="drain", node="n2", since=NOW)}),
            node("n2"),
            ": n2;",
        ),
        (pool(0), node("n2"), "0);"),
    ],
    ids=["cordoned", "under way", "none may be"],
)
def test_the_refusal_says_what_is_out_and_how_to_go_beyond(
    record: PoolRecord, second: NodeRecord, out: str
) -> None:
    """An operator who must replace a node now had to guess, or to raise the budget for all."""
    answer = answered("replace", record, node("n1"), second, node("n3"))
    assert isinstance(answer, RequestRefused)
    assert answer.refusal == "budget-exhausted"
    assert f"{out} wait until one is back" in answer.reason
    assert "navarch cordon n1 --reason TEXT --wait" in answer.reason


@pytest.mark.parametrize("verb", DISRUPTS)
def test_the_way_that_the_refusal_names_is_open(verb: str) -> None:
    """The cordon is accepted beyond the budget, and then the request itself."""
    others = (node("n2", cordoned=True), node("n3"))
    assert isinstance(answered(verb, pool(), node("n1"), *others), RequestRefused)
    assert isinstance(answered("cordon", pool(), node("n1"), *others), RequestAccepted)
    assert isinstance(answered(verb, pool(), node("n1", cordoned=True), *others), RequestAccepted)
