"""The gates hold back the removal of a machine that no order means."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.breaker_state import Breaker
from schemas.machine_identity import MachineIdentity, NodeMachines
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.proposed_removals import RemovalProposal
from schemas.settings import PoolSpec
from services.pool_manager.planner.safety.removal_gates import (
    GRANTED_MAX,
    WINDOW,
    ProposalFacts,
    decide_removal,
    with_grant,
)

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MADE = NOW - timedelta(hours=1)
SPEC = PoolSpec(provider="fake", instance_type="h100", min_nodes=1, max_nodes=9)
POOL = PoolRecord(name="web", spec=SPEC, desired=1)
PROPOSAL = RemovalProposal(
    pool="web",
    node="web-1",
    provider="fake",
    provider_id="i-1",
    address="a",
    created_at=MADE,
)
BESIDE = replace(PROPOSAL, beside="i-2")
LIVES = NodeRecord(pool="web", node="web-1", state="active")
ENDED = NodeRecord(pool="web", node="web-1", state="terminated", changed_at=NOW - WINDOW)
BEGAN = MADE - timedelta(days=1)


def machine(heard_at: datetime = NOW, **reported: Any) -> MachineIdentity:
    """Return a machine as its agent has registered it."""
    times = {"since": heard_at, "heard_at": heard_at, "registered_at": heard_at}
    return MachineIdentity(**(times | reported))


def heard(node: str, heard_at: datetime = NOW, **reported: Any) -> tuple[NodeRecord, ...]:
    """Return the node as which a machine has registered."""
    known = NodeMachines(machine=machine(boot_id="x"), refused=(machine(heard_at, **reported),))
    return (NodeRecord(pool="web", node=node, state="active", identity=known),)


FACTS: dict[str, Any] = {
    "pool": POOL,
    "fleet_began": BEGAN,
    "records_since": BEGAN,
    "now": NOW,
}
SEEN = replace(LIVES, identity=NodeMachines(machine=machine(boot_id="b-1")))


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
        pytest.param(
            BESIDE,
            {"node": SEEN, "beats": True, "beating_boot": "b-2"},
            "occupied",
            id="beside, heartbeats from another boot",
        ),
        pytest.param(
            BESIDE, {"node": SEEN, "beats": True, "beating_boot": "b-1"}, "", id="from the node's"
        ),
        pytest.param(PROPOSAL, {"holders": ("web-2",)}, "occupied", id="another's instance"),
        pytest.param(PROPOSAL, {"nodes": heard("web-2", provider_id="i-1")}, "occupied", id="ID"),
        pytest.param(PROPOSAL, {"nodes": heard("web-2", provider_id="i-9")}, "", id="another ID"),
        pytest.param(
            PROPOSAL, {"nodes": heard("web-2", provider_id="i-9", address="a")}, "", id="address"
        ),
        pytest.param(PROPOSAL, {"nodes": heard("web-2", address="a")}, "occupied", id="itself"),
        pytest.param(
            BESIDE,
            {"node": LIVES, "nodes": heard("web-1", address="a")},
            "occupied",
            id="beside it",
        ),
        pytest.param(
            PROPOSAL, {"nodes": heard("web-2", MADE, address="a")}, "", id="before it was made"
        ),
        pytest.param(PROPOSAL, {"records_since": NOW}, "records", id="restored since"),
        pytest.param(BESIDE, {"node": LIVES, "records_since": NOW}, "records", id="beside, too"),
        pytest.param(PROPOSAL, {"records_since": None}, "records", id="age not known"),
        pytest.param(
            PROPOSAL,
            {"pool": None, "removed": True, "records_since": NOW},
            "",
            id="an operator has removed all that its pool launched",
        ),
        pytest.param(
            replace(PROPOSAL, created_at=None), {"fleet_began": BEGAN}, "", id="as old as the fleet"
        ),
        pytest.param(
            replace(PROPOSAL, created_at=None), {"fleet_began": None}, "records", id="of no age"
        ),
    ],
)
def test_what_holds_a_removal_back(
    proposal: RemovalProposal, facts: dict[str, Any], expected: str
) -> None:
    """A reading that fails counts as occupied; `max_unavailable` and drains hold nothing."""
    values = FACTS | facts
    answer = decide_removal(proposal, ProposalFacts(**values), {})
    assert answer.gate == expected
    assert bool(answer.reason) is bool(expected)


def test_an_open_saga_about_its_name_holds_it() -> None:
    """The machine may be that saga's, whether it brings the node or takes it away."""
    for about in ({"node": "web-1"}, {"new_node": "web-1"}):
        saga = OpenSaga(kind="replace", since=NOW, **about)
        facts = ProposalFacts(**(FACTS | {"pool": replace(POOL, open={"s": saga})}))
        assert decide_removal(PROPOSAL, facts, {}).gate == "occupied"


def test_a_pool_loses_so_many_machines_within_the_window() -> None:
    """A machine that was granted counts once, however often it is asked about."""
    facts, granted = ProposalFacts(**FACTS), dict[str, datetime]()
    for number in range(GRANTED_MAX):
        one = replace(PROPOSAL, provider_id=f"i-{number}")
        for _ in range(2):
            assert decide_removal(one, facts, granted).gate == ""
            granted = with_grant(granted, one, NOW)
    assert decide_removal(replace(PROPOSAL, provider_id="i-99"), facts, granted).gate == "rate"
    later = ProposalFacts(**(FACTS | {"now": NOW + WINDOW}))
    assert decide_removal(replace(PROPOSAL, provider_id="i-99"), later, granted).gate == ""
