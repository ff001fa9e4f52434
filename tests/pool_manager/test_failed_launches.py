"""A launch that failed holds no place in its pool while its machine is removed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.enums import DEADLINE_PASSED
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec
from services.pool_manager.planner import pool_conditions
from services.pool_manager.planner.node_counts import Nodes, size
from services.pool_manager.planner.pool_planner import close
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.sizing import failed_launches
from services.saga.saga_state import SagaState, StepState

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=9)


def record(**changes: Any) -> PoolRecord:
    """Return a pool with one launch, with the changes to it."""
    opened = msgspec.structs.replace(
        OpenSaga(kind="scale-up", new_node="new", since=NOW), **changes
    )
    return PoolRecord(name="training", spec=SPEC, desired=1, open={"s": opened})


def state(**changes: Any) -> SagaState:
    """Return the state of a launch whose agent never registered, with the changes."""
    fields: dict[str, Any] = {
        "kind": "scale-up",
        "params": SagaParams(pool="training", new_node="new"),
        "status": "unwinding",
        "reason": DEADLINE_PASSED,
        "failed_step": "register",
        "steps": {"provision": StepState(status="succeeded")},
    }
    return SagaState(
        saga="s", started_at=NOW, cause="", trace="", sequence=9, last_id="x", **(fields | changes)
    )


UNDONE = {"provision": StepState(status="undo-started", before="succeeded")}
GONE = {**UNDONE, "terminate": StepState(status="succeeded")}
CASES = [
    (record(), state(), True, "a machine was made"),
    (record(), state(steps=UNDONE), True, "its removal has begun"),
    (record(), state(steps={"provision": StepState(status="failed")}), False, "none was made"),
    (record(), state(cancelled=True), False, "it was called off"),
    (record(called_off="r"), state(), False, "it counts no more already"),
    (record(gang="g", gang_size=2), state(), False, "a gang fails as a whole"),
    (record(kind="replace", node="old"), state(steps=UNDONE), False, "the old node is there"),
    (record(kind="replace", node="old"), state(steps=GONE), True, "the old node is gone"),
]


@pytest.mark.parametrize(
    ("before", "log", "expected"), [each[:3] for each in CASES], ids=[each[3] for each in CASES]
)
def test_the_place_is_free_where_only_a_removal_is_left(
    before: PoolRecord, log: SagaState, expected: bool
) -> None:
    """The pool is complete no more once its launch has failed."""
    assert failed_launches.frees_its_place(before, log) is expected
    if expected:
        booting = NodeRecord(pool="training", node="new", state="launching")
        after = failed_launches.with_free_place(before, log)
        assert size(after, Nodes([booting])) == 0


def test_the_failure_is_counted_once() -> None:
    """The end of the removal changes neither the wait nor the count of failures."""
    failed = failed_launches.with_free_place(record(), state())
    failed = msgspec.structs.replace(failed, failures=1, retry_at=NOW)
    later = NOW + timedelta(minutes=30)
    after = close(failed, "s", failed=True, now=later, how="failed")
    assert (after.failures, after.retry_at, after.open) == (1, NOW, {})


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("bootstrap", "its set-up did not end"),
        ("register", "its agent never registered"),
        ("admit", "its boot checks have not passed"),
    ],
)
def test_operators_hear_what_was_seen_last(step: str, words: str) -> None:
    """The event names the machine, what it was waited for, and the setting to change."""
    failed = failed_launches.with_free_place(record(), state(failed_step=step))
    world = PoolSnapshot(fleet="f", record=failed, nodes=Nodes(), revision=7)
    failed, _, wake_at = pool_conditions.reported(world, failed, NOW)
    assert wake_at is not None
    _, (event,), _ = pool_conditions.reported(world, failed, wake_at)
    assert wake_at - NOW < timedelta(seconds=10)
    assert f"new: {words} (launch_timeout:" in event.reason
    assert "raise launch_timeout" in event.remedy
