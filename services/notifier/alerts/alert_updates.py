"""Silences, assigns and annotates open alerts, as operators ask."""

import logging
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.alert_records import Alert, AlertUpdate, OpenAlertRecord
from schemas.operations import UPDATE_ALERT
from services.bus.port import Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.notifier.alerts.alert_rules import STORE_KEY
from services.notifier.alerts.open_alerts import OpenAlerts, UnknownAlertError
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

TEXT_CHARS_MAX: Final = 4_000
"""Of an alert with the notes before it: the newest stay."""


class UnsilencedAlertError(ValueError):
    """No silence may hide this alert."""


def refusal(alert: Alert) -> str:
    """Return why an alert must not be silenced; empty: it may be. Pure."""
    if alert.kind == "stopped":
        return "it says that nothing automatic begins: navarch resume ends it"
    if alert.key.startswith(STORE_KEY):
        return "it says that the store is lost or takes nothing: nothing else would say so"
    return ""


def updated(record: OpenAlertRecord, asked: AlertUpdate, by: str, now: datetime) -> OpenAlertRecord:
    """Return the record of an open alert after what an operator asks. Pure.

    Its event is another one, so that channels are sent the news; those of a silenced alert are
    sent it when the silence ends, if the alert lasts.
    """
    opened = record.opened
    if opened is None or record.ended is not None:
        return record
    why = f": {asked.note}" if asked.note else ""
    if asked.silence_seconds:
        until = now + timedelta(seconds=asked.silence_seconds)
        said = f"Silenced by {by} until {until:%m-%d %H:%M} UTC{why}."
        news = replace(opened, silenced_until=until, silenced_by=by)
    elif asked.assign_to:
        said = f"Assigned to {asked.assign_to} by {by}{why}."
        news = replace(opened, assigned_to=asked.assign_to)
    else:
        said, news = f"Note by {by}{why}.", opened
    news = replace(
        news,
        text=f"{said} {opened.text}"[:TEXT_CHARS_MAX],
        event=f"updated-{opened.key}-{now.isoformat()}",
        time=now,
        since=opened.began,
    )
    return replace(record, opened=news)


class AlertUpdates:
    """The endpoint of one replica; the channels are sent the news from the record."""

    def __init__(self, alerts: OpenAlerts, clock: Clock) -> None:
        self._alerts = alerts
        self._clock = clock

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints, by their subjects."""
        return {subjects.order_wildcard(UPDATE_ALERT.name): self._update}

    async def _update(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=AlertUpdate)
        by, now = requester(headers, asked.by), self._clock.now()

        def change(record: OpenAlertRecord | None) -> OpenAlertRecord | None:
            if record is None or record.opened is None:
                return record
            if asked.silence_seconds and (why := refusal(record.opened)):
                raise UnsilencedAlertError(f"{asked.key} cannot be silenced: {why}")
            return updated(record, asked, by, now)

        record = (await self._alerts.change(asked.key, change)).record
        if record is None or record.opened is None or record.ended is not None:
            raise UnknownAlertError(f"no open alert {asked.key!r}; see navarch alerts list")
        log.info("alert updated", extra={"alert": asked.key, "by": by})
        return msgspec.json.encode(record.opened)
