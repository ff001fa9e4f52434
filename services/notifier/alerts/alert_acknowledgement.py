"""Answers `navarch alerts acknowledge`: an operator takes on an open alert."""

import logging
from typing import Final

import msgspec

from schemas import subjects
from schemas.alert_records import AlertAcknowledge, OpenAlertRecord
from schemas.messages import encode
from services.bus.port import Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.notifier.alerts.open_alerts import OpenAlerts, acknowledge
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

ACKNOWLEDGE: Final = "acknowledge-alert"


class UnknownAlertError(ValueError):
    """No open alert has this key."""


class AlertAcknowledgement:
    """The endpoint of one replica; the channels are sent the news from the record."""

    def __init__(self, alerts: OpenAlerts, clock: Clock) -> None:
        """Change the records of `alerts`."""
        self._alerts = alerts
        self._clock = clock

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Subject -> endpoint."""
        return {subjects.order_wildcard(ACKNOWLEDGE): self._acknowledge}

    async def _acknowledge(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=AlertAcknowledge)
        by, now = requester(headers, asked.by), self._clock.now()

        def acknowledged(record: OpenAlertRecord | None) -> OpenAlertRecord | None:
            return record and acknowledge(record, by, asked.reason, now)

        record = (await self._alerts.change(asked.key, acknowledged)).record
        if record is None or record.opened is None or record.ended is not None:
            raise UnknownAlertError(f"no open alert {asked.key!r}; see navarch alerts list")
        log.info("alert acknowledged", extra={"alert": asked.key, "by": by})
        return encode(record.opened)
