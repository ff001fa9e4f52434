"""Alerts as lines of the notifier's own log, which every log collector can route."""

import logging
from typing import Final

from schemas.settings import Setting
from services.notifier.alerts.alert_rules import Alert, Severity
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

LEVELS: Final[dict[Severity, int]] = {
    "info": logging.INFO,
    "warning": logging.WARNING,
    "critical": logging.ERROR,
}


class LogAlertChannel:
    """Writes one structured line per alert; critical ones at ERROR."""

    class Options(Setting, frozen=True, kw_only=True):
        """`alerts: [{type: log, min_severity: warning}]`."""

        min_severity: Severity = "info"

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Write alerts of `min_severity` and above."""
        del clock
        self._min_level = LEVELS[options.min_severity]

    @property
    def name(self) -> str:
        """The name in logs."""
        return "log"

    async def send(self, alert: Alert) -> None:
        """Write one line."""
        level = LEVELS[alert.severity]
        if level < self._min_level:
            return
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

    async def close(self) -> None:
        """There are no connections."""
