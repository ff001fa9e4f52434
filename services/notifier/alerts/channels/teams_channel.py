"""Microsoft Teams: Adaptive Cards to a Workflows webhook, which can post and not update."""

from typing import Any, Final

from schemas.alert_records import Alert, Severity
from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from schemas.time_text import utc_text
from services.notifier.alerts.alert_channel import AlertDelivery
from services.notifier.alerts.channels.vendor_http import (
    VendorChannel,
    VendorHttp,
    answer_text,
    shorten,
)
from services.primitives.clock import Clock
from services.runtime.http_caller import check_url

TEXT_CHARS_MAX: Final = 4_000
"""A message may have 28 KB; a character takes up to 6 bytes in JSON."""
COLOURS: Final[dict[Severity, str]] = {
    "critical": "attention",
    "warning": "warning",
    "info": "accent",
}


class TeamsChannel(VendorChannel):
    """Sends alerts to Microsoft Teams."""

    name = "teams"

    class Options(Setting, frozen=True, kw_only=True):
        """Configures the channel: `{type: teams, webhook_url: ${TEAMS_URL}}`."""

        webhook_url: SecretText
        """Of the workflow `Post to a channel when a webhook request is received`."""
        timeout: Duration = Duration(20)
        """Time limit of one request."""

        def __post_init__(self) -> None:
            """Refuse what can never be sent."""
            check_url("webhook_url", self.webhook_url)
            if not self.webhook_url:
                raise ValueError("`webhook_url` is empty; write the workflow's URL")

    def __init__(self, *, options: Options, clock: Clock) -> None:
        self._options = options
        self._http = VendorHttp(clock, options.timeout)

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Post one card."""
        del receipt
        body = teams_message(alert)
        answer = await self._http.post("webhook_url", self._options.webhook_url, body)
        return AlertDelivery(answer=f"{answer.status_code} {answer_text(answer)}")


def teams_message(alert: Alert) -> dict[str, Any]:
    """Return a message with one card."""
    state = "resolved" if alert.resolved else alert.severity
    facts = [
        {"title": "State", "value": state},
        {"title": "Pool", "value": alert.pool},
        {"title": "Node", "value": alert.node},
        {"title": "Fault", "value": alert.fault},
        {"title": "Since", "value": utc_text(alert.began)},
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {
                "type": "TextBlock",
                "text": shorten(alert.title, TEXT_CHARS_MAX // 10),
                "weight": "bolder",
                "size": "medium",
                "wrap": True,
                "color": "good" if alert.resolved else COLOURS[alert.severity],
            },
            {"type": "TextBlock", "text": shorten(alert.text, TEXT_CHARS_MAX), "wrap": True},
            {"type": "FactSet", "facts": [each for each in facts if each["value"]]},
        ],
    }
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "attachments": [attachment]}
