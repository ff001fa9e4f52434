"""Events change a node's record: its state, and the job of its fault."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas.node_events import Lost, Registered, Returned, Verdict, WorkGangs, WorkloadState
from schemas.node_records import NodeRecord
from schemas.saga_params import LaunchSpec
from services.pool_manager.planner import node_projection

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
NODE = {"time": NOW, "pool": "training", "node": "training-1"}


def record(**labels: str) -> NodeRecord:
    launch = LaunchSpec(fleet="f", provider="local", instance_type="local-8gpu", labels=labels)
    return NodeRecord(pool="training", node="training-1", launch=launch)


@pytest.mark.parametrize(
    ("labels", "said", "rack"),
    [
        ({}, "", ""),
        ({}, "r17", "r17"),
        ({"rack": "hall-2"}, "", "hall-2"),
        ({"rack": "hall-2"}, "r17", "r17"),
    ],
)
def test_rack_comes_from_the_agent_else_from_the_pools_label(
    labels: dict[str, str], said: str, rack: str
) -> None:
    """The host knows its location better than the pool."""
    event = Registered(id="r", instance="training-1", rack=said, **NODE)
    changed = node_projection.apply_event(record(**labels), event, NOW)
    assert changed is not None
    assert rack == changed.rack


def test_rack_follows_the_latest_registration() -> None:
    """A machine that was moved reports its new rack when it registers again."""
    changed: NodeRecord | None = record()
    for number, rack in enumerate(("r17", "r18")):
        event = Registered(id=f"r{number}", instance="training-1", rack=rack, **NODE)
        changed = node_projection.apply_event(changed, event, NOW)
    assert changed is not None
    assert "r18" == changed.rack


def test_a_return_is_due_until_it_is_published() -> None:
    """A registration ends the silence alone: where HEALTH is lost, NODES knows what is missing."""
    changed: NodeRecord | None = record()
    found: list[tuple[bool, bool]] = []
    for number, kind in enumerate((Lost, Registered, Returned, Lost, Returned)):
        about = NODE | {"time": NOW + timedelta(seconds=number)}
        event = kind(id=f"e{number}", instance="training-1", **about)
        changed = node_projection.apply_event(changed, event, about["time"])
        assert changed is not None
        found.append((changed.lost, changed.return_due))
    assert found == [(True, True), (False, True), (False, False), (True, True), (False, False)]


def test_a_registration_before_a_silence_ends_none_even_by_a_clock_that_is_ahead() -> None:
    """The service was away in between, and has the events of two streams in another order."""
    gone = Lost(id="l", instance="training-1", **NODE)
    about = NODE | {"time": NOW + timedelta(seconds=28)}
    before = Registered(id="r", instance="training-1", **about)
    changed = node_projection.apply_event(record(), gone, NOW + timedelta(seconds=2))
    changed = node_projection.apply_event(changed, before, NOW - timedelta(seconds=9))
    assert changed is not None
    assert changed.lost


@pytest.mark.parametrize(("boot", "lost"), [("b-1", True), ("b-2", False)])
def test_a_registration_that_is_replayed_ends_no_silence(boot: str, lost: bool) -> None:
    """An operator replays a message that was set aside: the machine may be gone since."""
    changed: NodeRecord | None = record()
    gone = Lost(id="l", instance="training-1", **NODE)
    for number, event in enumerate(
        (
            Registered(id="r-1", instance="training-1", boot_id="b-1", **NODE),
            gone,
            Registered(id="r-2", instance="training-1", boot_id=boot, **NODE),
        )
    ):
        changed = node_projection.apply_event(changed, event, NOW + timedelta(seconds=number))
    assert changed is not None
    assert changed.lost == lost


def test_node_record_names_the_job_of_its_verdict() -> None:
    """An older verdict changes nothing; the next one replaces the job."""
    changed: NodeRecord | None = record()
    jobs: list[Any] = []
    for number, (job, seconds) in enumerate((("slurm-7", 1), ("slurm-8", 0), ("", 2))):
        about = NODE | {"time": NOW + timedelta(seconds=seconds)}
        verdict = Verdict(id=f"v{number}", status="unhealthy", code=79, job=job, **about)
        changed = node_projection.apply_event(changed, verdict, NOW)
        assert changed is not None
        jobs.append(changed.health_job)
    assert ["slurm-7", "slurm-7", ""] == jobs


def test_gangs_are_bounded_and_an_older_event_changes_nothing() -> None:
    """A record has the first four; the last event counts."""
    changed: NodeRecord | None = record()
    seen = []
    for number, (gangs, seconds) in enumerate(
        ((("a", "b", "c", "d", "e"), 2), ((), 1), (("f",), 3))
    ):
        about = NODE | {"time": NOW + timedelta(seconds=seconds)}
        event = WorkGangs(id=f"g{number}", gangs=gangs, **about)
        changed = node_projection.apply_event(changed, event, NOW)
        assert changed is not None
        seen.append(changed.gangs)
    assert seen == [("a", "b", "c", "d"), ("a", "b", "c", "d"), ("f",)]


def test_what_the_workload_system_says_is_kept_while_it_matters() -> None:
    """An older event changes nothing; a node that is ready and not cordoned has none."""
    changed: NodeRecord | None = record()
    seen: list[Any] = []
    said = (({"ready": False, "reason": "NotReady"}, 2), ({}, 1), ({"cordoned": True}, 3), ({}, 4))
    for number, (state, seconds) in enumerate(said):
        about = NODE | {"time": NOW + timedelta(seconds=seconds)}
        event = WorkloadState(id=f"w{number}", system="kubernetes", **state, **about)
        changed = node_projection.apply_event(changed, event, NOW)
        assert changed is not None
        found = changed.workload
        seen.append(found and (found.ready, found.cordoned))
    assert seen == [(False, False), (False, False), (True, True), None]


def test_a_return_that_arrives_after_a_later_loss_does_not_count() -> None:
    """Messages that the store refused for a while come in another order than they happened."""
    changed: NodeRecord | None = record()
    for number, (kind, seconds) in enumerate(((Lost, 0), (Lost, 20), (Returned, 10))):
        at = NOW + timedelta(seconds=seconds)
        event = kind(id=f"e{number}", instance="training-1", **(NODE | {"time": at}))
        changed = node_projection.apply_event(changed, event, NOW + timedelta(seconds=30))
    assert changed is not None
    assert changed.lost
