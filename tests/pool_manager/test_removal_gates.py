"""The gates hold back the removal of a machine that no order means."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.breaker_state import Breaker
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.proposed_removals import RemovalProposal
from schemas.settings import PoolSpec
from services.pool_manager.planner.safety.removal_gates import (
    GRANTED_MAX,
    WINDOW,
    ProposalFacts,
    decide_removal,
)

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MADE = NOW - timedelta(hours=1)
SPEC = PoolSpec(provider="fake", instance_type="h100", min_nodes=1, max_nodes=9)
POOL = PoolRecord(name="web", spec=SPEC, desired=1)
PROPOSAL = RemovalProposal(
    pool="web", node="web-1", provider="fake", provider_id="i-1", created_at=MADE
)
BESIDE = replace(PROPOSAL, beside="i-2")
LIVES = NodeRecord(pool="web", node="web-1", state="active")
ENDED = NodeRecord(pool="web", node="web-1", state="terminated", changed_at=NOW - WINDOW)
RECENT = (NOW - timedelta(minutes=1),) * GRANTED_MAX


@pytest.mark.parametrize(
    ("proposal", "facts", "expected"),
    [
        pytest.param(PROPOSAL, {}, "", id="nothing works there"),
        pytest.param(PROPOSAL, {"unread": "no answer"}, "unread", id="not read"),
        pytest.param(PROPOSAL, {"pool": None}, "no-pool", id="of no pool"),
        pytest.param(PROPOSAL, {"pool": None, "removed": True}, "", id="its pool was removed"),
        pytest.param(
            PROPOSAL, {"pool": replace(POOL, spec=replace(SPEC, mode="observe"))}, "observe"
        ),
        pytest.param(PROPOSAL, {"pool": replace(POOL, breaker=Breaker(state="open"))}, "breaker"),
        pytest.param(PROPOSAL, {"node": LIVES}, "occupied", id="which serves is not known"),
        pytest.param(PROPOSAL, {"node": replace(ENDED, saga="s")}, "occupied", id="a saga"),
        pytest.param(PROPOSAL, {"beats": True}, "occupied", id="heartbeats"),
        pytest.param(PROPOSAL, {"busy": True}, "occupied", id="work"),
        pytest.param(PROPOSAL, {"registered_at": NOW}, "occupied", id="registered since"),
        pytest.param(PROPOSAL, {"registered_at": MADE - WINDOW}, "", id="registered before it"),
        pytest.param(
            PROPOSAL,
            {"node": ENDED, "registered_at": NOW - 2 * WINDOW},
            "",
            id="registered before the node's end",
        ),
        pytest.param(
            replace(PROPOSAL, created_at=None), {"registered_at": MADE}, "occupied", id="no age"
        ),
        pytest.param(BESIDE, {"node": LIVES, "beats": True}, "", id="beside the node"),
        pytest.param(BESIDE, {"node": replace(LIVES, saga="s")}, "occupied", id="beside, a saga"),
        pytest.param(BESIDE, {"node": ENDED}, "occupied", id="beside a node that is gone"),
        pytest.param(PROPOSAL, {"granted": RECENT}, "rate", id="too many"),
        pytest.param(PROPOSAL, {"granted": (NOW - WINDOW,) * GRANTED_MAX}, "", id="long ago"),
    ],
)
def test_what_holds_a_removal_back(
    proposal: RemovalProposal, facts: dict[str, Any], expected: str
) -> None:
    """A reading that fails counts as occupied; `max_unavailable` and drains hold nothing."""
    values: dict[str, Any] = {"pool": POOL, "now": NOW}
    answer = decide_removal(proposal, ProposalFacts(**(values | facts)))
    assert answer.gate == expected
    assert bool(answer.reason) is bool(expected)


def test_an_open_saga_about_its_name_holds_it() -> None:
    """The machine may be that saga's, whether it brings the node or takes it away."""
    for about in ({"node": "web-1"}, {"new_node": "web-1"}):
        saga = OpenSaga(kind="replace", since=NOW, **about)
        facts = ProposalFacts(pool=replace(POOL, open={"s": saga}), now=NOW)
        assert decide_removal(PROPOSAL, facts).gate == "occupied"
