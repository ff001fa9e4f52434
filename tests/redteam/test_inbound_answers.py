"""A stranger who reaches the gateway's port acknowledges, annotates and silences nothing."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from schemas.alert_records import alert_key
from schemas.messages import encode
from schemas.topology import ALERTS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.fleet_client.service_orders import open_alerts
from services.notifier.alerts.alert_updates import AlertUpdates
from services.notifier.alerts.open_alerts import AlertAcknowledgement, OpenAlerts
from services.primitives.clock import SystemClock
from tests.gateway.inbound_site import KEY, lasting
from tests.gateway.inbound_vendors import (
    INTEGRATION,
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
from tests.gateway.test_gateway_process import gateway_process

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-sixteen-or-more"
CONFIG = f"""
gateway:
  inbound:
    pagerduty_secret: {PAGERDUTY_SECRET}
    slack_secret: {SLACK_SECRET}
    slack_team: {TEAM}
"""


async def begin(bus: NatsBus) -> None:
    """Open an alert, and serve what the notifier does about it."""
    await bus.put(ALERTS, alert_key(KEY), encode(lasting(KEY)))
    alerts, clock = OpenAlerts(bus), SystemClock()
    endpoints = AlertAcknowledgement(alerts, clock).endpoints
    await bus.serve("notifier", "", {**endpoints, **AlertUpdates(alerts, clock).endpoints})


async def text_of(bus: NatsBus) -> str:
    """Return the alert's text, to which all that is done about it is added."""
    [found] = await open_alerts(bus)
    assert found.opened is not None
    return found.opened.text


async def test_a_gateway_without_secrets_has_no_such_routes(
    server: EmbeddedServer, bus: NatsBus, tmp_path: Path
) -> None:
    """The routes are off by default, also for a body that is signed with no secret at all."""
    await begin(bus)
    file = tmp_path / "navarch.yaml"
    file.write_text("{}\n")
    body = pagerduty_body("incident.acknowledged", incident(KEY), datetime.now(UTC))
    form = slack_body("navarch-acknowledge", KEY)
    async with (
        gateway_process(server.url, file, NAVARCH_AUTH_TOKEN=TOKEN) as ready,
        httpx.AsyncClient(base_url=ready["http"], timeout=20) as client,
    ):
        answers = [
            await client.post("/inbound/pagerduty", content=body, headers=pagerduty_headers(body)),
            await client.post(
                "/inbound/slack", content=form, headers=slack_headers(form, datetime.now(UTC), "")
            ),
        ]
    assert [each.status_code for each in answers] == [404, 404]
    assert await text_of(bus) == "XID 79."


async def test_only_what_the_vendors_signed_just_now_is_carried_out(
    server: EmbeddedServer, bus: NatsBus, tmp_path: Path
) -> None:
    """The gateway's own process refuses forged, altered, late and large bodies, and replays."""
    await begin(bus)
    file = tmp_path / "navarch.yaml"
    file.write_text(CONFIG)
    now = datetime.now(UTC)
    learnt = pagerduty_body("incident.triggered", incident(KEY), now, "t", INTEGRATION)
    noted = pagerduty_body("incident.annotated", note("on my way"), now, "n")
    late = pagerduty_body("incident.annotated", note("late"), now - timedelta(minutes=6), "l")
    pressed = slack_body("navarch-acknowledge", KEY, "mine")
    foreign = slack_body("navarch-acknowledge", KEY, team={"id": "T9"})
    async with (
        gateway_process(server.url, file, NAVARCH_AUTH_TOKEN=TOKEN) as ready,
        httpx.AsyncClient(base_url=ready["http"], timeout=20) as client,
    ):

        async def send(vendor: str, body: bytes, headers: dict[str, str]) -> int:
            answer = await client.post(f"/inbound/{vendor}", content=body, headers=headers)
            return answer.status_code

        stolen = pagerduty_headers(learnt)
        assert await send("pagerduty", noted, {}) == 401
        assert await send("pagerduty", noted, stolen) == 401
        assert await send("pagerduty", noted, {"Authorization": f"Bearer {TOKEN}"}) == 401
        assert await send("pagerduty", noted, pagerduty_headers(noted, SLACK_SECRET)) == 401
        assert await send("pagerduty", late, pagerduty_headers(late)) == 401
        assert await send("pagerduty", b"x" * 65_537, stolen) == 413
        assert await send("slack", pressed, slack_headers(pressed, now, TOKEN)) == 401
        early = slack_headers(pressed, now - timedelta(minutes=6))
        assert await send("slack", pressed, early) == 401
        assert await send("slack", foreign, slack_headers(foreign, now)) == 403
        assert (await client.get("/inbound/slack")).status_code == 405
        assert await text_of(bus) == "XID 79."
        assert await send("pagerduty", learnt, stolen) == 200
        again = [send("pagerduty", noted, pagerduty_headers(noted)) for _ in range(5)]
        assert await asyncio.gather(*again) == [200] * 5
        assert (await text_of(bus)).count("on my way") == 1
        answers = [send("slack", pressed, slack_headers(pressed, now)) for _ in range(5)]
        assert await asyncio.gather(*answers) == [200] * 5
    async with (
        gateway_process(server.url, file, NAVARCH_AUTH_TOKEN=TOKEN) as ready,
        httpx.AsyncClient(base_url=ready["http"], timeout=20) as client,
    ):
        for body, vendor, headers in (
            (learnt, "pagerduty", pagerduty_headers(learnt)),
            (noted, "pagerduty", pagerduty_headers(noted)),
            (pressed, "slack", slack_headers(pressed, now)),
        ):
            answer = await client.post(f"/inbound/{vendor}", content=body, headers=headers)
            assert answer.status_code == 200
    text = await text_of(bus)
    assert text.startswith("Acknowledged by slack:jtorrance via gateway: mine. Note by pagerduty:")
    assert (text.count("on my way"), text.count("mine")) == (1, 1)
