"""A simulated cloud that names machines by other IDs, and by whose order it ends them."""

import pytest

from schemas.termination_orders import Authority, AuthorityKind, SurplusInstance
from services.simulator.engine.listed_ids import SPELLINGS, ListedIds, Spelling
from services.simulator.engine.order_invariants import may_end
from tests.provisioner.test_instance_decisions import record

IDS = ("sim-1", "sim-2", "sim-3")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_id_means_the_machine_that_is_listed_under_it(spelling: Spelling) -> None:
    """Each ID means its own machine again once the spelling ends, and where lists swap them."""
    ids = ListedIds()
    ids.spell(spelling, IDS, until=10.0)
    shown = ids.listed(IDS, 5.0)
    assert len(set(shown.values())) == len(IDS)
    assert all(shown[each] != each for each in IDS)
    meant = [ids.real(shown[each], IDS, 5.0) for each in IDS]
    assert meant == [shown[each] if spelling == "swapped" else each for each in IDS]
    assert ids.listed(IDS, 10.0) == {each: each for each in IDS}


def test_a_wrong_answer_is_given_once() -> None:
    """The answer names no machine, or another one."""
    ids = ListedIds(answers=["unknown", "borrowed"])
    found = [ids.answer("sim-3", IDS) for _ in range(3)]
    assert found == ["unknown-sim-3", "sim-1", "sim-3"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("saga", True), ("launch", True), ("operator", True), ("proof", False), (None, False)],
)
def test_a_proof_ends_no_machine_on_which_an_agent_beats(
    kind: AuthorityKind | None, expected: bool
) -> None:
    """Only the order of its own node's saga does, or that of an operator."""
    by = Authority(kind=kind) if kind is not None else None
    assert may_end(record("terminating", authority=by)) is expected
    surplus = SurplusInstance(provider="p", provider_id="i-2", authority=by) if by else None
    beside = record("running", surplus=(surplus,) if surplus else ())
    assert may_end(beside) is expected
    assert not may_end(None)
