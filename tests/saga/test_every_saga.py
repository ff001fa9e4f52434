"""Checks that every registered saga passes, whatever it does."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from schemas.enums import SAGA_STEPS
from schemas.step_declarations import STEPS
from services.saga.definition import Definition
from services.saga.definitions import DEFINITIONS
from services.saga.saga_state import ENDED
from tests.saga.model import KINDS, VARIANTS, Run, World, params, waiting

ROOT = Path(__file__).parents[2]
PERFORMED = {
    "notifier": ["services/notifier/workload_steps.py"],
    "provisioner": [
        "services/provisioner/saga_step_handlers.py",
        "services/provisioner/node_recovery/reset_and_reboot_steps.py",
    ],
}
"""Service -> where its actions are."""
CASES = [
    pytest.param(definition, order, id=f"{definition.kind}-{order}")
    for definition in DEFINITIONS.values()
    for order in VARIANTS
    if definition.kind in KINDS.get(order, (definition.kind,))
]


def fresh(definition: Definition, order: str, **options: object) -> Run:
    """A run that has not begun."""
    world = World()
    if definition.kind in ("uncordon", "recheck"):
        world.cordoned.add("old")
    return Run(definition, params(definition, order), world=world, **options)  # type: ignore[arg-type]


def steps(definition: Definition, order: str) -> list[str]:
    """Return the names of a saga's steps."""
    return [step.name for step in definition.steps(params(definition, order))]


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_it_ends_with_every_step_done_once(definition: Definition, order: str) -> None:
    """Nothing fails: each action is performed once, in the table's order, and the saga is done."""
    run = fresh(definition, order)
    state = run.to_end()

    waits = waiting(definition, params(definition, order))
    performed = [step for step in steps(definition, order) if step not in waits]
    assert "done" == state.status
    assert performed == run.world.performed


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_no_kind_has_a_step_that_its_log_would_not_allow(
    definition: Definition, order: str
) -> None:
    """SAGA_STEPS names every step of every variant."""
    assert set(steps(definition, order)) <= SAGA_STEPS[definition.kind]


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
    """The saga, whatever fails, is unwound (or stuck beyond its pivot) and nothing is left over."""
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
        assert [] == run.world.disturbed, step


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_unwinding_a_healthy_nodes_saga_gives_it_back(definition: Definition, order: str) -> None:
    """Where the node was well, the cordon is taken back; an unhealthy one stays cordoned.

    So does one whose end, reset or reboot was begun: it is not what it was any more.
    """
    for step in steps(definition, order):
        run = fresh(definition, order, fail=step)
        state = run.to_end()
        cordoned = "old" in run.world.cordoned
        begun = [
            each.name
            for each in definition.steps(run.params)
            if each.irrevocable and state.step(each.name).status != "pending"
        ]

        if state.status == "unwound" and gives_back(run) and not run.params.spare:
            # Made to fail, an uncordon has come into effect all the same.
            assert (bool(begun) and step != "uncordon") == cordoned, step
        elif definition.kind in ("replace", "reset-gpu", "reboot"):
            assert cordoned or step in ("cordon", "uncordon"), step


def gives_back(run: Run) -> bool:
    """Return whether unwinding is to leave the node in service."""
    return run.params.restores_service or run.definition.kind in ("scale-down", "drain", "cordon")


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


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("definition", "order"), CASES)
def test_cancelled_at_any_point_it_is_unwound_or_says_why_not(
    definition: Definition, order: str, twice: bool
) -> None:
    """A saga cancelled before any action is unwound with nothing left over, or refused and done."""
    whole = fresh(definition, order)
    whole.to_end()
    for point in range(whole.points):
        run = fresh(definition, order, cancel_at=point, twice=twice)
        state = run.to_end()

        assert ("done" if run.refusal else "unwound") == state.status, point
        if run.refusal:
            assert whole.world.snapshot() == run.world.snapshot(), point
        else:
            assert {"old"} == run.world.instances, point
            assert (True, "request-1") == (state.cancelled, state.asked), point
        if not run.refusal and gives_back(run):
            assert set() == run.world.cordoned, point


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_cancelling_is_refused_from_the_first_step_that_cannot_be_taken_back(
    definition: Definition, order: str
) -> None:
    """A cancellation until then is possible at every point, and from then on at none."""
    whole = fresh(definition, order)
    whole.to_end()
    refused = []
    for point in range(1, whole.points):
        run = fresh(definition, order, cancel_at=point)
        run.to_end()
        refused.append(bool(run.refusal))

    assert sorted(refused) == refused
    assert (definition.kind not in ("drain", "cordon", "quarantine")) == refused[-1]


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_what_was_cancelled_resumes_after_a_crash(definition: Definition, order: str) -> None:
    """Cut off at any point of the unwinding, it goes on to the same end."""
    whole = fresh(definition, order)
    whole.to_end()
    for point in range(1, whole.points):
        once = fresh(definition, order, cancel_at=point)
        once.to_end()
        for cut in range(point + 1, once.points):
            run = fresh(definition, order, cancel_at=point, cut_at=cut)
            state = run.to_end()

            assert state.status in ENDED, (point, cut)
            assert once.world.snapshot() == run.world.snapshot(), (point, cut)


@pytest.mark.parametrize("step", ["drain", "terminate"])
def test_what_failed_beyond_the_pivot_is_done_when_it_is_retried(step: str) -> None:
    """Stuck with the new node in service: once the reason is gone, the old one leaves."""
    run = fresh(DEFINITIONS["replace"], "provision_first", fail=step)
    stuck = run.to_end()
    state = run.repair_and_retry()

    assert ("stuck", "done") == (stuck.status, state.status)
    assert {"new"} == run.world.instances
    assert [] == run.world.undrained_terminations
    appended = [each.id for each in run.log if each.id != "x"]
    assert len(set(appended)) == len(appended)


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_an_undo_that_failed_is_done_when_it_is_retried(definition: Definition, order: str) -> None:
    """Stuck on the way back: once the reason is gone, the saga is unwound with nothing left."""
    undoable = [each.name for each in definition.steps(params(definition, order)) if each.undo]
    for step in undoable:
        run = fresh(definition, order, fail=step, fail_undo=step)
        stuck = run.to_end()
        state = run.repair_and_retry()

        assert ("stuck", "unwound") == (stuck.status, state.status), step
        assert "new" not in run.world.instances, step


@pytest.mark.parametrize(("definition", "order"), CASES)
def test_what_is_declared_of_each_step_is_so(definition: Definition, order: str) -> None:
    """A step waits for the node where no service performs it, and is undone where it says so."""
    for step in definition.steps(params(definition, order)):
        declared = STEPS[step.name]
        assert (step.waits is not None) == (declared.performer == "")
        assert not step.undo or declared.undo


def test_every_step_is_declared() -> None:
    """No other is."""
    assert {each for found in SAGA_STEPS.values() for each in found} == STEPS.keys()


@pytest.mark.parametrize(("performer", "files"), PERFORMED.items())
def test_a_step_is_performed_by_the_service_that_is_declared(
    performer: str, files: Sequence[str]
) -> None:
    """The commands are delivered to that service alone: its table of actions has the step."""
    text = "".join((ROOT / each).read_text(encoding="utf-8") for each in files)
    actions = {name for name in STEPS if re.search(rf'"{name}": self\.', text)}
    assert actions == {name for name, each in STEPS.items() if each.performer == performer}
