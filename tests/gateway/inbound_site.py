"""A gateway that PagerDuty and Slack call, on a bus with open alerts."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from schemas.alert_records import Alert, OpenAlertRecord
from schemas.gateway_settings import InboundSettings
from services.bus.memory.memory_bus import MemoryBus
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.service_orders import open_alerts
from services.gateway.caller_rate import CallerRate
from services.gateway.inbound.inbound_orders import InboundOrders
from services.gateway.inbound.inbound_routes import inbound_routes
from tests.gateway.conftest import Gateway, MakeGateway, changes
from tests.gateway.inbound_vendors import (
    PAGERDUTY_SECRET,
    SLACK_SECRET,
    TEAM,
    pagerduty_body,
    pagerduty_headers,
    slack_body,
    slack_headers,
)

KEY = "health/training/n1"
LONG_KEY = "health/training/" + "n" * 400
OTHER_SECRET = "another-secret-of-more-than-16"
BOTH = InboundSettings(
    pagerduty_secret=PAGERDUTY_SECRET, slack_secret=SLACK_SECRET, slack_team=TEAM
)


def lasting(key: str, **more: Any) -> OpenAlertRecord:
    """Return the record of an open alert."""
    alert = Alert(
        severity="critical",
        title="training/n1: unhealthy",
        text="XID 79.",
        pool="training",
        node="n1",
        kind="verdict",
        key=key,
        event="v-1",
        time=datetime.now(UTC),
        **more,
    )
    return OpenAlertRecord(alert=key, sequence=1, at=alert.time, opened=alert)


@dataclass(slots=True)
class Site:
    """A gateway that is called by vendors, and the notifier that carries out its orders."""

    bus: MemoryBus
    make: MakeGateway
    clock: list[datetime] = field(default_factory=lambda: [datetime.now(UTC)])
    client: httpx.AsyncClient | None = None

    def start(self, settings: InboundSettings = BOTH, per_minute: int = 60_000) -> Gateway:
        """Start a gateway; one that ran before has ended."""
        new_ids = iter(range(1_000))
        orders = InboundOrders(
            FleetClient(self.bus, user="gateway"),
            CallerRate(per_minute),
            lambda: self.clock[0],
            lambda: f"inbound-{id(self)}-{next(new_ids)}",
        )
        found = self.make(more=inbound_routes(settings, orders, lambda: self.clock[0]))
        self.client = found.client("")
        return found

    @property
    def now(self) -> datetime:
        return self.clock[0]

    async def pagerduty(
        self, kind: str, data: dict[str, Any], secret: str = PAGERDUTY_SECRET, **more: Any
    ) -> httpx.Response:
        """Send a webhook."""
        body = pagerduty_body(kind, data, more.pop("at", self.now), **more)
        return await self.post("pagerduty", body, pagerduty_headers(body, secret))

    async def slack(
        self, action: str, value: str = KEY, text: str | None = None, **more: Any
    ) -> httpx.Response:
        """Press a button."""
        at, secret = more.pop("at", self.now), more.pop("secret", SLACK_SECRET)
        body = slack_body(action, value, text, **more)
        return await self.post("slack", body, slack_headers(body, at, secret))

    async def post(self, vendor: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        """Send a request as it is."""
        assert self.client is not None
        return await self.client.post(f"/inbound/{vendor}", content=body, headers=headers)

    async def alert(self, key: str = KEY) -> Alert:
        """Return an alert as `navarch alerts list` and the dashboard read it."""
        [found] = [each for each in await open_alerts(self.bus) if each.alert == key]
        assert found.opened is not None
        return found.opened

    async def audit(self) -> list[tuple[str, str, str]]:
        """Return who did what, and what came of it."""
        return [(each.by, each.change, each.outcome) for each in await changes(self.bus)]
