"""A program of the owner behind HTTP: signed JSON with an idempotency key, or a CloudEvent."""

from typing import Literal

import msgspec

from schemas.alert_records import Alert
from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from services.notifier.alerts.alert_channel import AlertDelivery
from services.notifier.alerts.channels.alert_document import (
    alert_document,
    alert_event,
    idempotency_key,
)
from services.notifier.alerts.channels.vendor_http import VendorChannel, VendorHttp, answer_text
from services.notifier.cloud_events import (
    JSON,
    STRUCTURED,
    check_secret,
    signature_headers,
    structured,
)
from services.primitives.clock import Clock
from services.runtime.http_caller import check_url


class AlertWebhookChannel(VendorChannel):
    """Sends alerts to a program of the owner over HTTP."""

    name = "webhook"

    class Options(Setting, frozen=True, kw_only=True):
        """Configures the channel: `{type: webhook, url: ${ALERT_URL}, secret: ${ALERT_SECRET}}`."""

        url: SecretText
        """Where each alert is posted."""
        secret: SecretText = ""
        """Key of the signature; empty: none is sent."""
        format: Literal["navarch", "cloudevents"] = "navarch"
        """The alert as JSON of its own, or as a CloudEvent."""
        headers: dict[str, SecretText] = {}  # noqa: RUF012 - msgspec copies it
        """HTTP headers of each request."""
        timeout: Duration = Duration(10)
        """Time limit of one request."""

        def __post_init__(self) -> None:
            """Refuse what can never be sent."""
            check_url("url", self.url or "-")
            check_secret(self.secret)

    def __init__(self, *, options: Options, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._http = VendorHttp(clock, options.timeout, options.headers)

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Post one document."""
        del receipt
        cloud = self._options.format == "cloudevents"
        body = (
            structured(alert_event(alert)) if cloud else msgspec.json.encode(alert_document(alert))
        )
        headers = {
            "Content-Type": STRUCTURED if cloud else JSON,
            "Idempotency-Key": idempotency_key(alert),
            **signature_headers(self._options.secret, self._clock.now(), body),
        }
        answer = await self._http.post("url", self._options.url, body, headers)
        return AlertDelivery(answer=f"{answer.status_code} {answer_text(answer)}")
