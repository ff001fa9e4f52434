"""Opsgenie and Jira Service Management: an alert under its key as alias, closed by its end."""

from typing import Any, Final, Literal
from urllib.parse import quote

from schemas.alert_records import Alert, Severity, dedup_key
from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
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

MESSAGE_CHARS_MAX: Final = 130
DESCRIPTION_CHARS_MAX: Final = 15_000
TAG_CHARS_MAX: Final = 50
USER_CHARS_MAX: Final = 100
CREATED: Final = "created"
"""The receipt of an alert that Opsgenie has."""

Priority = Literal["P1", "P2", "P3", "P4", "P5"]
PRIORITIES: Final[dict[Severity, Priority]] = {"critical": "P1", "warning": "P3", "info": "P5"}


class OpsgenieChannel(VendorChannel):
    """Sends alerts to Opsgenie."""

    name = "opsgenie"

    class Options(Setting, frozen=True, kw_only=True):
        """Configures the channel: `{type: opsgenie, api_key: ${OPSGENIE_KEY}}`."""

        api_key: SecretText
        """The key of an integration `API`."""
        api_url: SecretText = "https://api.opsgenie.com"
        """`https://api.eu.opsgenie.com` for accounts in the EU."""
        timeout: Duration = Duration(10)
        """Time limit of one request."""

        def __post_init__(self) -> None:
            """Refuse what can never be sent."""
            check_url("api_url", self.api_url)
            if not self.api_key:
                raise ValueError("`api_key` is empty; write the key of an API integration")

    def __init__(self, *, options: Options, clock: Clock) -> None:
        self._options = options
        headers = {"Authorization": f"GenieKey {options.api_key}"}
        self._http = VendorHttp(clock, options.timeout, headers)

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Create, acknowledge or close."""
        url, said = f"{self._options.api_url.rstrip('/')}/v2/alerts", ""
        for stage in stages_of(alert, receipt):
            path, body = opsgenie_request(alert, stage)
            answer = await self._http.post("api_url", f"{url}{path}", body)
            said = f"{answer.status_code} {answer_text(answer)}"
        return AlertDelivery(receipt=CREATED, answer=said)


def opsgenie_request(alert: Alert, stage: Stage) -> tuple[str, dict[str, Any]]:
    """Return the path below `/v2/alerts`, and the body."""
    if stage == "begin":
        return "", opsgenie_alert(alert)
    note = shorten(f"{alert.title}. {alert.text}", DESCRIPTION_CHARS_MAX)
    body = {"source": "Navarch", "note": note}
    if stage == "acknowledge":
        body["user"] = shorten(alert.acknowledged_by, USER_CHARS_MAX)
    action = "close" if stage == "end" else "acknowledge"
    alias = quote(dedup_key(alert.key), safe="")
    return f"/{alias}/{action}?identifierType=alias", body


def opsgenie_alert(alert: Alert) -> dict[str, Any]:
    """Return the body of a new alert."""
    details = {"pool": alert.pool, "node": alert.node, "fault": alert.fault, "key": alert.key}
    return {
        "message": shorten(alert.title, MESSAGE_CHARS_MAX),
        "alias": dedup_key(alert.key),
        "description": shorten(alert.text, DESCRIPTION_CHARS_MAX),
        "priority": PRIORITIES[alert.severity],
        "source": "Navarch",
        "entity": alert.node or alert.pool,
        "tags": [shorten(each, TAG_CHARS_MAX) for each in (alert.kind, alert.fault) if each],
        "details": {name: value for name, value in details.items() if value},
    }
