"""Many nodes are not as many alerts."""

from datetime import UTC, datetime, timedelta

from services.notifier.alerts.alert_dedup import (
    EACH_MAX,
    GROUPS_MAX,
    AlertGroups,
    is_held,
    limit_alert,
)
from services.notifier.alerts.alert_rules import Alert, Severity

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def alert(
    number: int,
    *,
    after: float = 0,
    pool: str = "training",
    kind: str = "health",
    severity: Severity = "critical",
) -> Alert:
    """One about a node."""
    return Alert(
        severity=severity,
        title=f"n{number} is unhealthy",
        text="XID 79.",
        pool=pool,
        node=f"n{number}",
        key=f"{kind}/{pool}/n{number}",
        event=f"v{number}",
        time=NOW + timedelta(seconds=after),
    )


def told(*alerts: Alert) -> list[Alert]:
    """Those that are told, one after the other."""
    state, found = AlertGroups(), []
    for each in alerts:
        state, one = limit_alert(state, each)
        if one is not None:
            found.append(one)
    return found


def test_of_three_hundred_nodes_five_are_told_and_that_there_are_more() -> None:
    """The sixth says so, under a key of its own; the others say nothing."""
    found = told(*(alert(number) for number in range(300)))

    assert [f"n{number} is unhealthy" for number in range(EACH_MAX)] == [
        each.title for each in found[:EACH_MAX]
    ]
    [last] = found[EACH_MAX:]
    assert "n5 is unhealthy, like other nodes of the pool" == last.title
    assert "navarch list --pool training" in last.text
    assert "many/training/health/critical" == last.key


def test_one_that_is_delivered_again_is_told_as_before() -> None:
    """A channel had failed: the same alert, and it counts once."""
    once = [alert(number) for number in range(4)]

    assert [*once, *once, alert(4)] == told(*once, *once, alert(4))
    assert 2 == sum("other nodes" in each.title for each in told(*map(alert, [*range(6), 5])))


def test_what_is_about_another_pool_or_something_else_is_counted_apart() -> None:
    """Losses beside verdicts, good news beside bad, one pool beside the other."""
    apart = [
        alert(number, pool=pool, kind=kind, severity=severity)
        for number in range(EACH_MAX)
        for pool in ("a", "b")
        for kind in ("health", "lost")
        for severity in ("critical", "info")
    ]
    assert apart == told(*apart)


def test_a_minute_later_nodes_are_told_again() -> None:
    """It does not fall silent for good."""
    found = told(*(alert(number, after=number * 6.0) for number in range(20)))

    assert [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15] == [int(each.node[1:]) for each in found]


def test_what_is_about_no_node_is_always_told_and_little_is_kept() -> None:
    """An incident is never limit_alert; the oldest crowd is forgotten."""
    pool = [
        Alert(severity="critical", title="t", text="", pool="a", key="k", event="e", time=NOW)
    ] * 9
    state = AlertGroups()
    for number in range(GROUPS_MAX + 5):
        state, _ = limit_alert(state, alert(0, pool=f"p{number}"))

    assert pool == told(*pool)
    assert GROUPS_MAX == len(state.groups)


def test_one_sick_node_is_told_at_once_and_the_next_is_held() -> None:
    """Of its pool, within a minute: it may be one of many. What is no incident's is not held."""
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
