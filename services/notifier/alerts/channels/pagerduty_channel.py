"""PagerDuty, Events API v2: an alert triggers an incident under its key, its end resolves it.

An alert that an operator has acknowledged in Navarch is acknowledged there, which ends escalation.
"""

from typing import Any, Final, Literal

from schemas.alert_records import Alert, dedup_key
from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from schemas.time_text import utc_text
from services.notifier.alerts.alert_channel import AlertDelivery
from services.notifier.alerts.channels.alert_document import Stage, stages_of
from services.notifier.alerts.channels.vendor_http import (
    VendorChannel,
    VendorHttp,
    answer_text,
    shorten,
)
from services.primitives.clock import Clock
from services.runtime.http_caller import check_url

SUMMARY_CHARS_MAX: Final = 1_024
TRIGGERED: Final = "triggered"
"""The receipt of an alert that PagerDuty has."""

Action = Literal["trigger", "acknowledge", "resolve"]
ACTIONS: Final[dict[Stage, Action]] = {
    "begin": "trigger",
    "acknowledge": "acknowledge",
    "end": "resolve",
}


class PagerDutyChannel(VendorChannel):
    """Sends alerts to PagerDuty."""

    name = "pagerduty"

    class Options(Setting, frozen=True, kw_only=True):
        """Configures the channel: `{type: pagerduty, routing_key: ${PAGERDUTY_KEY}}`."""

        routing_key: SecretText
        """The integration key of a service with an integration `Events API v2`."""
        events_url: SecretText = "https://events.pagerduty.com"
        """`https://events.eu.pagerduty.com` for accounts in the EU."""
        timeout: Duration = Duration(10)
        """Time limit of one request."""

        def __post_init__(self) -> None:
            """Refuse what can never be sent."""
            check_url("events_url", self.events_url)
            if not self.routing_key:
                raise ValueError("`routing_key` is empty; write the service's integration key")

    def __init__(self, *, options: Options, clock: Clock) -> None:
        self._options = options
        self._http = VendorHttp(clock, options.timeout)

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Trigger, acknowledge or resolve."""
        url, said = f"{self._options.events_url.rstrip('/')}/v2/enqueue", ""
        for stage in stages_of(alert, receipt):
            body = pagerduty_event(alert, ACTIONS[stage], self._options.routing_key)
            answer = await self._http.post("events_url", url, body)
            said = f"{answer.status_code} {answer_text(answer)}"
        return AlertDelivery(receipt=TRIGGERED, answer=said)


def pagerduty_event(alert: Alert, action: Action, routing_key: str) -> dict[str, Any]:
    """Return the body of an event."""
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": action,
        "dedup_key": dedup_key(alert.key),
    }
    if action != "trigger":
        return event
    details = {"text": alert.text, "key": alert.key, "fault": alert.fault, "event": alert.event}
    return event | {
        "client": "Navarch",
        "payload": {
            "summary": shorten(alert.title, SUMMARY_CHARS_MAX),
            "source": alert.node or alert.pool or "navarch",
            "severity": alert.severity,
            "timestamp": utc_text(alert.time),
            "component": alert.node,
            "group": alert.pool,
            "class": alert.kind,
            "custom_details": details,
        },
    }
