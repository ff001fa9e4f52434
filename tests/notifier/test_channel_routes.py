"""Tables say which channel is sent which alert, and when."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.alert_records import Alert, ChannelState, OpenAlertRecord
from schemas.settings import AlertRoute, HoursSpec, RateSpec
from services.notifier.alerts.channel_routes import due, is_quiet, lacks, matches

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
"""A Friday."""


def alert(number: int = 0, **more: Any) -> Alert:
    given: dict[str, Any] = {
        "severity": "critical",
        "title": "t",
        "text": "x",
        "pool": "training",
        "kind": "verdict",
        "fault": "xid-79",
        "key": f"health/training/n{number}",
        "event": f"e{number}",
        "time": NOW + timedelta(seconds=number),
    }
    return Alert(**given | more)


def record(opened: Alert, **more: Any) -> OpenAlertRecord:
    return OpenAlertRecord(alert=opened.key, sequence=1, at=opened.time, opened=opened, **more)


@pytest.mark.parametrize(
    ("route", "about", "taken"),
    [
        ({}, {}, True),
        ({"min_severity": "critical"}, {}, True),
        ({"min_severity": "critical"}, {"severity": "warning"}, False),
        ({"pools": ("training",)}, {}, True),
        ({"pools": ("train*",)}, {}, True),
        ({"pools": ("batch",)}, {}, False),
        ({"pools": ("training",)}, {"pool": ""}, False),
        ({"events": ("verdict", "lost")}, {}, True),
        ({"events": ("incident",)}, {}, False),
        ({"faults": ("xid-79",)}, {}, True),
        ({"faults": ("xid-*",)}, {}, True),
        ({"faults": ("xid-48",)}, {}, False),
        ({"faults": ("silence",)}, {"fault": ""}, False),
        ({}, {"key": "alert-undelivered/alert channel it"}, False),
        ({}, {"key": "alert-undelivered/alert channel other"}, True),
    ],
)
def test_a_route_takes_what_it_names(
    route: dict[str, Any], about: dict[str, Any], taken: bool
) -> None:
    """Every condition of a route must hold; a channel is not sent that it fails itself."""
    assert matches(AlertRoute(name="it", **route), alert(**about)) is taken


DAYS: dict[str, Any] = {"days": ("mon", "tue", "wed", "thu", "fri")}


@pytest.mark.parametrize(
    ("hours", "at", "quiet"),
    [
        ({}, "2026-11-20T07:59:59", True),
        ({}, "2026-11-20T08:00:00", False),
        ({}, "2026-11-20T19:59:59", False),
        ({}, "2026-11-20T20:00:00", True),
        (DAYS, "2026-11-21T12:00:00", True),
        # Berlin is an hour ahead in winter, two in summer.
        ({"timezone": "Europe/Berlin"}, "2026-11-20T07:30:00", False),
        ({"timezone": "Europe/Berlin"}, "2026-07-20T06:30:00", False),
        ({"timezone": "Europe/Berlin"}, "2026-11-20T06:30:00", True),
        # Over midnight the day is that of the start.
        ({"start": "22:00", "end": "06:00", **DAYS}, "2026-11-20T23:00:00", False),
        ({"start": "22:00", "end": "06:00", **DAYS}, "2026-11-21T05:00:00", False),
        ({"start": "22:00", "end": "06:00", **DAYS}, "2026-11-21T23:00:00", True),
        ({"start": "22:00", "end": "06:00", **DAYS}, "2026-11-23T05:00:00", True),
        ({"start": "22:00", "end": "06:00", **DAYS}, "2026-11-23T12:00:00", True),
    ],
)
def test_quiet_is_outside_the_hours(hours: dict[str, Any], at: str, quiet: bool) -> None:
    """The hours are in the channel's own time zone."""
    assert is_quiet(HoursSpec(**hours), datetime.fromisoformat(f"{at}+00:00")) is quiet


OPENED = alert()
ENDED = alert(event="end", resolved=True)
HAS = ChannelState(event="e0")


@pytest.mark.parametrize(
    ("found", "lacking"),
    [
        (record(OPENED), OPENED),
        (record(OPENED, channels={"it": HAS}), None),
        (record(OPENED, channels={"other": HAS}), OPENED),
        (record(alert(event="news"), channels={"it": HAS}), alert(event="news")),
        (record(OPENED, ended=ENDED), None),
        (record(OPENED, ended=ENDED, channels={"it": HAS}), ENDED),
        (record(OPENED, ended=ENDED, channels={"it": ChannelState(event="")}), ENDED),
        (record(OPENED, ended=ENDED, channels={"it": ChannelState(event="e", ended=True)}), None),
        (record(OPENED, only="other"), None),
        (record(OPENED, only="it"), OPENED),
        (record(alert(severity="info")), None),
        (record(alert(severity="info", event="news"), channels={"it": HAS}), ...),
    ],
)
def test_a_channel_lacks_what_it_has_not_been_sent(found: OpenAlertRecord, lacking: Any) -> None:
    """The end of what it had, or may have; news of it, whatever the route says of that."""
    route = AlertRoute(name="it", min_severity="warning")
    expected = found.opened if lacking is ... else lacking
    assert lacks(route, found) == expected


@given(
    st.lists(st.sampled_from(["info", "warning", "critical"]), max_size=20),
    st.integers(1, 10),
    st.integers(0, 10),
)
def test_no_more_than_the_rate_is_sent_and_the_critical_come_first(
    severities: list[Any], allowed: int, sent: int
) -> None:
    """An alert beyond the rate is held, and nothing is dropped."""
    route = AlertRoute(name="it", rate=RateSpec(alerts=allowed))
    records = [record(alert(n, severity=each)) for n, each in enumerate(severities)]
    found = due(route, records, [NOW] * sent, NOW + timedelta(seconds=60))
    assert len(found.send) == min(max(allowed - sent, 0), len(records))
    assert len(found.send) + len(found.held) == len(records)
    assert found.waits == bool(found.held)
    severity_of = {each.alert: each.opened.severity for each in records if each.opened}
    if "critical" in {each.severity for each in found.held}:
        assert {severity_of[key] for key in found.send} <= {"critical"}
