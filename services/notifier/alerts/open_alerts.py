"""Records which alerts have not ended for every channel (bucket ALERTS), and who took one on."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from schemas import subjects
from schemas.alert_records import TTL_SECONDS, Alert, AlertAcknowledge, OpenAlertRecord, alert_key
from schemas.messages import Message, decoder, encode
from schemas.stored_messages import decode_stored
from schemas.topology import ALERTS, EVENTS
from services.bus.bucket_mirror import readable
from services.bus.port import Bus, Endpoint, Headers, Stored
from services.bus.protocol.endpoint_replies import requester
from services.bus.record_bucket import RecordBucket, Versioned
from services.notifier.alerts.alert_rules import ended_keys, ending_subjects
from services.primitives.clock import Clock
from services.primitives.coalesce import Joined

SCANNED_AT_ONCE: Final = 100
REPEAT_SECONDS: Final = 3600.0
"""A condition that is reported again and again is sent again after so long."""
CREATED_AGAIN_SECONDS: Final = 2.0
"""More than the clocks of the servers of a cluster are apart: each stamps what it stores as leader,
so a redelivered event may have a slightly later time than its successor."""
Decide = Callable[[OpenAlertRecord | None], OpenAlertRecord | None]

_open_alerts: Final = decoder(OpenAlertRecord)
log = logging.getLogger(__name__)

ACKNOWLEDGE: Final = "acknowledge-alert"


class OpenAlerts:
    """The alerts that have begun."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._records = RecordBucket(bus, ALERTS, OpenAlertRecord, lambda _: TTL_SECONDS)
        self._present: Joined[frozenset[str] | None] = Joined(self._read_present)

    async def open(self, alert: Alert, stored: Stored) -> None:
        """Record that an alert begins, or that there is news of it."""

        def opened(record: OpenAlertRecord | None) -> OpenAlertRecord:
            return begin(record, alert, stored)

        await self.change(alert.key, opened)

    async def end(self, key: str, end: Callable[[Alert], Alert], stored: Stored) -> None:
        """Record the end of an alert that began before the event that ends it, if there is one."""

        def ended(record: OpenAlertRecord | None) -> OpenAlertRecord | None:
            if record is None or not _is_later(stored, record):
                return record
            return finish(record, end)

        await self.change(key, ended)

    async def recorded(self, keys: Sequence[str]) -> list[str]:
        """Return those of these alerts that may have a record: most events end none."""
        present = await self._present("") if keys else None
        return [key for key in keys if present is None or alert_key(key) in present]

    async def _read_present(self, _: str) -> frozenset[str] | None:
        """The keys of ALERTS, as its leader has them; None: there are too many for one answer."""
        prefix = f"$KV.{ALERTS.name}."
        asked = {"subjects_filter": f"{prefix}>"}
        state = (await self._bus.admin(f"STREAM.INFO.KV_{ALERTS.name}", asked))["state"]
        subjects = state.get("subjects") or {}
        if len(subjects) < state.get("num_subjects", 0):
            return None
        return frozenset(each.removeprefix(prefix) for each in subjects)

    async def end_now(self, key: str, end: Callable[[Alert], Alert]) -> None:
        """Record the end of an alert, whatever the event behind it is."""
        await self.change(key, lambda record: record and finish(record, end))

    async def change(self, key: str, decide: Decide) -> Versioned[OpenAlertRecord]:
        """Change an alert's record."""
        return await self._records.change(alert_key(key), decide)

    async def ending(self, alert: Alert, event: Message, stored: Stored) -> Message | None:
        """The event that has ended the alert about `event` meanwhile; None: it lasts."""
        for subject in ending_subjects(event):
            async for later in self._after(subject, stored.sequence):
                if alert.key in ended_keys(later):
                    return later
        return None

    async def _after(self, subject: str, sequence: int) -> AsyncIterator[Message]:
        """The events under a subject after a sequence."""
        while True:
            found = await self._bus.read_batch(
                EVENTS.name, subject, after=sequence, count=SCANNED_AT_ONCE
            )
            for each in found:
                message = decode_stored(each)
                if isinstance(message, Message):
                    yield message
            if len(found) < SCANNED_AT_ONCE:
                return
            sequence = found[-1].sequence

    async def extend(self, key: str, at: datetime) -> None:
        """Note that a summary has got one more alert."""

        def extended(record: OpenAlertRecord | None) -> OpenAlertRecord | None:
            if record is None or record.at >= at:
                return record
            return msgspec.structs.replace(record, at=at)

        await self.change(key, extended)

    async def find(self, key: str) -> OpenAlertRecord | None:
        """Return the record of an alert."""
        return (await self._records.read(alert_key(key))).record

    async def all(self) -> list[OpenAlertRecord]:
        """Return every alert that is recorded."""
        return [record for _, record in readable(await self._bus.entries(ALERTS), _open_alerts)]

    async def lasting(self) -> list[OpenAlertRecord]:
        """Every alert that has not ended."""
        return [each for each in await self.all() if not each.ended]

    async def forget(self, key: str, revision: int) -> None:
        """Remove the record of an alert that has ended everywhere, unless it has changed."""
        await self._bus.delete(ALERTS, alert_key(key), revision=revision)


def begin(record: OpenAlertRecord | None, alert: Alert, stored: Stored) -> OpenAlertRecord:
    """The record after an alert's event; one that is older than what is recorded changes nothing.

    A channel that has the end of the earlier alert with the same key gets this one as a new alert;
    one that has not is sent this one in place of that end.
    """
    if record is None:
        return OpenAlertRecord(
            alert=alert.key, sequence=stored.sequence, at=stored.time, opened=alert
        )
    if not _is_later(stored, record):
        return record
    if repeats(record, alert):
        return msgspec.structs.replace(record, sequence=stored.sequence, at=stored.time)
    known = None if record.ended else record.opened
    since = None if known is None else known.began
    to = "" if known is None else known.assigned_to
    return msgspec.structs.replace(
        record,
        sequence=stored.sequence,
        at=stored.time,
        opened=msgspec.structs.replace(alert, since=since, assigned_to=to),
        ended=None,
        channels={name: each for name, each in record.channels.items() if not each.ended},
    )


def finish(record: OpenAlertRecord, end: Callable[[Alert], Alert]) -> OpenAlertRecord:
    """Return the record after the end of its alert."""
    if record.ended is not None or record.opened is None:
        return record
    return msgspec.structs.replace(record, ended=end(record.opened))


def acknowledge(record: OpenAlertRecord, by: str, reason: str, now: datetime) -> OpenAlertRecord:
    """The record of an open alert that an operator has taken on; the first one keeps it."""
    opened = record.opened
    if opened is None or record.ended is not None or opened.acknowledged_by:
        return record
    note = f"Acknowledged by {by}{f': {reason}' if reason else ''}."
    news = msgspec.structs.replace(
        opened,
        acknowledged_by=by,
        text=f"{note} {opened.text}",
        event=f"acknowledged-{opened.event}",
        time=now,
        since=opened.began,
    )
    return msgspec.structs.replace(record, opened=news)


def repeats(record: OpenAlertRecord | None, alert: Alert) -> bool:
    """Return whether channels need not be sent an alert: it is acknowledged, or was sent lately."""
    if record is None or record.ended or record.opened is None:
        return False
    known = record.opened
    if known.event == alert.event:
        return True
    same = (known.severity, known.kind) == (alert.severity, alert.kind)
    recent = (alert.time - known.time).total_seconds() < REPEAT_SECONDS
    return same and (recent or bool(known.acknowledged_by) or known.is_silent(alert.time))


def _is_later(stored: Stored, record: OpenAlertRecord) -> bool:
    """Whether an event came after the last one about an alert.

    In a stream that was created again sequences begin again; then the times count.
    """
    age_seconds = (stored.time - record.at).total_seconds()
    return stored.sequence > record.sequence or age_seconds > CREATED_AGAIN_SECONDS


class UnknownAlertError(ValueError):
    """No open alert has this key."""


class AlertAcknowledgement:
    """The endpoint of one replica; the channels are sent the news from the record."""

    def __init__(self, alerts: OpenAlerts, clock: Clock) -> None:
        self._alerts = alerts
        self._clock = clock

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints, by their subjects."""
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
