"""A contained memory error in a pool that replaces unhealthy nodes: its GPU is reset before."""

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from schemas.enums import Remediation
from schemas.node_records import GpuUse, NodeRecord, RemediationAttempt
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import NodeUse, PoolSnapshot
from services.pool_manager.planner.remediation import remedy_selection
from services.pool_manager.planner.remediation.recovered_nodes import SETTLED, WORKS
from services.pool_manager.planner.remediator import REPLACE
from tests.pool_manager.test_pool_planner import NOW, node
from tests.pool_manager.test_remediation import HOUR, attempt, started, under, unhealthy

CONTAINED = unhealthy(health_code=94)
DEGRADED = msgspec.structs.replace(CONTAINED, health="degraded")
FAILED = attempt("reset-gpu", "failed", what="xid-94")


@pytest.mark.parametrize(
    ("case", "attempts", "remedy"),
    [
        (CONTAINED, (), "reset-gpu"),
        (CONTAINED, (attempt("reset-gpu", "cancelled", what="xid-94"),), "reset-gpu"),
        (CONTAINED, (FAILED,), "replace"),
        (CONTAINED, (attempt("reset-gpu", what="xid-94"),), "replace"),
        (CONTAINED, (attempt("reset-gpu", ago=25 * HOUR, what="xid-94"),), "reset-gpu"),
        (DEGRADED, (), "reset-gpu"),
        (DEGRADED, (FAILED,), "replace"),
        (msgspec.structs.replace(DEGRADED, faulty_gpus=(3,)), (), "reset-gpu"),
        (msgspec.structs.replace(CONTAINED, health_code=95), (), "replace"),
        (msgspec.structs.replace(CONTAINED, lost=True), (), "replace"),
    ],
)
def test_a_contained_memory_error_is_no_reason_to_replace_a_node_at_once(
    case: NodeRecord, attempts: tuple[RemediationAttempt, ...], remedy: Remediation
) -> None:
    """A reset remaps the faulty row; where it fails, or the fault returns, the node is replaced."""
    assert REPLACE.choose(case, attempts, NOW).remedy == remedy


@pytest.mark.parametrize(("minutes", "begun"), [(6, [("reset-gpu", "a")]), (4, [])])
def test_it_is_reset_once_the_work_has_left(minutes: int, begun: list[tuple[str, str]]) -> None:
    """The error has left the node degraded and in work, also where its line asks for no reset."""
    gpus = GpuUse(busy=False, since=NOW - timedelta(minutes=minutes))
    resting = NodeUse(gpus=gpus, work="none")
    decided = under(REPLACE, DEGRADED, node("b"))
    assert remedy_selection.asked_about(decided, NOW) == ["a"]
    assert started(decided) == []
    assert started(replace(decided, use={"a": resting})) == begun


def left(*, unfit: bool = False, **changes: object) -> NodeRecord:
    """A degraded node whose reset has failed just now."""
    last = msgspec.structs.replace(
        FAILED,
        saga="reset-gpu-a-3",
        ended_at=NOW - SETTLED,
        cordoned_by_operator=False,
        unfit=unfit,
    )
    plain = {"cordoned": True, "sagas": 3, "attempts": (last,)}
    checked = {"boot_id": "b1", "boot_checked": True, "boot_checked_id": "b1"}
    changed = msgspec.structs.replace(DEGRADED, **(plain | checked))
    return msgspec.structs.replace(changed, **changes)


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        (left(), ["uncordon"]),
        (left(faulty_gpus=(3,)), []),
        (left(cordoned=False), []),
        (left(health_code=95), []),
        (left(sagas=4), []),  # an operator has done something since
        (left(lost=True, lost_at=NOW), []),
        (left(unfit=True), []),
        (left(boot_checked=False), []),
        (left(boot_id="b2"), []),  # it came up late, and is not checked yet
        (left(attempts=(msgspec.structs.replace(FAILED, saga="reset-gpu-a-3"),)), []),
    ],
)
def test_a_degraded_node_whose_reset_failed_works_on(case: NodeRecord, kinds: list[str]) -> None:
    """The node is no worse than before; it was cordoned for the day for which the error counts."""
    begun = plan(under(REPLACE, case, node("b")), NOW).start.values()
    assert [each.kind for each in begun] == kinds
    assert {each.reason for each in begun} <= {WORKS}


def test_what_a_failed_reset_has_broken_is_reported_before_the_node_works_on() -> None:
    """The node's agent has a minute to report it."""
    ended = msgspec.structs.replace(left().attempts[-1], ended_at=NOW)
    fresh = under(REPLACE, left(attempts=(ended,)), node("b"))
    waiting = plan(fresh, NOW)
    assert (waiting.start, waiting.wake_at) == ({}, NOW + SETTLED)
    broken = Nodes([left(attempts=(ended,), health="unhealthy"), node("b")])
    kinds = [each.kind for each in plan(replace(fresh, nodes=broken), NOW + SETTLED).start.values()]
    assert kinds == ["replace"]


def resting(*nodes: NodeRecord) -> PoolSnapshot:
    """A pool on whose nodes nothing runs."""
    use = NodeUse(gpus=GpuUse(busy=False, since=NOW - HOUR), work="none")
    return replace(under(REPLACE, *nodes), use={each.node: use for each in nodes})


def test_a_node_that_fails_its_check_after_the_reset_is_replaced() -> None:
    """The node has no work, and shall get none."""
    known = resting(left(unfit=True, drained=True), node("b"))
    rests = NodeUse(gpus=GpuUse(busy=False, since=NOW - HOUR))
    assert started(known) == [("replace", "a")]
    # The workload system says that it places no work there, which may also be one it does not know.
    assert started(replace(known, use={"a": rests})) == [("replace", "a")]


def test_an_operators_cordon_of_a_degraded_node_stays() -> None:
    """A reset would end with an uncordon."""
    assert started(resting(DEGRADED, node("b"))) == [("reset-gpu", "a")]
    assert started(resting(msgspec.structs.replace(DEGRADED, cordoned=True), node("b"))) == []
