"""node_health: what any order of judged faults does to a node's record."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.health_records import HealthRecord
from schemas.node_events import Fault, Registered, Uncordoned
from schemas.value_limits import NAME_CHARS_MAX
from services.health_monitor.rules import fault_history, node_health, silences
from services.health_monitor.rules.health_policy import Judgement
from services.health_monitor.rules.health_state import CONDITIONS_MAX, WatchDecision
from services.health_monitor.rules.node_health import PublishVerdict, ReviewAt, Trigger

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
SEVERITY = {"unknown": 0, "healthy": 0, "degraded": 1, "unhealthy": 2}


def seen(number: int, seconds: float = 0.0) -> Trigger:
    return Trigger(f"f{number}", number, NOW + timedelta(seconds=seconds))


def fault(number: int, code: int = 31, gpu: int = 0, boot: str = "boot-1") -> Fault:
    return Fault(
        id=f"f{number}",
        time=NOW,
        pool="p",
        node="n",
        kind="xid",
        code=code,
        gpu_index=gpu,
        boot_id=boot,
    )


def judged(result: str, action: str = "none", **fields: Any) -> Judgement:
    return Judgement(result=result, action=action, rule=f"r-{result}", policy="abc", **fields)


def healthy() -> HealthRecord:
    return HealthRecord(pool="p", node="n", status="healthy")


def verdicts(effects) -> list[str]:
    return [e.verdict.status for e in effects if isinstance(e, PublishVerdict)]


def registered(boot: str, number: int = 100) -> Registered:
    return Registered(id=f"r{number}", time=NOW, pool="p", node="n", instance="n", boot_id=boot)


_steps = st.lists(
    st.tuples(
        st.sampled_from(["healthy", "degraded", "unhealthy"]),
        st.sampled_from(["none", "inspect", "reset_gpu", "replace"]),
        st.integers(0, 3),
        st.integers(0, 2),
        st.booleans(),
        st.floats(0, 5000),
    ),
    max_size=30,
)


def run(steps, record, *, after: int = 1, twice: bool = False):
    published, at = [], 0.0
    for number, (result, action, code, gpu, fatal, wait) in enumerate(steps, 1):
        at += wait
        for _ in range(2 if twice else 1):
            record, effects = node_health.decide_fault(
                record,
                fault(number, code, gpu),
                judged(result, action, fatal=fatal),
                seen(number, at),
                unhealthy_after=after,
            )
            published += [e.verdict for e in effects if isinstance(e, PublishVerdict)]
    return record, published


@given(_steps, st.integers(1, 4))
def test_redelivered_fault_changes_nothing(steps, after):
    """Every message delivered twice gives the same record and verdicts as once."""
    assert run(steps, healthy(), after=after, twice=True) == run(steps, healthy(), after=after)


@given(_steps, _steps, st.integers(1, 4))
def test_unhealthy_is_sticky(before, then, after):
    """No fault, timer or registration changes the status of an unhealthy node."""
    record, _ = run([*before, ("unhealthy", "reset_gpu", 9, 0, True, 1.0)], healthy(), after=after)
    assert record.status == "unhealthy"
    record = forget_sequences(record)
    record, published = run(then, record, after=after)
    record, _ = node_health.decide_registered(record, registered("another"), seen(900, 1e6))
    record, effects = node_health.decide_review(record, Trigger("t", 0, NOW + timedelta(days=9)))
    assert record.status == "unhealthy"
    assert {v.status for v in published} <= {"unhealthy"}
    assert verdicts(effects) == []


def forget_sequences(record: HealthRecord) -> HealthRecord:
    """Forget which messages were applied, so that a second run can reuse their IDs."""
    return HealthRecord(
        pool="p", node="n", status=record.status, action=record.action, fault=record.fault
    )


@given(_steps)
def test_worse_fault_never_improves_a_node(steps):
    """Replacing one result by unhealthy and fatal never gives the node a better status."""
    record, _ = run(steps, healthy())
    for place in range(len(steps)):
        worse = [*steps]
        worse[place] = ("unhealthy", *steps[place][1:4], True, steps[place][5])
        after, _ = run(worse, healthy())
        assert SEVERITY[after.status] >= SEVERITY[record.status]


@given(_steps, st.integers(1, 4))
def test_verdicts_cover_every_change_and_nothing_else(steps, after):
    """Each verdict follows the last one, changes status or action, and ends at the record's."""
    record, published = run(steps, healthy(), after=after)
    status, action = "healthy", "none"
    for verdict in published:
        assert verdict.previous == status
        assert (verdict.status, verdict.action) != (status, action)
        status, action = verdict.status, verdict.action
    assert (status, action) == (record.status, record.action)
    assert len({v.id for v in published}) == len(published)


@given(_steps)
def test_record_stays_bounded(steps):
    """History, sequences and conditions have limits, however many faults arrive."""
    record, _ = run(steps * 20, healthy())
    assert len(record.recent) <= fault_history.RECENT_MAX
    assert len(record.detail.get("sequences", ())) <= node_health.SEQUENCES_MAX
    assert len(record.detail.get("conditions", {})) <= CONDITIONS_MAX


def test_conditions_expire_independently():
    """One condition ends on time although another is renewed all the while."""
    record, _ = node_health.decide_fault(
        healthy(), fault(1, 74), judged("degraded", "reset_gpu", sticky_seconds=100), seen(1)
    )
    for number, at in enumerate((30, 60, 90), 2):
        record, _ = node_health.decide_fault(
            record, fault(number, 78), judged("degraded", sticky_seconds=100), seen(number, at)
        )
    assert record.action == "reset_gpu"
    record, effects = node_health.decide_review(
        record, Trigger("t", 0, NOW + timedelta(seconds=101))
    )
    assert (record.status, record.action) == ("degraded", "none")
    assert ReviewAt(NOW + timedelta(seconds=190)) in effects
    record, _ = node_health.decide_review(record, Trigger("t", 0, NOW + timedelta(seconds=191)))
    assert record.status == "healthy"


def test_unhealthy_results_are_counted_across_faults_and_gpus():
    """`unhealthy_after: 3`: three different faults, with benign ones between, are three results."""
    record, statuses = healthy(), []
    for number, (code, result) in enumerate(
        [(119, "unhealthy"), (43, "healthy"), (62, "unhealthy"), (31, "healthy"), (46, "unhealthy")]
    ):
        record, _ = node_health.decide_fault(
            record, fault(number, code), judged(result), seen(number + 1), unhealthy_after=3
        )
        statuses.append(record.status)
    assert statuses == ["degraded", "degraded", "degraded", "degraded", "unhealthy"]


def test_unhealthy_results_a_day_apart_are_not_consecutive():
    """An unhealthy result of yesterday does not count today."""
    record = healthy()
    for number, hours in enumerate((0, 25)):
        record, _ = node_health.decide_fault(
            record,
            fault(number),
            judged("unhealthy"),
            seen(number + 1, hours * 3600),
            unhealthy_after=2,
        )
    assert record.status == "degraded"


def test_cancelling_code_ends_only_its_pair():
    """XID 162 ends XID 163 on the same GPU; another GPU's and other codes remain."""
    record = healthy()
    for number, (code, gpu) in enumerate([(163, 0), (163, 1), (78, 0)], 1):
        record, _ = node_health.decide_fault(
            record, fault(number, code, gpu), judged("degraded"), seen(number)
        )
    record, _ = node_health.decide_fault(
        record, fault(4, 162, 0), judged("healthy", cancels=(163,)), seen(4)
    )
    assert set(record.detail["conditions"]) == {"xid:163:1", "xid:78:0"}
    record, _ = node_health.decide_fault(
        record, fault(5, 162, 1), judged("healthy", cancels=(163,)), seen(5)
    )
    record, effects = node_health.decide_fault(
        record, fault(6, 1, -1), judged("healthy", cancels=("xid",)), seen(6)
    )
    assert (record.status, verdicts(effects)) == ("healthy", ["healthy"])


def test_only_a_stronger_action_publishes_another_verdict():
    """An unhealthy node gets another verdict only when the action becomes stronger."""
    record, published = healthy(), []
    for number, action in enumerate(["reset_gpu", "reset_gpu", "replace", "reboot"], 1):
        record, effects = node_health.decide_fault(
            record, fault(number), judged("unhealthy", action, fatal=True), seen(number)
        )
        published.append(verdicts(effects))
    assert published == [["unhealthy"], [], ["unhealthy"], []]
    assert (record.action, record.fault) == ("replace", "f3")


def test_registration_makes_an_unknown_node_healthy_once():
    """The first registration publishes a verdict; later ones and those of one boot do not."""
    record = HealthRecord(pool="p", node="n")
    record, effects = node_health.decide_registered(record, registered("boot-1"), seen(1))
    assert verdicts(effects) == ["healthy"]
    assert effects[0].verdict.previous == "unknown"
    record, effects = node_health.decide_registered(record, registered("boot-1", 101), seen(2))
    assert (record.status, effects) == ("healthy", ())


def test_registration_keeps_earlier_faults():
    """A fault that the kernel log held before the registration still degrades the node."""
    record = HealthRecord(pool="p", node="n")
    record, effects = node_health.decide_fault(
        record, fault(1), judged("degraded", "inspect"), seen(1)
    )
    assert verdicts(effects) == ["degraded"]
    record, _ = node_health.decide_registered(record, registered("boot-1"), seen(2))
    assert record.status == "degraded"
    record, _ = node_health.decide_fault(
        HealthRecord(pool="p", node="n"), fault(1), judged("healthy"), seen(1)
    )
    assert record.status == "unknown"


def test_new_boot_ends_conditions_of_the_previous_boot():
    """A reboot clears a degraded node, except for faults of the new boot."""
    record, _ = node_health.decide_registered(
        HealthRecord(pool="p", node="n"), registered("boot-1"), seen(1)
    )
    record, _ = node_health.decide_fault(record, fault(2, 74), judged("degraded"), seen(2))
    record, _ = node_health.decide_fault(
        record, fault(3, 78, boot="boot-2"), judged("degraded"), seen(3)
    )
    record, _ = node_health.decide_registered(record, registered("boot-2", 4), seen(4))
    assert set(record.detail["conditions"]) == {"xid:78:0"}
    record, _ = node_health.decide_registered(record, registered("boot-3", 5), seen(5))
    assert record.status == "healthy"


@pytest.mark.parametrize(
    ("since", "boot_id", "status"),
    [
        (None, "", "healthy"),
        (NOW - timedelta(seconds=1), "", "unhealthy"),
        (NOW + timedelta(seconds=1), "", "healthy"),
        (None, "boot-1", "unhealthy"),
        (None, "boot-2", "healthy"),
    ],
)
def test_uncordon_after_remediation_keeps_later_faults(since, boot_id, status):
    """A fault after the reset, or of the new boot, makes the node unhealthy at once."""
    record, _ = node_health.decide_fault(
        healthy(), fault(1), judged("unhealthy", "reset_gpu"), seen(1)
    )
    event = Uncordoned(id="u1", time=NOW, pool="p", node="n", since=since, boot_id=boot_id)
    record, effects = node_health.decide_uncordoned(record, event, seen(50))

    assert status == record.status
    assert [status] == verdicts(effects)
    if status == "unhealthy":
        assert ("reset_gpu", "f1") == (record.action, record.fault)
        assert "again after it was repaired" in record.reason
    assert (record, ()) == node_health.decide_uncordoned(record, event, seen(50))


@pytest.mark.parametrize(
    ("asked_at", "faults", "status", "fault_id"),
    [
        (3, [(1, "unhealthy")], "healthy", ""),
        (3, [(5, "unhealthy")], "unhealthy", "f5"),
        (3, [(1, "unhealthy"), (5, "unhealthy")], "unhealthy", "f5"),
        (3, [(1, "unhealthy"), (5, "degraded")], "degraded", "f5"),
        (3, [(1, "degraded")], "healthy", ""),
        (3, [(5, "degraded"), (6, "unhealthy")], "unhealthy", "f6"),
        (3, [], "healthy", ""),
    ],
)
def test_uncordon_applies_as_of_the_time_of_its_request(asked_at, faults, status, fault_id):
    """A fault between request and uncordon is kept, and so is its GPU's state."""
    record = healthy()
    for number, result in faults:
        action = "replace" if result == "unhealthy" else "none"
        given = judged(result, action)
        record, _ = node_health.decide_fault(
            record, fault(number, 70 + number), given, seen(number, number)
        )
    event = Uncordoned(
        id="u", time=NOW, pool="p", node="n", cleared_at=NOW + timedelta(seconds=asked_at)
    )
    record, effects = node_health.decide_uncordoned(record, event, seen(50))

    assert (status, fault_id) == (record.status, record.fault)
    assert [status] * bool(faults) == verdicts(effects)
    assert [status] * bool(fault_id) == [each.status for each in record.gpus][:1]
    assert (record, ()) == node_health.decide_uncordoned(record, event, seen(50))


def test_message_handled_again_after_a_later_one_publishes_its_new_outcome():
    """A replica dies between verdict and record; what it says again then has another ID."""
    unhealthy, _ = node_health.decide_fault(
        healthy(), fault(1), judged("unhealthy", "replace"), seen(1, 1)
    )
    event = Uncordoned(
        id="u" * NAME_CHARS_MAX, time=NOW, pool="p", node="n", cleared_at=NOW + timedelta(seconds=3)
    )
    _, before = node_health.decide_uncordoned(unhealthy, event, seen(50))
    later, _ = node_health.decide_fault(
        unhealthy, fault(5), judged("unhealthy", "replace"), seen(51, 5)
    )
    _, after = node_health.decide_uncordoned(later, event, seen(50))
    assert (verdicts(before), verdicts(after)) == (["healthy"], ["unhealthy"])
    ids = {each.verdict.id for each in (*before, *after) if isinstance(each, PublishVerdict)}
    assert len(ids) == 2
    assert max(map(len, ids)) <= NAME_CHARS_MAX


def test_uncordon_resets_a_nodes_health():
    """All conditions from before the uncordon are cleared."""
    record, _ = run(
        [("unhealthy", "replace", 1, 0, True, 0), ("degraded", "none", 2, 1, False, 0)], healthy()
    )
    event = Uncordoned(id="u", time=NOW, pool="p", node="n", reason="repaired")
    record, effects = node_health.decide_uncordoned(record, event, seen(50))
    assert (record.status, record.reason, verdicts(effects)) == ("healthy", "repaired", ["healthy"])
    assert "conditions" not in record.detail


def test_unreadable_health_state_is_replaced_by_an_empty_one():
    """A record written by another release does not stop the service."""
    record = HealthRecord(pool="p", node="n", status="healthy", detail={"conditions": 7})
    record, effects = node_health.decide_fault(
        record, fault(1), judged("unhealthy", fatal=True), seen(1)
    )
    assert (record.status, verdicts(effects)) == ("unhealthy", ["unhealthy"])


def test_lost_and_returned_are_published_once_each():
    """A node stays lost until a heartbeat; both IDs derive from the moment of its silence.

    If the first replica dies, the one that sees a later heartbeat publishes the same event.
    """

    def ids(*decisions: WatchDecision) -> list[str]:
        return [event.id for _, event in decisions if event is not None]

    def at(seconds: int) -> datetime:
        return datetime.fromtimestamp(seconds, UTC)

    lost = silences.decide_silent(healthy(), at(7), at(7))
    assert (lost[0].lost, ids(lost)) == (True, ["lost-p.n-7000"])
    assert silences.decide_silent(lost[0], at(8), at(8)) == (lost[0], None)
    returned = silences.decide_heartbeat(lost[0], at(9))
    assert (returned[0].lost, ids(returned)) == (False, ["returned-p.n-7000"])
    assert ids(silences.decide_heartbeat(lost[0], at(12))) == ["returned-p.n-7000"]
    assert silences.decide_heartbeat(returned[0], at(10)) == (returned[0], None)
    again = silences.decide_silent(returned[0], at(14), at(14))
    more = silences.decide_heartbeat(again[0], at(15))
    assert ids(again, more) == ["lost-p.n-14000", "returned-p.n-14000"]
    late = silences.decide_silent(more[0], at(14), at(20))
    assert (late[0].lost, ids(late)) == (True, ["lost-p.n-20000"])


@pytest.mark.parametrize(
    ("result", "stored", "event", "status"),
    [
        ("unhealthy", 1, {"cleared_at": NOW + timedelta(seconds=3)}, "healthy"),
        ("degraded", 1, {"cleared_at": NOW + timedelta(seconds=3)}, "healthy"),
        ("unhealthy", 5, {"cleared_at": NOW + timedelta(seconds=3)}, "unhealthy"),
        ("unhealthy", 60, {"cleared_at": NOW + timedelta(seconds=3)}, "unhealthy"),
        ("unhealthy", 1, {"since": NOW + timedelta(seconds=1)}, "healthy"),
        ("unhealthy", 1, {"since": NOW - timedelta(seconds=1)}, "unhealthy"),
        ("unhealthy", 1, {"boot_id": "boot-2"}, "healthy"),
        ("unhealthy", 1, {"boot_id": "boot-1"}, "unhealthy"),
    ],
)
def test_fault_handled_after_the_uncordon_that_cleared_it(result, stored, event, status):
    """A replica published its verdict and died unsaved: the verdict is corrected, not repeated."""
    unsaved, before = node_health.decide_fault(
        healthy(), fault(1), judged(result, "replace"), seen(stored, stored)
    )
    assert verdicts(before) == [result]
    uncordoned = Uncordoned(id="u", time=NOW, pool="p", node="n", **event)
    record, _ = node_health.decide_uncordoned(healthy(), uncordoned, seen(50, 50))
    record, after = node_health.decide_fault(
        record, fault(1), judged(result, "replace"), seen(stored, stored)
    )

    assert (record.status, verdicts(after)) == (status, [status])
    assert "f1" in {note.id for note in record.recent}
    if status == "healthy":
        ids = {each.verdict.id for each in (*before, *after) if isinstance(each, PublishVerdict)}
        assert len(ids) == 2
    _, again = node_health.decide_fault(
        record, fault(1), judged(result, "replace"), seen(stored, stored)
    )
    assert again == ()
    assert unsaved.status == result
