"""PagerDuty's webhooks and Slack's buttons: what they change here, and what is refused."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import pytest

from schemas.alert_records import alert_key, dedup_key
from schemas.gateway_settings import InboundSettings
from schemas.messages import encode
from schemas.topology import ALERTS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.gateway.inbound import inbound_orders
from services.gateway.inbound.inbound_orders import REPEATED
from services.notifier.alerts.alert_updates import AlertUpdates
from services.notifier.alerts.open_alerts import AlertAcknowledgement, OpenAlerts
from services.primitives.clock import SystemClock
from services.runtime.event_publisher import publish_event
from services.runtime.process import audited
from tests.gateway.conftest import MakeGateway
from tests.gateway.inbound_site import KEY, LONG_KEY, OTHER_SECRET, Site, lasting
from tests.gateway.inbound_vendors import (
    INTEGRATION,
    JANE,
    PAGERDUTY_SECRET,
    SLACK_SECRET,
    TEAM,
    incident,
    note,
    pagerduty_body,
    pagerduty_headers,
    slack_body,
    slack_headers,
)


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    """A bus with the notifier's own endpoints for alerts, and three open alerts."""
    server, clock = MemoryServer(SystemClock()), SystemClock()
    found = MemoryBus(server, PerfectLink())
    await set_up(found, clock, replicas=1)
    alerts = OpenAlerts(found)
    endpoints = {
        **AlertAcknowledgement(alerts, clock).endpoints,
        **AlertUpdates(alerts, clock).endpoints,
    }
    publish = partial(publish_event, found)
    await found.serve("notifier", "", audited(endpoints, "notifier", clock.now, publish))
    for record in (lasting(KEY), lasting(LONG_KEY), lasting("health/training/n2")):
        await found.put(ALERTS, alert_key(record.alert), encode(record))
    yield found
    await found.close()
    server.close()


@pytest.fixture
async def site(bus: MemoryBus, make_gateway: MakeGateway) -> Site:
    """A gateway with both routes."""
    found = Site(bus, make_gateway)
    found.start()
    return found


async def test_without_secrets_there_are_no_routes(site: Site) -> None:
    """Both are off by default, and one secret turns on one route."""
    for settings, expected in (
        (InboundSettings(), (404, 404)),
        (InboundSettings(pagerduty_secret=PAGERDUTY_SECRET), (200, 404)),
        (InboundSettings(slack_secret=SLACK_SECRET, slack_team=TEAM), (404, 200)),
    ):
        site.start(settings)
        answers = (
            await site.pagerduty("pagey.ping", {"type": "ping", "message": "Hi"}, agent=None),
            await site.slack("other-button"),
        )
        assert tuple(each.status_code for each in answers) == expected
    assert (await site.alert()).acknowledged_by == ""


async def test_pagerdutys_acknowledgement_is_ours(site: Site) -> None:
    """The alert and the events have the person's name; the ID tells two of one name apart."""
    answer = await site.pagerduty("incident.acknowledged", incident(KEY))
    assert (answer.status_code, answer.text) == (200, "done")
    found = await site.alert()
    assert found.acknowledged_by == "pagerduty:Jane Doe via gateway"
    assert (await site.alert("health/training/n2")).acknowledged_by == ""
    assert await site.audit() == [
        ("pagerduty:Jane Doe", f"POST /inbound/pagerduty by PLH1HKV: acknowledge {KEY}", "accepted")
    ]


async def test_an_alert_with_a_long_key_is_found_by_its_digest(site: Site) -> None:
    """PagerDuty has the digest in place of a key that is beyond its limit."""
    assert dedup_key(LONG_KEY) != LONG_KEY
    await site.pagerduty("incident.acknowledged", incident(dedup_key(LONG_KEY)))
    assert (await site.alert(LONG_KEY)).acknowledged_by


async def test_what_is_resolved_there_lasts_here(site: Site) -> None:
    """The alert is acknowledged, so that no news pages again, and the note says who resolved it."""
    assert (await site.pagerduty("incident.resolved", incident(KEY))).text == "done"
    found = await site.alert()
    assert not found.resolved
    assert found.acknowledged_by == "pagerduty:Jane Doe via gateway"
    assert "resolved in PagerDuty; it lasts here until its cause has ended" in found.text
    await site.slack("navarch-resolve", "health/training/n2", "rebooted it")
    other = await site.alert("health/training/n2")
    assert (other.acknowledged_by, other.resolved) == ("slack:jtorrance via gateway", False)
    assert "resolved in Slack; it lasts here until its cause has ended: rebooted it" in other.text


async def test_a_note_is_taken_of_an_incident_that_was_heard_of(site: Site) -> None:
    """Navarch's own trigger is enough to know the incident; a note to another does nothing."""
    unknown = await site.pagerduty("incident.annotated", note("first"), id_="n1")
    assert unknown.text.startswith("ignored")
    triggered = await site.pagerduty("incident.triggered", incident(KEY), agent=INTEGRATION)
    assert triggered.text.startswith("ignored")
    assert (await site.pagerduty("incident.annotated", note("x" * 600), id_="n2")).text == "done"
    found = await site.alert()
    assert found.text.startswith("Note by pagerduty:Jane Doe via gateway: xxx")
    assert "first" not in found.text
    assert not found.acknowledged_by


@pytest.mark.parametrize(
    ("kind", "agent"),
    [
        ("incident.acknowledged", INTEGRATION),
        ("incident.resolved", INTEGRATION),
        ("incident.acknowledged", None),
        ("incident.unacknowledged", JANE),
        ("incident.reopened", JANE),
        ("incident.escalated", JANE),
        ("pagey.ping", JANE),
    ],
)
async def test_what_no_person_did_changes_nothing(site: Site, kind: str, agent: Any) -> None:
    """Navarch's own news come back as events: they must not acknowledge what they are about."""
    answer = await site.pagerduty(kind, incident(KEY), agent=agent)
    assert (answer.status_code, answer.text) == (200, "ignored: nothing is to be done")
    assert (await site.alert()).text == "XID 79."
    assert await site.audit() == []


async def test_slacks_buttons_are_ours(site: Site) -> None:
    """Each with what is written above it; a note needs a text."""
    answer = await site.slack("navarch-acknowledge", text="on it")
    assert (answer.status_code, answer.text) == (200, "")
    found = await site.alert()
    assert found.acknowledged_by == "slack:jtorrance via gateway"
    assert found.text == "Acknowledged by slack:jtorrance via gateway: on it. XID 79."
    await site.slack("navarch-note", text="ticket\n4711", trigger="2")
    assert (await site.alert()).text.startswith("Note by slack:jtorrance via gateway: ticket 4711.")
    empty = await site.slack("navarch-note", text="  ", trigger="3")
    assert (empty.status_code, empty.json()["detail"]) == (400, "the note is empty")
    assert (await site.slack("navarch-silence", trigger="4")).status_code == 200
    assert [outcome for _, _, outcome in await site.audit()] == ["accepted", "accepted"]
    assert (await site.alert()).silenced_until is None


async def test_a_repetition_does_nothing(site: Site) -> None:
    """A gateway that has started since, or another, reads in the events what was done."""
    sent = partial(site.pagerduty, "incident.annotated", note("once"))
    await site.pagerduty("incident.triggered", incident(KEY), id_="t1", agent=INTEGRATION)
    assert (await sent()).text == "done"
    assert (await sent()).text == REPEATED
    pressed = partial(site.slack, "navarch-note", text="once, too")
    await pressed()
    await pressed()
    site.start()
    await site.pagerduty("incident.triggered", incident(KEY), id_="t2", agent=INTEGRATION)
    assert (await sent()).text == REPEATED
    await pressed()
    text = (await site.alert()).text
    assert (text.count("once"), text.count("once, too")) == (2, 1)
    assert len(await site.audit()) == 2


async def test_what_was_not_carried_out_may_be_sent_again(site: Site, bus: MemoryBus) -> None:
    """A vendor that got an error repeats it; the error is in the events under an ID of its own."""
    await bus.put(ALERTS, alert_key("x"), encode(lasting("gone")))  # under another record's key
    refused = await site.pagerduty("incident.acknowledged", incident("gone"))
    assert refused.status_code == 409
    assert [outcome for _, _, outcome in await site.audit()] == ["refused"]
    await bus.put(ALERTS, alert_key("gone"), encode(lasting("gone")))
    again = await site.pagerduty("incident.acknowledged", incident("gone"))
    assert (again.status_code, again.text) == (200, "done")


async def test_an_alert_that_is_over_is_ignored(site: Site) -> None:
    """A subscription has incidents of other programs, too."""
    answer = await site.pagerduty("incident.acknowledged", incident("of/another/program"))
    assert (answer.status_code, answer.text[:7]) == (200, "ignored")
    assert await site.audit() == []


Ask = Callable[[Site], Any]


async def _unsigned(site: Site, vendor: str) -> httpx.Response:
    body = pagerduty_body("incident.acknowledged", incident(KEY), site.now)
    return await site.post(vendor, body, {"Content-Type": "application/json"})


async def _altered(site: Site, vendor: str) -> httpx.Response:
    if vendor == "pagerduty":
        body = pagerduty_body("incident.acknowledged", incident("health/training/n2"), site.now)
        headers = pagerduty_headers(body)
        return await site.post(vendor, body.replace(b"training/n2", b"training/n1"), headers)
    body = slack_body("navarch-acknowledge", "health/training/n2")
    headers = slack_headers(body, site.now)
    return await site.post(vendor, body.replace(b"training%2Fn2", b"training%2Fn1"), headers)


async def _restamped(site: Site) -> httpx.Response:
    """An old request of Slack with a new time: the signature is of both."""
    body = slack_body("navarch-acknowledge", KEY)
    headers = slack_headers(body, site.now - timedelta(hours=1))
    stamp = {"X-Slack-Request-Timestamp": str(int(site.now.timestamp()))}
    return await site.post("slack", body, headers | stamp)


def _acknowledged(site: Site, **more: Any) -> Any:
    return site.pagerduty("incident.acknowledged", incident(KEY), **more)


LATE = timedelta(seconds=302)
FOREIGN = {"id": "UX", "username": "x", "name": "x", "team_id": "T9999999999"}
REFUSED: dict[str, tuple[Ask, int, str]] = {
    "no signature": (lambda s: _unsigned(s, "pagerduty"), 401, "is missing"),
    "no signature of Slack": (lambda s: _unsigned(s, "slack"), 401, "is missing"),
    "another secret": (lambda s: _acknowledged(s, secret=OTHER_SECRET), 401, "no signature"),
    "Slack, another secret": (
        lambda s: s.slack("navarch-acknowledge", secret=OTHER_SECRET),
        401,
        "no signature",
    ),
    "an altered body": (lambda s: _altered(s, "pagerduty"), 401, "no signature"),
    "an altered body of Slack": (lambda s: _altered(s, "slack"), 401, "no signature"),
    "an old event": (lambda s: _acknowledged(s, at=s.now - LATE), 401, "of a time"),
    "an event of the future": (lambda s: _acknowledged(s, at=s.now + LATE), 401, "of a time"),
    "an old press": (lambda s: s.slack("navarch-acknowledge", at=s.now - LATE), 401, "of a time"),
    "a press of the future": (
        lambda s: s.slack("navarch-acknowledge", at=s.now + LATE),
        401,
        "of a time",
    ),
    "an old press with a new time": (_restamped, 401, "no signature"),
    "another workspace": (
        lambda s: s.slack("navarch-acknowledge", team={"id": "T9999999999", "domain": "x"}),
        403,
        "another Slack workspace",
    ),
    "no workspace": (lambda s: s.slack("navarch-acknowledge", team=None), 403, "another Slack"),
    "a guest in a shared channel": (
        lambda s: s.slack("navarch-acknowledge", user=FOREIGN),
        403,
        "another Slack workspace",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_not_the_vendors_is_refused(site: Site, name: str) -> None:
    """The problem says why; nothing has changed, and no secret is in the answer."""
    ask, status, said = REFUSED[name]
    answer = await ask(site)
    assert (answer.status_code, answer.headers["content-type"]) == (
        status,
        "application/problem+json",
    )
    assert said in answer.json()["detail"]
    assert answer.json()["remedy"]
    assert PAGERDUTY_SECRET not in answer.text
    assert SLACK_SECRET not in answer.text
    assert (await site.alert()).acknowledged_by == ""
    outcomes = [outcome for _, _, outcome in await site.audit()]
    assert outcomes == (["forbidden"] if status == 403 else [])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"event": null}',
        b'{"event": {"id": "", "event_type": "x", "occurred_at": "2026-11-23T09:00:00Z"}}',
        b'{"event": {"id": "1", "event_type": "x", "occurred_at": "2026-11-23T09:00:00"}}',
        b'{"event": {"id": "1", "event_type": "x", "occurred_at": 5}}',
        b'{"event": ' + b"[" * 20_000,
        b'{"other": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b"\xff\xfe",
    ],
)
async def test_a_signed_body_that_is_no_event_is_refused(site: Site, body: bytes) -> None:
    """The answer is 400, and never a defect of ours."""
    answer = await site.post("pagerduty", body, pagerduty_headers(body))
    assert (answer.status_code, answer.json()["status"]) == (400, 400)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"payload",
        b"payload=",
        b"payload=%7B%7D",
        b"payload={}&payload={}",
        b"other={}",
        b"payload=%ff",
        b"\xff",
        b"&".join([b"a=1"] * 50),
        b"payload=" + b"[" * 20_000,
    ],
)
async def test_a_signed_form_that_is_no_press_is_refused(site: Site, body: bytes) -> None:
    """The answer is 400, and never a defect of ours."""
    answer = await site.post("slack", body, slack_headers(body, site.now))
    assert (answer.status_code, answer.json()["status"]) == (400, 400)


@pytest.mark.parametrize("vendor", ["pagerduty", "slack"])
async def test_a_body_beyond_the_limit_is_not_read(site: Site, vendor: str) -> None:
    """64 KiB, before anything is compared."""
    body = b"x" * 65_537
    headers = pagerduty_headers(body) | slack_headers(body, site.now)
    assert (await site.post(vendor, body, headers)).status_code == 413
    body = body[1:]
    headers = pagerduty_headers(body) | slack_headers(body, site.now)
    assert (await site.post(vendor, body, headers)).status_code == 400


async def test_a_name_there_cannot_be_taken_for_another(site: Site) -> None:
    """A name says where it is from; what a terminal obeys in it is escaped."""
    hostile = JANE | {"summary": "ada\x1b[31m via gateway\n\u202e" + "x" * 900}
    await site.pagerduty("incident.acknowledged", incident(KEY), agent=hostile)
    by = (await site.alert()).acknowledged_by
    assert by.startswith(r"pagerduty:ada\u001b[31m via gateway \u202exxx")
    assert len(by) < 150
    nameless = JANE | {"summary": None}
    other = incident("health/training/n2")
    await site.pagerduty("incident.acknowledged", other, id_="2", agent=nameless)
    found = await site.alert("health/training/n2")
    assert found.acknowledged_by == "pagerduty:PLH1HKV via gateway"


async def test_while_a_secret_is_changed_both_are_signed(site: Site) -> None:
    """PagerDuty sends one signature for each secret that is in force."""
    body = pagerduty_body("incident.acknowledged", incident(KEY), site.now)
    headers = pagerduty_headers(body, OTHER_SECRET, PAGERDUTY_SECRET)
    assert (await site.post("pagerduty", body, headers)).text == "done"


async def test_a_vendor_that_sends_too_much_is_asked_to_wait(site: Site) -> None:
    """A request that is not signed does not count, so that no stranger uses it up."""
    site.start(per_minute=6)
    for _ in range(3):
        assert (await _unsigned(site, "pagerduty")).status_code == 401
    assert (await _acknowledged(site)).status_code == 200
    late = await _acknowledged(site, id_="2")
    assert (late.status_code, late.headers["retry-after"]) == (429, "10")
    assert (await site.slack("navarch-acknowledge")).status_code == 200


async def test_a_notifier_that_is_away_is_said_in_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slack waits three seconds: without a notifier, or with a slow one, the answer is 503."""
    assert inbound_orders.ANSWER_SECONDS_MAX < 3
    monkeypatch.setattr(inbound_orders, "ANSWER_SECONDS_MAX", 0.0)
    answer = await site.slack("navarch-acknowledge")
    assert answer.status_code == 503
    assert (await site.audit())[0][2] == "failed"
    monkeypatch.undo()
    assert (await site.slack("navarch-acknowledge")).status_code == 200
    assert (await site.alert()).acknowledged_by
