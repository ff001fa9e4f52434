"""Requests of operators, as decisions do, keep a pool's record below what the server takes."""

import random
import string
from datetime import UTC, datetime

import msgspec
import pytest

from schemas.messages import encode_record
from schemas.node_records import NodeRecord
from schemas.operator_requests import REASON_CHARS_MAX
from schemas.pool_events import RequestRefused
from schemas.pool_records import RECORD_BYTES_MAX, OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, PoolSpec
from schemas.stream_specs import MESSAGE_BYTES_MAX
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.requests.request_decisions import decide
from services.pool_manager.requests.request_replies import QueuedRequest, RequestDecision

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
REASON = "x" * REASON_CHARS_MAX
SPEC = PoolSpec(
    provider="p",
    instance_type="t",
    min_nodes=0,
    max_nodes=10_000,
    budget=BudgetSpec(max_unavailable=20_000, max_replacements="unlimited"),
)


def answered(record: PoolRecord, verb: str, reason: str) -> RequestDecision:
    """Return the answer to a request about a node without a saga."""
    asked = QueuedRequest(
        id="request-1",
        sequence=1,
        time=NOW,
        pool="training",
        verb=verb,
        payload=msgspec.json.encode({"node": "n", "reason": reason, "request": "r-1"}),
    )
    cordoned = verb == "uncordon"
    node = NodeRecord(pool="training", node="n", state="active", cordoned=cordoned)
    snapshot = PoolSnapshot(fleet="f", record=record, revision=1, nodes=Nodes((node,)))
    return decide(asked, snapshot, NOW)


def pool_with(sagas: int) -> PoolRecord:
    """A pool of which so many nodes are being drained, each with a long reason of its own."""
    draw = random.Random(1)
    reasons = (
        "".join(draw.choices(string.printable[:94], k=REASON_CHARS_MAX)) for _ in range(sagas)
    )
    open_ = {
        f"drain-n{number}-1": OpenSaga(kind="drain", reason=reason, since=NOW)
        for number, reason in enumerate(reasons)
    }
    return PoolRecord(name="training", spec=SPEC, desired=10_000, open=open_)


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain", "replace", "reboot", "terminate"])
def test_requests_are_refused_before_the_server_refuses_the_record(verb: str) -> None:
    """The refusal is a sentence; the pool takes requests again once some sagas have ended."""
    full = pool_with(2_100)
    assert RECORD_BYTES_MAX < len(encode_record(full)) < MESSAGE_BYTES_MAX
    refused = answered(full, verb, "").event
    assert isinstance(refused, RequestRefused)
    assert refused.refusal == "saga-open"
    assert "sagas of training are open, as many as may be" in refused.reason
    assert answered(pool_with(500), verb, REASON).record is not None


@pytest.mark.parametrize("verb", ["cordon", "drain", "replace"])
def test_a_reason_has_a_limit(verb: str) -> None:
    """A reason is in the pool's record while the saga is open; its refusal reaches the caller."""
    refused = answered(pool_with(0), verb, REASON + "x").event
    assert isinstance(refused, RequestRefused)
    assert (refused.refusal, "500" in refused.reason) == ("invalid-request", True)
    assert refused.request == "r-1"
