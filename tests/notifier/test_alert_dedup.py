"""Alerts about many nodes are limited."""

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from schemas.alert_records import Alert, Severity
from services.notifier.alerts.alert_dedup import (
    EACH_MAX,
    GROUPS_MAX,
    QUIET_SECONDS,
    REFILL_SECONDS,
    AlertGroups,
    is_held,
    limit_alert,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def alert(
    number: int,
    *,
    after: float = 0,
    pool: str = "training",
    kind: str = "health",
    severity: Severity = "critical",
) -> Alert:
    """Return an alert about a node."""
    return Alert(
        severity=severity,
        title=f"n{number} is unhealthy",
        text="XID 79.",
        pool=pool,
        node=f"n{number}",
        kind="verdict",
        key=f"{kind}/{pool}/n{number}",
        event=f"v{number}",
        time=NOW + timedelta(seconds=after),
    )


def sent_alerts(*alerts: Alert) -> list[Alert]:
    """The alerts that are sent, in order."""
    state, found = AlertGroups(), []
    for each in alerts:
        state, one = limit_alert(state, each)
        if one is not None:
            found.append(one)
    return found


def test_of_three_hundred_alerts_five_are_sent_and_a_sixth_summarises_the_rest() -> None:
    """The sixth has a key of its own; the others are dropped."""
    found = sent_alerts(*(alert(number) for number in range(300)))

    assert [f"n{number} is unhealthy" for number in range(EACH_MAX)] == [
        each.title for each in found[:EACH_MAX]
    ]
    [last] = found[EACH_MAX:]
    assert "n5 is unhealthy, like others before" == last.title
    assert "navarch list --pool training" in last.text
    assert "many/training/health/critical" == last.key


def test_a_redelivered_alert_is_sent_as_before() -> None:
    """A channel had failed: the same alert, and it counts once."""
    once = [alert(number) for number in range(4)]

    assert [*once, *once, alert(4)] == sent_alerts(*once, *once, alert(4))
    assert 2 == sum(
        "others before" in each.title for each in sent_alerts(*map(alert, [*range(6), 5]))
    )


def test_alerts_are_counted_by_pool_kind_and_severity() -> None:
    """Losses and verdicts, criticals and infos, and pools are counted separately."""
    apart = [
        alert(number, pool=pool, kind=kind, severity=severity)
        for number in range(EACH_MAX)
        for pool in ("a", "b")
        for kind in ("health", "lost")
        for severity in ("critical", "info")
    ]
    assert apart == sent_alerts(*apart)


def test_flapping_for_hours_alerts_six_times_and_then_rarely() -> None:
    """Half of a fleet of forty, lost every fifteen seconds, for three hours."""
    found = sent_alerts(
        *(
            replace(alert(node, after=15 * round_, kind="lost"), event=f"{node}.{round_}")
            for round_ in range(720)
            for node in range(20)
        )
    )
    assert [each.key for each in found].count("many/training/lost/critical") == 1
    assert len(found) <= EACH_MAX + 1 + 3 * 3600 / REFILL_SECONDS


def test_after_a_pause_a_new_summary_is_sent() -> None:
    """The old one has ended by then."""
    late = QUIET_SECONDS + 1
    found = sent_alerts(*map(alert, range(10)), *(alert(n, after=late) for n in range(10, 20)))
    assert [each.event for each in found if each.key.startswith("many/")] == ["v5", "v10"]


def test_alerts_about_no_node_are_limited_too_and_groups_are_bounded() -> None:
    """An incident that opens again and again; the oldest group is dropped."""
    incidents = [replace(alert(n), key="i/k", event=str(n), node="", time=NOW) for n in range(9)]
    state = AlertGroups()
    for number in range(GROUPS_MAX + 5):
        state, _ = limit_alert(state, alert(0, pool=f"p{number}"))

    assert len(sent_alerts(*incidents)) == EACH_MAX + 1
    assert GROUPS_MAX == len(state.groups)


def test_the_first_unhealthy_node_alerts_at_once_and_the_next_is_held() -> None:
    """The next is held for a minute, as it may be part of an incident; other kinds are not held."""
    first = alert(0)
    state, _ = limit_alert(AlertGroups(), first)

    assert not is_held(AlertGroups(), first)
    assert [
        (False, first),  # delivered again: a channel had failed
        (True, alert(1)),
        (True, alert(1, after=59)),
        (False, alert(1, after=60)),
        (False, alert(1, pool="b")),
        (False, alert(1, severity="info")),
    ] == [(is_held(state, each), each) for each in (
        first, alert(1), alert(1, after=59), alert(1, after=60), alert(1, pool="b"),
        alert(1, severity="info"),
    )]  # fmt: skip
    sagas = alert(0, kind="saga")
    assert not is_held(limit_alert(AlertGroups(), sagas)[0], alert(1, kind="saga"))
