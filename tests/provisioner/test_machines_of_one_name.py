"""Two machines of one name: each is meant by its provider and ID, and the node is one of them."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import msgspec
import pytest

from schemas.machine_identity import MachineIdentity
from schemas.proposed_removals import RemovalProposal
from schemas.termination_orders import Authority
from services.notifier.node_references import node_reference
from services.pool_manager.planner.safety.removal_gates import with_grant
from services.provisioner.instances.instance_decisions import mark_terminating
from services.provisioner.removal.id_corrections import corrected
from services.provisioner.removal.removal_orders import order_of
from services.provisioner.removal.sweep_actions import SweepAction
from services.provisioner.removal.sweep_decisions import decide_sweep
from tests.provisioner.test_instance_decisions import KEY, NOW, instance, record, sighting

RECORDED: Final = instance("i-1", address="10.0.0.1")
OTHER: Final = instance("i-2", address="10.0.0.2")


@dataclass(frozen=True)
class Case:
    """A case has what the agent reports, and what follows of it."""

    reports: MachineIdentity | None
    actions: tuple[tuple[str, str, str], ...]
    """Kind, ID, and the ID beside it."""
    node: str = "i-1"
    """Which the node is by its record afterwards: its saga cordons, drains and ends that one."""
    other_runs: bool = True


def reported(at: datetime = NOW, **fields: Any) -> MachineIdentity:
    """Return the registration of an agent."""
    return MachineIdentity(since=at, heard_at=at, registered_at=at, **fields)


CASES: Final = {
    "nothing": Case(None, (("note-unclear", "i-2", ""),)),
    "neither's ID": Case(reported(provider_id="i-9"), (("note-unclear", "i-2", ""),)),
    "neither's address": Case(reported(address="10.0.0.9"), (("note-unclear", "i-2", ""),)),
    "the recorded ID": Case(reported(provider_id="i-1"), (("remove-surplus", "i-2", "i-1"),)),
    "its address": Case(reported(address="10.0.0.1"), (("remove-surplus", "i-2", "i-1"),)),
    "the other's ID": Case(reported(provider_id="i-2"), (("correct-id", "i-2", "i-1"),), "i-2"),
    "the other's address": Case(
        reported(address="10.0.0.2"), (("correct-id", "i-2", "i-1"),), "i-2"
    ),
    "its ID, at the other's address": Case(
        reported(provider_id="i-1", address="10.0.0.2"), (("remove-surplus", "i-2", "i-1"),)
    ),
    "nothing, and the other is stopped": Case(
        None, (("remove-surplus", "i-2", "i-1"),), other_runs=False
    ),
}


@pytest.mark.parametrize("reports", CASES)
def test_one_is_the_node_and_its_saga_means_that_one_alone(reports: str) -> None:
    """The node's saga neither ends the other machine, nor is the order to cordon about it."""
    case = CASES[reports]
    other = OTHER if case.other_runs else msgspec.structs.replace(OTHER, status="stopped")
    listed = (RECORDED, other)
    known = record("running", provider_id="i-1")
    seen = sighting({KEY: known}, listed, living=frozenset({KEY}))
    machines = {KEY: case.reports} if case.reports is not None else {}
    actions = decide_sweep(replace(seen, machines=machines))
    assert tuple((a.kind, a.instance.provider_id, a.beside) for a in actions) == case.actions
    (action,) = actions
    if action.kind == "correct-id":
        known = corrected(known, action)
    saga = Authority(kind="saga", saga="replace-web-1-1", step="terminate")
    going = mark_terminating(known, NOW, saga)
    assert order_of(going, "fake", listed).provider_ids == (case.node,)
    assert node_reference("web", "web-1", None, known).provider_id == case.node
    then = decide_sweep(replace(sighting({KEY: known}, listed), machines=machines))
    assert case.node not in {a.instance.provider_id for a in then if a.kind == "remove-surplus"}


def test_a_respelled_id_of_one_machine_is_still_meant() -> None:
    """A list that shows the old form once more shows the node, not another machine."""
    known = record("running", provider_id="i-1")
    action = SweepAction("correct-id", KEY, "fake", instance("I-1"), "respelled")
    going = mark_terminating(corrected(known, action), NOW, Authority(kind="saga", saga="s"))
    assert order_of(going, "fake", (RECORDED,)).provider_ids == ("I-1", "i-1")


def test_removals_of_one_name_are_counted_by_provider_and_id() -> None:
    """Two machines of one name are two grants; the same one asked again is one."""
    granted: dict[str, datetime] = {}
    for provider, provider_id in (("a", "i-1"), ("a", "i-2"), ("b", "i-1"), ("a", "i-1")):
        proposal = RemovalProposal(
            pool="web", node="web-1", provider=provider, provider_id=provider_id
        )
        granted = with_grant(granted, proposal, NOW)
    assert sorted(granted) == ["a/i-1", "a/i-2", "b/i-1"]
