"""Prometheus Alertmanager, API v2: open alerts are posted every minute, since it forgets them."""

import asyncio
from datetime import timedelta
from typing import Any, Final

from schemas.alert_records import Alert
from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from schemas.time_text import utc_text
from services.notifier.alerts.alert_channel import AlertDelivery
from services.notifier.alerts.channels.vendor_http import VendorChannel, VendorHttp, answer_text
from services.primitives.clock import Clock
from services.runtime.http_caller import check_url

REPEAT_SECONDS: Final = 60.0
VALID: Final = timedelta(minutes=15)
"""An alert that is not posted again ends by itself after so long."""


class AlertmanagerChannel(VendorChannel):
    """Sends alerts to Prometheus Alertmanager."""

    name = "alertmanager"
    repeat_seconds = REPEAT_SECONDS
    """After a restart it knows none."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures the channel: `{type: alertmanager, urls: [http://alertmanager:9093]}`."""

        urls: tuple[SecretText, ...]
        """Every member of a cluster: it does not pass alerts on among its members."""
        headers: dict[str, SecretText] = {}  # noqa: RUF012 - msgspec copies it
        """HTTP headers of each request."""
        labels: dict[str, str] = {}  # noqa: RUF012
        """Added to every alert."""
        timeout: Duration = Duration(10)
        """Time limit of one request."""

        def __post_init__(self) -> None:
            """Refuse what can never be sent."""
            if not self.urls:
                raise ValueError("`urls` is empty; write [http://alertmanager:9093]")
            for each in self.urls:
                check_url("urls", each or "-")

    def __init__(self, *, options: Options, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._http = VendorHttp(clock, options.timeout, options.headers)

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Post to every member; one that accepts is enough."""
        labels = {**self._options.labels, **alertmanager_labels(alert)}
        posted = [self._alert(alert, labels)]
        before = _labels_of(receipt, labels)
        if before and before != labels:
            # It identifies an alert by its labels: that of before would go on.
            posted.append({**posted[0], "labels": before, "endsAt": utc_text(self._clock.now())})
        answers = await asyncio.gather(
            *(
                self._http.post("urls", f"{each.rstrip('/')}/api/v2/alerts", posted)
                for each in self._options.urls
            ),
            return_exceptions=True,
        )
        accepted = [each for each in answers if not isinstance(each, BaseException)]
        if not accepted:
            raise next(each for each in answers if isinstance(each, BaseException))
        answer = f"{accepted[0].status_code} {answer_text(accepted[0])}"
        known = f"{alert.severity} {alert.kind} {alert.fault}"
        return AlertDelivery(known, f"{answer}; {len(accepted)} of {len(answers)} accepted it")

    def _alert(self, alert: Alert, labels: dict[str, str]) -> dict[str, Any]:
        ends_at = alert.time if alert.resolved else self._clock.now() + VALID
        return {
            "labels": labels,
            "annotations": {"summary": alert.title, "description": alert.text},
            "startsAt": utc_text(alert.began),
            "endsAt": utc_text(ends_at),
        }


def alertmanager_labels(alert: Alert) -> dict[str, str]:
    """Return the labels that identify an alert there; empty labels are left out."""
    found = {
        "alertname": f"Navarch_{alert.kind.replace('-', '_')}",
        "severity": alert.severity,
        "pool": alert.pool,
        "node": alert.node,
        "fault": alert.fault,
        "key": alert.key,
    }
    return {name: value for name, value in found.items() if value}


def _labels_of(receipt: str, labels: dict[str, str]) -> dict[str, str]:
    """The labels with which an alert was posted last."""
    if not receipt:
        return {}
    severity, kind, fault = receipt.split(" ", 2)
    name = f"Navarch_{kind.replace('-', '_')}"
    found = {**labels, "severity": severity, "alertname": name, "fault": fault}
    return {name: value for name, value in found.items() if value}
