"""Alerts about a store that takes no event and no record: each channel is sent them without it.

What has begun is recorded in ALERTS once that takes it; from then on the alert is like any other:
the `AlertSender` repeats and ends it, also if this process is gone by then. What ALERTS does not
take is kept in LEASES meanwhile.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.alert_records import (
    TTL_SECONDS,
    Alert,
    ChannelState,
    OpenAlertRecord,
    alert_key,
)
from schemas.fleet_queries import CurrentFailure
from schemas.messages import decoder, encode
from schemas.topology import LEASES
from services.bus.bucket_mirror import readable
from services.bus.port import Bus
from services.notifier.alerts.alert_channel import RECEIPT_CHARS_MAX
from services.notifier.alerts.alert_rules import (
    STORE_KEY,
    end_of_store_alert,
    store_alert,
    store_key,
)
from services.notifier.alerts.alert_sender import RoutedChannel
from services.notifier.alerts.open_alerts import OpenAlerts, finish
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Retry
from services.primitives.redaction import redacted
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
SEND_SECONDS_MAX: Final = 30.0
LEFT_SECONDS: Final = 120.0
"""After its start a process knows what fails: what an earlier one reported and fails no more, is
over."""
KEPT_PREFIX: Final = "notifier.alert."
"""Keys of LEASES, for alerts that ALERTS does not take."""
SENDER_STOPS: Final = {f"{STORE_KEY}nats-server", f"{STORE_KEY}stream KV_{LEASES.name}"}
"""While LEASES takes no writes, no replica is the one that sends what is in ALERTS."""
SENDER_STOPPED: Final = timedelta(seconds=10)
"""Its lease has run out by then, and what it sent before is known."""

_records: Final = decoder(OpenAlertRecord)


@dataclass(slots=True)
class _StoreAlert:
    """An alert that has begun."""

    alert: Alert
    recorded: bool = False
    """Whether ALERTS has it."""
    kept: dict[str, ChannelState] | None = None
    """What LEASES has of `sent`; None: it has not even the alert."""
    sent: dict[str, ChannelState] = field(default_factory=dict)
    """Channel -> what it has."""
    sent_at: dict[str, float] = field(default_factory=dict)
    """Channel -> when it was sent that from here, by the monotonic clock."""


class StoreAlerts:
    """Sends the beginning of each such failure, and has its end sent."""

    def __init__(
        self, channels: Sequence[RoutedChannel], bus: Bus, clock: Clock, failures: FailureRegister
    ) -> None:
        """Send what `failures` reports of the store to `channels`."""
        self._channels = channels
        self._bus = bus
        self._clock = clock
        self._failures = failures
        self._open = OpenAlerts(bus)
        self._begun: dict[str, _StoreAlert] = {}
        """Key of an alert -> what is known of it."""
        self._failing: frozenset[str] = frozenset()
        """The keys of those that last."""
        self._left: frozenset[str] | None = None
        """The keys of those that an earlier process began; None: not read yet."""

    async def run(self) -> None:
        """Look for ever; a channel that does not answer delays no other and no record."""
        await asyncio.gather(self._record_for_ever(), *map(self._serve_for_ever, self._channels))

    async def _record_for_ever(self) -> None:
        began = self._clock.monotonic()
        while True:
            try:
                await self._record(knows_all=self._clock.monotonic() - began >= LEFT_SECONDS)
            except (BusError, Retry) as error:
                log.info("alerts about the store are not recorded: %s", error)
            await self._clock.sleep(LOOK_SECONDS)

    async def _record(self, *, knows_all: bool) -> None:
        """Record what has begun and what has ended; BusError, Retry: some of it is not."""
        now, reported = self._clock.now(), self._failures.current
        failing = [each for each in reported if each.failure == "store-unwritable"]
        self._failing = frozenset(map(store_key, failing))
        alerts = {
            store_key(each): store_alert(each, now) for each in one_a_cause(failing, self._begun)
        }
        lasting = {key: self._begun.get(key) or _StoreAlert(alert) for key, alert in alerts.items()}
        # At once: on a full disk each write waits for an answer that does not come.
        await asyncio.gather(*map(self._begin, lasting.values()))
        self._begun |= lasting
        if self._left is None:
            self._left = frozenset(await self._begun_earlier())
        waiting = frozenset() if knows_all else self._left
        for key in sorted((self._begun.keys() | self._left) - self._failing - waiting):
            await self._end(key)
            self._left -= {key}

    async def _begin(self, begun: _StoreAlert) -> None:
        try:
            found = await self._open.change(begun.alert.key, lambda each: _opened(each, begun))
        except (BusError, Retry) as error:
            log.info("an alert is sent without its record: %s", error)
            begun.recorded = False
            await self._keep(begun)
        else:
            begun.recorded = True
            for name, state in found.record.channels.items() if found.record else ():
                begun.sent[name] = state
                begun.sent_at.setdefault(name, self._clock.monotonic())

    async def _keep(self, begun: _StoreAlert) -> None:
        """Keep in LEASES what ALERTS does not take."""
        if begun.kept == begun.sent:
            return
        sent, value = dict(begun.sent), encode(_opened(None, begun))
        try:
            await self._bus.put(LEASES, _kept_key(begun), value, ttl_seconds=TTL_SECONDS)
        except BusError as error:
            log.info("an alert is known to this process alone: %s", error)
        else:
            begun.kept = sent

    async def _begun_earlier(self) -> set[str]:
        """The keys of alerts that an earlier process began."""
        recorded = await self._open.all()
        found = {
            each.alert
            for each in recorded
            if each.ended is None and each.alert.startswith(STORE_KEY)
        }
        kept = await self._bus.entries(LEASES, f"{KEPT_PREFIX}*")
        for _, record in readable(kept, _records):
            if record.opened is not None and record.alert not in self._begun:
                sent = dict(record.channels)
                self._begun[record.alert] = _StoreAlert(record.opened, kept=sent, sent={**sent})
                found.add(record.alert)
        return found

    async def _end(self, key: str) -> None:
        """Have the end sent to the channels that have the beginning."""
        now, begun = self._clock.now(), self._begun.get(key)
        await self._open.change(key, lambda record: _ended(record, begun, now))
        if begun is not None and begun.kept is not None:
            await self._bus.delete(LEASES, _kept_key(begun))
        self._begun.pop(key, None)

    async def _serve_for_ever(self, channel: RoutedChannel) -> None:
        while True:
            for key in sorted(self._failing & self._begun.keys()):
                await self._send(channel, self._begun[key])
            await self._clock.sleep(LOOK_SECONDS)

    async def _send(self, channel: RoutedChannel, begun: _StoreAlert) -> None:
        """Send what the channel lacks, unless the AlertSender does."""
        name, at = channel.route.name, self._clock.monotonic()
        lasted = self._clock.now() - begun.alert.time
        if begun.recorded and (not SENDER_STOPS & self._failing or lasted < SENDER_STOPPED):
            return
        known, repeat_seconds = begun.sent.get(name), channel.channel.repeat_seconds
        since = at - begun.sent_at.get(name, at - repeat_seconds)
        if known is not None and not (repeat_seconds and since >= repeat_seconds):
            return
        receipt = known.receipt if known else ""
        try:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                sent = await channel.channel.send(begun.alert, receipt)
        except Exception as error:  # noqa: BLE001 - a channel may be a third party's code
            log.warning("%s cannot be sent an alert: %s", name, redacted(str(error)))
            return
        receipt = (sent.receipt or receipt)[:RECEIPT_CHARS_MAX]
        begun.sent[name] = ChannelState(event=begun.alert.event, receipt=receipt)
        begun.sent_at[name] = at


def one_a_cause(
    failing: Sequence[CurrentFailure], begun: Collection[str]
) -> tuple[CurrentFailure, ...]:
    """Return one failure for each cause and remedy, first of all those of `begun` alerts.

    A server that stores nothing is reported for each of its streams.
    """
    found: dict[tuple[str, str], CurrentFailure] = {}
    for each in sorted(failing, key=lambda one: store_key(one) not in begun):
        found.setdefault((each.store_cause, each.remedy), each)
    return tuple(found.values())


def _kept_key(begun: _StoreAlert) -> str:
    return KEPT_PREFIX + alert_key(begun.alert.key)


def _opened(record: OpenAlertRecord | None, begun: _StoreAlert) -> OpenAlertRecord:
    """The record of an alert that lasts, with what channels have of it."""
    if record is None or record.ended is not None:
        known = record.channels if record else {}
        left = {name: each for name, each in known.items() if not each.ended}
        alert = begun.alert
        return OpenAlertRecord(
            alert=alert.key, sequence=0, at=alert.time, opened=alert, channels=left | begun.sent
        )
    more = {name: each for name, each in begun.sent.items() if name not in record.channels}
    return msgspec.structs.replace(record, channels=record.channels | more)


def _ended(
    record: OpenAlertRecord | None, begun: _StoreAlert | None, now: datetime
) -> OpenAlertRecord | None:
    """The record of an alert that is over; None: no channel has it, or all have its end."""
    lasts = record is not None and record.ended is None
    unrecorded = record is None and begun is not None and begun.sent and not begun.recorded
    if begun is not None and (lasts or unrecorded):
        record = _opened(record, begun)
    return record and finish(record, lambda opened: end_of_store_alert(opened, now))
