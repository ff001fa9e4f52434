"""Checks that every registered saga passes, whatever it does."""

import pytest

from services.pool_manager.sagas import DEFINITIONS
from services.saga.definition import Definition
from services.saga.log import ENDED
from tests.saga.model import Run, World, params

CASES = [
    pytest.param(definition, order, id=f"{definition.kind}-{order}")
    for definition in DEFINITIONS.values()
    for order in ("terminate_first", "provision_first")
    if order == "terminate_first" or definition.kind == "replace"
]


def fresh(definition: Definition, order: str, **options: object) -> Run:
    """A run that has not begun."""
    world = World()
    if definition.kind == "uncordon":
        world.cordoned.add("old")
    return Run(definition, params(definition, order), world=world, **options)  # type: ignore[arg-type]


def steps(definition: Definition, order: str) -> list[str]:
    """Names of a saga's steps."""
    return [step.name for step in definition.steps(params(definition, order))]


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_it_ends_with_every_step_done_once(definition: Definition, order: str) -> None:
    """Nothing fails: each action is performed once, in the table's order, and the saga is done."""
    run = fresh(definition, order)
    state = run.to_end()

    performed = [step for step in steps(definition, order) if step not in ("register", "admit")]
    assert "done" == state.status
    assert performed == run.world.performed


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_every_action_twice_changes_nothing(definition: Definition, order: str) -> None:
    """A redelivered command leaves the world as one delivery does."""
    once, twice = fresh(definition, order), fresh(definition, order, twice=True)
    once.to_end()
    twice.to_end()

    assert once.world.snapshot() == twice.world.snapshot()
    assert [type(each) for each in once.log] == [type(each) for each in twice.log]


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("definition", "order"), CASES)
def test_a_failure_at_each_step_ends_it_safely(
    definition: Definition, order: str, twice: bool
) -> None:
    """Whatever fails, the saga is unwound (or stuck beyond its pivot) and nothing is left over."""
    for step in steps(definition, order):
        run = fresh(definition, order, fail=step, twice=twice)
        state = run.to_end()
        pivots = [each.name for each in definition.steps(run.params) if each.pivot]
        names = steps(definition, order)
        beyond = any(names.index(pivot) < names.index(step) for pivot in pivots)

        assert ("stuck" if beyond else "unwound") == state.status, step
        if not beyond:
            assert "new" not in run.world.instances, step
        if beyond:
            # The new node is in service: no failure may cost it.
            assert "new" in run.world.instances, step
        assert [] == run.world.undrained_terminations, step


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_unwinding_a_healthy_nodes_saga_gives_it_back(definition: Definition, order: str) -> None:
    """Where the node was healthy, unwinding takes the cordon back; a sick one stays cordoned."""
    for step in steps(definition, order):
        run = fresh(definition, order, fail=step)
        run.to_end()
        cordoned = "old" in run.world.cordoned

        if definition.kind in ("scale-down", "drain", "cordon"):
            assert not cordoned, step
        if definition.kind == "replace" and step != "cordon":
            assert cordoned, step


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_a_failed_undo_is_stuck_and_says_so(definition: Definition, order: str) -> None:
    """An undo that fails ends in `stuck`, never in silence."""
    undoable = [each.name for each in definition.steps(params(definition, order)) if each.undo]
    for step in undoable:
        run = fresh(definition, order, fail=step, fail_undo=step)
        state = run.to_end()

        assert "stuck" == state.status
        assert (step, "made to fail") == (state.failed_step, state.reason)


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_a_crash_at_every_point_resumes(definition: Definition, order: str) -> None:
    """Cut off before any append or action, the saga goes on from its log to the same end."""
    whole = fresh(definition, order)
    whole.to_end()
    for cut in range(whole.points):
        run = fresh(definition, order, cut_at=cut)
        state = run.to_end()

        assert state.status in ENDED, cut
        assert whole.world.snapshot() == run.world.snapshot(), cut
        assert [each.id for each in whole.log] == [each.id for each in run.log], cut


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_a_crash_while_unwinding_resumes(definition: Definition, order: str) -> None:
    """The same where a step failed: unwinding goes on from the log."""
    for step in steps(definition, order):
        whole = fresh(definition, order, fail=step)
        whole.to_end()
        for cut in range(whole.points):
            run = fresh(definition, order, fail=step, cut_at=cut)
            run.to_end()

            assert whole.world.snapshot() == run.world.snapshot(), (step, cut)
