"""Slurm reports the states of nodes unasked."""

from datetime import UTC, datetime, timedelta

import pytest

from services.notifier.workload.slurm_workload import node_state
from services.notifier.workload.workload_notifier import FAILED_MAX
from services.workload_systems.slurm_output import SlurmJob, SlurmNode

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)


def node(state: str, reason: str = "", user: str = "alice") -> SlurmNode:
    """A node with these flags."""
    return SlurmNode(
        name="gpu1",
        address="10.0.0.1",
        hostname="gpu1",
        state=frozenset(state.split("+")),
        user=user,
        reason=reason,
    )


@pytest.mark.parametrize(
    ("found", "ready", "cordoned", "reason"),
    [
        (node("idle"), True, False, ""),
        (node("allocated+drain", "ticket 12"), True, True, "drained by alice: ticket 12"),
        (
            node("idle+drain", "Kill task failed", "Unknown"),
            True,
            True,
            "drained: Kill task failed",
        ),
        (node("idle+drain", "navarch: xid-79 on GPU 3 (replace-1)"), True, False, ""),
        (node("down", "Not responding", "slurm"), False, False, "DOWN: Not responding"),
        (node("down+drain", "PSU"), False, True, "DOWN: PSU; drained by alice"),
        (node("down"), False, False, "DOWN: without a reason"),
        (node("idle+cloud+powered_down"), False, False, "powered down"),
        (node("mixed+cloud+powering_up"), True, False, ""),
    ],
)
def test_states(found: SlurmNode, ready: bool, cordoned: bool, reason: str) -> None:
    """A node that Navarch drained is no news; what others did is, with who and why."""
    state = node_state(found, ())
    assert (state.ready, state.cordoned, state.reason) == (ready, cordoned, reason)


def test_failed_jobs_are_listed_oldest_first_and_limited() -> None:
    """A job array that fails everywhere does not flood."""

    def job(number: int, seconds: int | None) -> SlurmJob:
        return SlurmJob(
            id=str(number),
            number=str(number),
            user="alice",
            started_at=AT,
            ends_at=None if seconds is None else AT + timedelta(seconds=seconds),
            nodes=("gpu1", "gpu2"),
            node_count=2,
            state="NODE_FAIL",
            name="train",
        )

    found = node_state(node("idle"), [job(2, 20), job(1, 10), job(3, None)]).failed
    assert [(each.id, each.owner, each.reason) for each in found] == [
        ("job 1", "alice", "NODE_FAIL (train, on 2 nodes)"),
        ("job 2", "alice", "NODE_FAIL (train, on 2 nodes)"),
    ]
    many = node_state(node("idle"), [job(each, each) for each in range(FAILED_MAX + 5)]).failed
    assert (len(many), many[-1].id) == (FAILED_MAX, f"job {FAILED_MAX + 4}")
