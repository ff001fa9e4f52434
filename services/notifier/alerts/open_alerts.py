"""Which alerts were sent and have not ended, shared by all replicas in the bucket ALERTS."""

from datetime import datetime
from typing import Final

import msgspec

from schemas.alert_records import TTL_SECONDS, OpenAlertRecord, alert_key
from schemas.messages import Message, decoder
from schemas.stored_messages import decode_stored
from schemas.topology import ALERTS, EVENTS
from services.bus.bucket_mirror import readable
from services.bus.port import Bus, Stored
from services.bus.record_bucket import RecordBucket
from services.notifier.alerts.alert_dedup import SUMMARY_PREFIX
from services.notifier.alerts.alert_rules import Alert, ended_keys, ending_subjects

_open_alerts: Final = decoder(OpenAlertRecord)


class OpenAlerts:
    """The alerts that have begun and not ended."""

    def __init__(self, bus: Bus) -> None:
        """Keep them on `bus`."""
        self._bus = bus
        self._records = RecordBucket(bus, ALERTS, OpenAlertRecord, lambda _: TTL_SECONDS)

    async def is_over(self, alert: Alert, event: Message, stored: Stored) -> bool:
        """Whether a later event has ended what `event`, read from `stored`, alerts about."""
        for subject in ending_subjects(event):
            last = await self._bus.last(EVENTS.name, subject)
            if last is None or last.sequence <= stored.sequence:
                continue
            later = decode_stored(last)
            if isinstance(later, Message) and alert.key in ended_keys(later):
                return True
        return False

    async def open(self, alert: Alert, stored: Stored, *, sent: bool) -> None:
        """Record an alert before it is sent, and once more when it was."""
        record = OpenAlertRecord(
            alert=alert.key,
            event=alert.event,
            sequence=stored.sequence,
            at=alert.time,
            sent=sent,
        )
        await self._records.change(alert_key(alert.key), lambda _: record)

    async def settle(self, alert: Alert) -> None:
        """Count an alert as sent that a replica may have sent before it was killed."""

        def settled(record: OpenAlertRecord | None) -> OpenAlertRecord | None:
            if record is None or record.event != alert.event:
                return record
            return msgspec.structs.replace(record, sent=True)

        await self._records.change(alert_key(alert.key), settled)

    async def find(self, key: str, ended_by: Stored) -> OpenAlertRecord | None:
        """The open alert with this key, if it began before the event that ends it."""
        record = (await self._records.read(alert_key(key))).record
        return record if record is not None and record.sequence < ended_by.sequence else None

    async def extend(self, key: str, at: datetime) -> None:
        """Note that a summary has got one more alert."""

        def extended(record: OpenAlertRecord | None) -> OpenAlertRecord | None:
            if record is None or record.at >= at:
                return record
            return msgspec.structs.replace(record, at=at)

        await self._records.change(alert_key(key), extended)

    async def summaries(self) -> list[OpenAlertRecord]:
        """Every open alert that summarises many."""
        entries = await self._bus.entries(ALERTS)
        return [
            record
            for _, record in readable(entries, _open_alerts)
            if record.alert.startswith(SUMMARY_PREFIX)
        ]

    async def close(self, key: str) -> None:
        """Forget an alert that has ended."""
        await self._bus.delete(ALERTS, alert_key(key))
