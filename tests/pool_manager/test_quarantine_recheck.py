"""Nodes that only a wave's kernel logs accuse are tested, and released if the test passes."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from schemas.breaker_state import Breaker, OpenIncident
from schemas.enums import SagaKind
from schemas.health_records import HealthRecord, RecordedFault
from schemas.node_events import GpuIdentity
from schemas.node_records import NodeRecord, Quarantine, WorkloadView
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, PoolSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.saga_projection import leaving_node
from services.pool_manager.reconciler import saga_params
from services.saga.saga_state import SagaState, StepState
from tests.pool_manager.test_quarantine import saga

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SINCE = NOW - timedelta(hours=2)
WAVE = OpenIncident(since=SINCE, last=SINCE, nodes=9, kind="xid", code=79)
SHUT = Breaker(state="open", cause="wave", since=SINCE)
SPEC = PoolSpec(
    provider="p",
    instance_type="t",
    min_nodes=0,
    max_nodes=9,
    budget=BudgetSpec(max_unavailable=1, max_quarantined=2),
)


def accused(**changes: object) -> NodeRecord:
    """A quarantined node whose kernel log shows XID 79."""
    fields = {
        "state": "active",
        "admitted_at": SINCE,
        "cordoned": True,
        "quarantine": Quarantine(since=SINCE),
        "health": "unhealthy",
        "health_at": SINCE,
        "health_kind": "xid",
        "health_code": 79,
        "health_fault": "f",
        "gpus": (GpuIdentity(index=0, uuid="u"),),
    }
    return NodeRecord(pool="training", node="a", **(fields | changes))


def decided(
    node: NodeRecord,
    incident: OpenIncident | None = WAVE,
    health: HealthRecord | None = None,
    **changes: object,
) -> PoolPlan:
    """The plan of a pool of that node."""
    incidents = {"xid-79": incident} if incident else {}
    fields = {"breaker": SHUT, "incidents": incidents} | changes
    record = PoolRecord(name="training", spec=SPEC, desired=1, serial=1, **fields)
    known = {"a": health} if health else {}
    return plan(
        PoolSnapshot(fleet="f", record=record, nodes=Nodes([node]), health=known, revision=7), NOW
    )


def reported(kind: str) -> HealthRecord:
    """A health record in which NVML or a diagnostic, too, found the node unhealthy."""
    note = RecordedFault(id="n", time=SINCE, seen_at=SINCE, kind=kind, result="unhealthy")
    return HealthRecord(pool="training", node="a", status="unhealthy", recent=(note,))


FRESH = msgspec.structs.replace(WAVE, since=NOW - MINUTE, last=NOW - MINUTE)
TESTED = (NOW - 20 * MINUTE,)


@pytest.mark.parametrize(
    ("node", "more", "is_tested"),
    [
        (accused(), {}, True),
        (accused(), {"incident": FRESH}, False),
        (accused(), {"incident": msgspec.structs.replace(WAVE, released=True)}, False),
        (accused(), {"breaker": msgspec.structs.replace(SHUT, forced=True)}, False),
        # Another source agrees with the kernel log.
        (accused(), {"health": reported("fallen_off_bus")}, False),
        (accused(), {"health": reported("diagnostic")}, False),
        (accused(), {"health": reported("xid")}, True),
        (accused(health_kind="ecc_dbe", health_code=0), {}, False),
        # Nothing to answer the test, or a cordon that is not only the quarantine's.
        (accused(gpus=()), {}, False),
        (accused(lost=True, lost_at=NOW), {}, False),
        (accused(quarantine=None), {}, False),
        (accused(cordoned=False, quarantine=None), {}, False),
        (accused(workload=WorkloadView(system="s", cordoned=True)), {}, False),
        (accused(held_until=NOW + MINUTE), {}, False),
        (accused(quarantine=Quarantine(since=SINCE, failed_at=SINCE)), {}, False),
        # A few times a day, and not in a row.
        (accused(tests=TESTED), {}, True),
        (accused(tests=(NOW - 5 * MINUTE,)), {}, False),
        (accused(tests=TESTED * 3), {}, False),
        (accused(tests=(NOW - timedelta(hours=25), *TESTED * 2)), {}, True),
    ],
)
def test_only_what_the_log_of_a_wave_alone_reports_is_tested(
    node: NodeRecord, more: dict[str, object], *, is_tested: bool
) -> None:
    """The test begins after the incident's hold, on a quarantined node that is reachable."""
    begun = [each.kind for each in decided(node, **more).start.values()]  # type: ignore[arg-type]
    assert is_tested == ("recheck" in begun)


def test_the_next_test_wakes_the_pool() -> None:
    """The second follows the first after ten minutes, and the fourth the first after a day."""
    soon = decided(accused(tests=(NOW - 5 * MINUTE,)))
    later = decided(accused(tests=TESTED * 3))
    assert NOW + 5 * MINUTE == soon.wake_at
    assert later.wake_at is not None
    assert NOW + timedelta(days=1) - 20 * MINUTE == later.wake_at


@pytest.mark.parametrize(("signature", "test"), [("xid-79", "boot"), ("xid-48", "dcgm-1")])
def test_a_lost_gpu_is_disproved_by_nvml_and_anything_else_by_dcgm_too(
    signature: str, test: str
) -> None:
    """The work on the node is disturbed by neither test."""
    opened = OpenSaga(kind="recheck", node="a", fault_signature=signature, since=NOW)
    record = PoolRecord(name="training", spec=SPEC, desired=1)
    assert test == saga_params("f", record, opened).diagnostic


@pytest.mark.parametrize(
    ("state", "is_kept", "is_repeated"),
    [
        (saga("recheck", "running", check="started"), True, False),
        (saga("recheck", "unwound", check="failed"), True, False),
        (saga("recheck", "unwound", check="expired"), True, False),
        (saga("recheck", "unwound", check="succeeded", uncordon="expired"), True, True),
        (saga("recheck", "done", check="succeeded", uncordon="succeeded"), False, False),
    ],
)
def test_a_test_that_does_not_pass_leaves_the_node_quarantined(
    state: SagaState, *, is_kept: bool, is_repeated: bool
) -> None:
    """Each test counts once, however often its log is taken in."""
    after = leaving_node(accused(), state)
    assert after is not None
    assert is_kept == after.is_quarantined
    assert is_repeated == bool(after.quarantine and after.quarantine.failed_at)
    again = leaving_node(msgspec.structs.replace(after, saga="", saga_entry=0), state)
    assert again is not None
    assert (NOW,) == after.tests == again.tests


@pytest.mark.parametrize(
    ("kind", "error", "is_evidence"),
    [
        ("recheck", "test-failed", True),
        ("recheck", "not-admitted", False),
        ("reboot", "test-failed", False),
    ],
)
def test_what_nvml_says_in_a_recheck_is_kept_as_evidence(
    kind: SagaKind, error: str, *, is_evidence: bool
) -> None:
    """A tool that cannot run says nothing; a test after a repair has a place of its own."""
    failed = StepState(status="failed", error=error, ended_at=NOW)
    state = msgspec.structs.replace(saga(kind, "unwound"), steps={"check": failed})
    after = leaving_node(accused(), state)
    assert after is not None
    assert after.test_failed_at == (NOW if is_evidence else None)
