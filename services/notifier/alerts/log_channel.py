"""Alerts as lines of the notifier's own log, which every log collector can route."""

import logging
from typing import Final

from schemas.alert_records import Alert, Severity
from schemas.settings import Setting
from services.notifier.alerts.alert_channel import AlertDelivery
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

LEVELS: Final[dict[Severity, int]] = {
    "info": logging.INFO,
    "warning": logging.WARNING,
    "critical": logging.ERROR,
}


class LogAlertChannel:
    """Writes one structured line per alert; critical ones at ERROR."""

    name = "log"
    repeat_seconds = 0.0
    """A log does not forget."""

    class Options(Setting, frozen=True, kw_only=True):
        """Declares that the channel has no options."""

    def __init__(self, *, options: Options, clock: Clock) -> None:
        del options, clock

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Write one line; the end of an alert at INFO."""
        del receipt
        level = logging.INFO if alert.resolved else LEVELS[alert.severity]
        log.log(
            level,
            "%s",
            alert.title,
            extra={
                "alert": alert.key,
                "severity": alert.severity,
                "resolved": alert.resolved,
                "text": alert.text,
                "pool": alert.pool,
                "node": alert.node,
                "event": alert.event,
                "event_time": alert.time.isoformat(),
            },
        )
        return AlertDelivery()

    async def close(self) -> None:
        """There are no connections."""
