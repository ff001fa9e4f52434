"""A node that loses contact and returns again and again gets no new work, and is alerted."""

from datetime import datetime, timedelta

import pytest

from schemas.duration import Duration
from schemas.flapping_settings import FlappingSpec
from schemas.node_events import Lost, Returned, Uncordoned
from schemas.node_records import LOSSES_MAX, CloudNotice, NodeRecord
from schemas.pool_events import OperatorNeeded
from schemas.pool_records import PoolRecord
from schemas.settings import HealthSpec
from services.notifier.alerts.alert_rules import alert_of, ended_keys
from services.pool_manager.planner.node_projection import apply_event
from services.pool_manager.planner.saga_projection import leaving_node
from tests.pool_manager.test_quarantine import NOW, OUT, decided, node, pool, saga

MINUTE = timedelta(minutes=1)
FIVE = tuple(NOW - MINUTE * each for each in (50, 40, 30, 20, 10))


def flapping(times: int = 5, **health: object) -> PoolRecord:
    """Return a pool whose nodes flap after so many losses within an hour."""
    spec = HealthSpec(flapping=FlappingSpec(losses=times, window=Duration(3600)), **health)
    return pool(health=spec)


@pytest.mark.parametrize(
    ("record", "about", "begun"),
    [
        pytest.param(flapping(), {"losses": FIVE}, True, id="as often as configured"),
        pytest.param(flapping(), {"losses": FIVE[1:]}, False, id="not so often"),
        pytest.param(flapping(), {"losses": (NOW - 61 * MINUTE, *FIVE[1:])}, False, id="long ago"),
        pytest.param(flapping(0), {"losses": FIVE}, False, id="switched off"),
        pytest.param(flapping(6), {"losses": FIVE}, False, id="more are configured"),
        pytest.param(flapping(), {"losses": FIVE, "lost": True}, False, id="still lost"),
        pytest.param(flapping(), {"losses": FIVE, "cordoned": True}, False, id="cordoned"),
        pytest.param(flapping(auto_replace=False), {"losses": FIVE}, False, id="by hand alone"),
    ],
)
def test_a_flapping_node_is_quarantined_and_alerted_once(
    record: PoolRecord, about: dict[str, object], begun: bool
) -> None:
    """The setting decides; an operator gets an alert with the count and what to do."""
    planned = decided(record, node("a", **about))
    kinds = [each.kind for each in planned.start.values() if each.node == "a"]
    events = [each for each in planned.events if isinstance(each, OperatorNeeded)]
    assert kinds == ["quarantine"] * begun
    assert [each.reason for each in events] == [
        "it lost contact 5 times within 60 minutes and returned"
    ] * begun
    assert decided(planned.record, node("a", **about)).events == ()


def test_flapping_nodes_stay_within_the_quarantines_cap() -> None:
    """A network that flaps for all nodes takes no more of them than the cap."""
    nodes = [node(name, losses=FIVE) for name in "abcdef"]
    assert len(decided(flapping(), *nodes).start) == 2


def test_it_takes_work_again_once_it_keeps_contact() -> None:
    """Released when its losses are older than the window, at a time the plan wakes up for."""
    waiting = decided(flapping(), node("a", losses=FIVE, **OUT))
    assert (waiting.start, waiting.wake_at) == ({}, FIVE[0] + 60 * MINUTE)
    calm = tuple(each - 10 * MINUTE for each in FIVE)
    released = decided(flapping(), node("a", losses=calm, **OUT))
    assert [each.kind for each in released.start.values()] == ["uncordon"]


def silent(at: datetime, **changes: object) -> Lost:
    """Return the event that a node is silent."""
    values = {"id": f"lost-{at}", "time": at, "pool": "training", "node": "a", "instance": "a"}
    return Lost(**(values | changes))


@pytest.mark.parametrize(
    ("about", "event", "counted"),
    [
        pytest.param({}, {}, 1, id="by itself"),
        pytest.param({"saga": "reboot-a-1"}, {}, 0, id="in a repair"),
        pytest.param({}, {"credentials_expired": True}, 0, id="its credentials have expired"),
        pytest.param(
            {"notices": {"n": CloudNotice(kind="maintenance", effect="reboot", at=NOW)}},
            {},
            0,
            id="in an announced restart",
        ),
    ],
)
def test_a_loss_counts_unless_it_was_brought_about(
    about: dict[str, object], event: dict[str, object], counted: int
) -> None:
    """A node's record has its last losses, each once."""
    record: NodeRecord | None = node("a", **about)
    for _ in range(2):
        record = apply_event(record, silent(NOW, **event), NOW)
    assert record is not None
    assert len(record.losses) == counted


def test_a_record_keeps_so_many_losses() -> None:
    """A node that is lost and returns for a month has a record of the same size."""
    record: NodeRecord | None = node("a")
    for number in range(LOSSES_MAX + 5):
        at = NOW + MINUTE * number
        record = apply_event(record, silent(at), at)
        back = Returned(id=f"back-{number}", time=at, pool="training", node="a", instance="a")
        record = apply_event(record, back, at)
    assert record is not None
    assert (len(record.losses), record.losses[-1]) == (LOSSES_MAX, at)


def test_an_uncordon_begins_the_count_again() -> None:
    """An operator's word, like the release, is not taken back a moment later."""
    state = saga("uncordon", uncordon="succeeded")
    after = leaving_node(node("a", losses=FIVE, **OUT), state)
    assert after is not None
    assert (after.cordoned, after.losses) == (False, ())


def test_the_alert_lasts_until_the_node_takes_work_again() -> None:
    """The next return does not end it: the node has returned each time."""
    planned = decided(flapping(), node("a", losses=FIVE))
    [event] = [each for each in planned.events if isinstance(each, OperatorNeeded)]
    alert = alert_of(event)
    assert alert is not None
    about = {"id": "x", "time": NOW, "pool": "training", "node": "a"}
    assert alert.key not in ended_keys(Returned(instance="a", **about))
    assert alert.key in ended_keys(Uncordoned(saga="s", **about))
