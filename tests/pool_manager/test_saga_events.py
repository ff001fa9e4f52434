"""Every event of a saga has its own ID, the same whenever it is published again."""

import msgspec
import pytest

from schemas.messages import Message
from schemas.node_events import Terminated
from schemas.node_records import NodeRecord, NodeState
from schemas.saga_log_entries import SagaStuck, StepOverdue, StepStarted, StepSucceeded
from services.operator_text.event_text import describe
from services.pool_manager.planner.saga_events import events_of
from services.pool_manager.planner.saga_projection import coming_node, leaving_node
from services.saga.definition import Definition
from services.saga.definitions import DEFINITIONS
from services.saga.saga_state import SagaState, fold
from tests.saga.model import EPOCH, KINDS, VARIANTS, Run, params

CASES = [
    pytest.param(definition, variant, step.name, id=f"{definition.kind}-{variant}-{step.name}")
    for definition in DEFINITIONS.values()
    for variant in VARIANTS
    if definition.kind in KINDS.get(variant, (definition.kind,))
    for step in definition.steps(params(definition, variant))
]


def published(run: Run) -> list[Message]:
    """The events of each entry, computed with the log as it was then."""
    state: SagaState | None = None
    found: list[Message] = []
    for number, entry in enumerate(run.log, 1):
        state = fold(state, entry, number, {})
        found.extend(events_of(state, entry))
    return found


@pytest.mark.parametrize(("definition", "variant", "step"), CASES)
def test_saga_event_ids_are_unique(definition: Definition, variant: str, step: str) -> None:
    """The ids are unique whichever step fails; a replica that is behind computes the same."""
    run = Run(definition, params(definition, variant), fail=step)
    if run.to_end().status == "stuck":
        run.repair_and_retry()
    ids = [each.id for each in published(run)]

    assert len(ids) == len(set(ids))
    # Computed again from the whole log, as by a replica that reads it later.
    last = run.state()
    assert last is not None
    assert ids == [each.id for entry in run.log for each in events_of(last, entry)]


def test_a_node_whose_launch_is_undone_is_terminated() -> None:
    """The node's health record goes with it, and it is not lost when its heartbeats stop."""
    run = Run(
        DEFINITIONS["scale-up"], params(DEFINITIONS["scale-up"], "terminate_first"), fail="admit"
    )
    assert run.to_end().status == "unwound"
    node = params(DEFINITIONS["scale-up"], "terminate_first").new_node
    gone = [each for each in published(run) if isinstance(each, Terminated)]
    assert [each.node for each in gone] == [node]


def test_repeated_event_after_a_retry_has_another_id() -> None:
    """A drain that is overdue again after a retry; the same of stuck."""
    definition = DEFINITIONS["replace"]
    run = Run(definition, params(definition, "provision_first"), fail="drain")
    state = run.to_end()
    run.repair_and_retry()
    stuck = [each for each in run.log if isinstance(each, SagaStuck)]
    drains = [each for each in run.log if isinstance(each, StepStarted) and each.step == "drain"]
    overdue = [
        StepOverdue(
            id=each.id.replace("started", "overdue"), time=each.time, saga="s", step="drain"
        )
        for each in drains
    ]
    ids = [fact.id for entry in (*overdue, *stuck) for fact in events_of(state, entry)]

    assert ["overdue-drain-s", "overdue-drain-s.1", "stuck-s"] == ids


@pytest.mark.parametrize(
    ("outputs", "summary"),
    [
        ({}, "no work left"),
        ({"drain_confirmed": True}, "no work left"),
        ({"drain_confirmed": False}, "without confirmation: work may be left on the node"),
    ],
)
def test_a_drain_claims_an_empty_node_only_if_that_was_confirmed(
    outputs: dict[str, bool], summary: str
) -> None:
    """The notifier reports whether a workload system confirmed it."""
    definition = DEFINITIONS["drain"]
    run = Run(definition, params(definition))
    state = run.to_end()
    ended = next(
        each for each in run.log if isinstance(each, StepSucceeded) and each.step == "drain"
    )
    (event,) = events_of(state, msgspec.structs.replace(ended, outputs=outputs))
    assert describe(event).summary == summary


def test_a_cordon_has_lasted_since_its_first_one() -> None:
    """The moment stays whatever else changes in the record, and whichever saga cordons again."""
    definition = DEFINITIONS["drain"]
    record = NodeRecord(pool="training", node="old", state="active")
    state = Run(definition, params(definition)).to_end()
    cordoned = leaving_node(record, state)
    assert cordoned is not None
    assert cordoned.cordoned_at == state.step("cordon").ended_at
    earlier = msgspec.structs.replace(record, cordoned=True, cordoned_at=EPOCH)
    again = leaving_node(earlier, state)
    assert again is not None
    assert again.cordoned_at == EPOCH
    given_back = DEFINITIONS["uncordon"]
    free = leaving_node(earlier, Run(given_back, params(given_back)).to_end())
    assert free is not None
    assert (free.cordoned, free.cordoned_at) == (False, None)


@pytest.mark.parametrize(
    ("registered", "state", "after"),
    [(True, "active", "active"), (False, "launching", "terminated")],
)
def test_a_node_that_has_come_is_not_gone_with_a_log_that_lost_its_launch(
    registered: bool, state: NodeState, after: NodeState
) -> None:
    """The log of its saga was cut and begun again, and unwound before it launched anything."""
    definition = DEFINITIONS["replace"]
    run = Run(definition, params(definition, "provision_first"), fail="cordon")
    unwound = run.to_end()
    assert (unwound.status, unwound.step("provision").status) == ("unwound", "pending")
    node = NodeRecord(
        pool="training",
        node=unwound.params.new_node,
        state=state,
        registered_at=EPOCH if registered else None,
    )
    found = coming_node(node, unwound)
    assert found is not None
    assert (found.state, found.saga) == (after, "")
