"""Sends alerts: one replica, one task for each channel, from the records in ALERTS.

A channel is sent what it lacks by the record, so an outage of it delays no other channel and no
event; what is over when it returns is sent as ended where it had the beginning, else not at all.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.alert_records import (
    Alert,
    ChannelState,
    OpenAlertRecord,
    alert_key,
)
from schemas.fleet_queries import CurrentFailure
from schemas.settings import AlertRoute
from schemas.topology import ALERTS
from services.bus.bucket_mirror import BucketView
from services.bus.leases import Lease, while_held
from services.bus.port import Bus
from services.notifier.alerts.alert_channel import (
    RECEIPT_CHARS_MAX,
    AlertChannel,
    AlertDelivery,
    ChannelRefusalError,
)
from services.notifier.alerts.alert_rules import end_by_quiet, quiet_seconds
from services.notifier.alerts.channel_routes import (
    HELD_PREFIX,
    channel_place,
    due,
    end_of_held,
    held_alert,
    is_settled,
    lacks,
)
from services.notifier.alerts.open_alerts import Decide, OpenAlerts, finish
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Conflict, Retry
from services.primitives.race import race
from services.primitives.redaction import redacted
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

SEND_SECONDS_MAX: Final = 30.0
BACKOFF_FIRST_SECONDS: Final = 1.0
BACKOFF_MAX_SECONDS: Final = 60.0
"""A channel that returns is sent what it lacks within this time."""
REFUSED_SECONDS: Final = 300.0
"""Before an alert that the other side refused is tried again; it may be configured by then."""
FAILING_SECONDS: Final = 60.0
"""A channel that has failed for so long is reported."""
WAIT_SECONDS: Final = 30.0
"""Between two looks at what waits for hours or a rate."""
TIDY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedChannel:
    """A channel, and what it is sent."""

    route: AlertRoute
    channel: AlertChannel


@dataclass(slots=True)
class _ChannelProgress:
    """What one process knows of a channel."""

    sent_at: deque[datetime] = field(default_factory=deque)
    """When it was sent alerts, without ends, within its rate's window."""
    unrecorded: dict[str, ChannelState] = field(default_factory=dict)
    """Key of an alert -> what the channel has, while the bus does not take it."""
    repeated_at: dict[str, float] = field(default_factory=dict)
    refused_until: dict[str, float] = field(default_factory=dict)
    """Key of an alert that the other side refused -> when it is tried again."""
    failures: int = 0
    failing_since: float | None = None


class AlertSender:
    """Sends what channels lack, while this replica holds the lease."""

    def __init__(
        self,
        channels: Sequence[RoutedChannel],
        bus: Bus,
        clock: Clock,
        lease: Lease,
        failures: FailureRegister,
    ) -> None:
        """Send to `channels`; report those that fail to `failures`."""
        self._channels = channels
        self._bus = bus
        self._clock = clock
        self._lease = lease
        self._failures = failures
        self._open = OpenAlerts(bus)
        self._changed = {each.route.name: asyncio.Event() for each in channels}
        self._untidy = asyncio.Event()

    async def run(self) -> None:
        """Contend for the lease and send while it is held, for ever."""
        await while_held(self._lease, self._clock, self._send_for_ever)

    async def _send_for_ever(self) -> None:
        view = BucketView(self._bus, ALERTS, OpenAlertRecord, lambda _: self._wake())
        work = [
            view.run(),
            self._tidy_for_ever(view),
            *(self._serve_for_ever(each, view) for each in self._channels),
        ]
        try:
            for each in await race(*work):
                if not each.cancelled():
                    each.result()
        finally:
            for channel in self._channels:
                self._report(channel.route.name, None)

    def _wake(self) -> None:
        for each in (*self._changed.values(), self._untidy):
            each.set()

    async def _serve_for_ever(
        self, channel: RoutedChannel, view: BucketView[OpenAlertRecord]
    ) -> None:
        progress, changed = _ChannelProgress(), self._changed[channel.route.name]
        while True:
            changed.clear()
            pause_seconds = await self.serve(channel, progress, view)
            if progress.failures:
                # Not earlier for another alert: the channel is down for all of them.
                await self._clock.sleep(pause_seconds or BACKOFF_MAX_SECONDS)
            elif pause_seconds is None:
                await changed.wait()
            else:
                await race(changed.wait(), self._clock.sleep(pause_seconds))

    async def serve(
        self,
        channel: RoutedChannel,
        progress: _ChannelProgress,
        view: BucketView[OpenAlertRecord],
    ) -> float | None:
        """Send what the channel lacks; return when to look again, None: when something changes."""
        route, now = channel.route, self._clock.now()
        window = timedelta(seconds=route.rate.window)
        while progress.sent_at and now - progress.sent_at[0] >= window:
            progress.sent_at.popleft()
        records = [_with_unrecorded(each, route.name, progress) for each in view.records.values()]
        found = due(route, records, progress.sent_at, now)
        repeatable = _repeatable(channel, records)
        interval, at = channel.channel.repeat_seconds, self._clock.monotonic()
        # First of all after a restart: the other side may have restarted too.
        again = [
            key for key in repeatable if progress.repeated_at.get(key, -interval) + interval <= at
        ]
        keys = [*found.send, *again]
        try:
            if found.held or HELD_PREFIX + route.name in {each.alert for each in records}:
                await self._note_held(route, found.held, view)
            for key in keys:
                if progress.refused_until.get(key, 0.0) > self._clock.monotonic():
                    continue
                if (after_seconds := await self._deliver(channel, progress, key, view)) > 0:
                    return after_seconds
            for key in list(progress.unrecorded):
                await self._record(route.name, progress, key, view)
        except (BusError, Retry) as error:
            log.info("not recorded that alerts were sent: %s", error)
            return BACKOFF_FIRST_SECONDS
        if not keys and not found.waits:
            progress.failures = 0
            self._report(route.name, None)  # nothing is undelivered
        known = {each.alert for each in records}
        progress.refused_until = _only(progress.refused_until, known)
        progress.repeated_at = _only(progress.repeated_at, repeatable)
        at = self._clock.monotonic()
        looks = [each - at for each in progress.refused_until.values()]
        looks += [each + interval - at for each in progress.repeated_at.values()]
        looks += [WAIT_SECONDS] if found.waits else []
        return max(min(looks), BACKOFF_FIRST_SECONDS) if looks else None

    async def _deliver(
        self,
        channel: RoutedChannel,
        progress: _ChannelProgress,
        key: str,
        view: BucketView[OpenAlertRecord],
    ) -> float:
        """Send one alert; 0: it was sent or refused; else for how long the channel is down."""
        name, route = channel.route.name, channel.route
        record = view.records.get(alert_key(key))
        if record is not None and lacks(route, record) and name not in record.channels:
            # Before it is sent: after a crash in between its end is sent in any case.
            progress.unrecorded[key] = ChannelState(event="")
            record = await self._record(name, progress, key, view)
        if record is None:
            return 0.0
        record = _with_unrecorded(record, name, progress)
        known = record.channels.get(name)
        alert = lacks(route, record) or (
            record.opened if key in _repeatable(channel, [record]) else None
        )
        if alert is None:
            return 0.0
        try:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                sent = await channel.channel.send(alert, known.receipt if known else "")
        except ChannelRefusalError as error:
            log.error("%s refuses an alert: %s", name, error, extra={"alert": key})  # noqa: TRY400
            self._report(name, str(error))
            if not alert.resolved:
                progress.refused_until[key] = self._clock.monotonic() + REFUSED_SECONDS
                return 0.0
            sent = AlertDelivery()  # it may be gone at the other side
        except Exception as error:  # noqa: BLE001 - a channel may be a third party's code
            return self._note_down(name, progress, error)
        else:
            self._note_up(name, progress, key)
        log.info("alert sent", extra={"channel": name, "alert": key, "over": alert.resolved})
        if not alert.resolved:
            if known is None or known.event != alert.event:
                progress.sent_at.append(self._clock.now())
            if channel.channel.repeat_seconds:
                progress.repeated_at[key] = self._clock.monotonic()
        progress.unrecorded[key] = _state_after(alert, sent, known)
        await self._record(name, progress, key, view)
        return 0.0

    def _note_up(self, name: str, progress: _ChannelProgress, key: str) -> None:
        progress.failures, progress.failing_since = 0, None
        progress.refused_until.pop(key, None)
        if not progress.refused_until:
            self._report(name, None)

    def _note_down(self, name: str, progress: _ChannelProgress, error: Exception) -> float:
        """Count a failure of the whole channel; return how long it is left alone."""
        text = redacted(str(error)) or type(error).__name__
        now = self._clock.monotonic()
        progress.failures += 1
        if progress.failing_since is None:
            progress.failing_since = now
            log.warning("%s cannot be sent alerts: %s", name, text)
        if now - progress.failing_since >= FAILING_SECONDS:
            self._report(name, text)
        asked = float(getattr(error, "after_seconds", 0.0))
        backoff = BACKOFF_FIRST_SECONDS * 2.0 ** min(progress.failures - 1, 10)
        return max(asked, min(backoff, BACKOFF_MAX_SECONDS))

    def _report(self, name: str, problem: str | None) -> None:
        """Report that a channel fails, or that it works again."""
        found = []
        if problem is not None:
            failure = CurrentFailure(
                failure="alert-undelivered",
                about=channel_place(name),
                reason=f"alerts are not delivered: {redacted(problem)}",
                remedy=(
                    f"check its entry under `alerts`, and try it: navarch alerts test {name}; "
                    "what lasts until then is delivered once it works"
                ),
            )
            found.append(failure)
        self._failures.update(channel_place(name), found)

    async def _record(
        self,
        name: str,
        progress: _ChannelProgress,
        key: str,
        view: BucketView[OpenAlertRecord],
    ) -> OpenAlertRecord | None:
        """Record what a channel has of an alert; return its record, None: it is gone."""
        state = progress.unrecorded[key]

        def recorded(record: OpenAlertRecord | None) -> OpenAlertRecord | None:
            return record and _with_state(record, name, state)

        record = await self._change(key, recorded, view)
        del progress.unrecorded[key]
        return record

    async def _change(
        self, key: str, decide: Decide, view: BucketView[OpenAlertRecord]
    ) -> OpenAlertRecord | None:
        changed = await self._open.change(key, decide)
        if changed.written and changed.record is not None:
            view.wrote(alert_key(key), changed.record, changed.revision)
            self._wake()
        return changed.record

    async def _note_held(
        self, route: AlertRoute, held: Sequence[Alert], view: BucketView[OpenAlertRecord]
    ) -> None:
        """Open, renew or end the alert that says how many wait for the channel's rate."""
        now, key = self._clock.now(), HELD_PREFIX + route.name

        def noted(record: OpenAlertRecord | None) -> OpenAlertRecord | None:
            lasts = record is not None and record.ended is None and record.opened is not None
            if not held:
                return finish(record, lambda begun: end_of_held(begun, now)) if record else None
            if (
                lasts
                and record is not None
                and (now - record.at).total_seconds() < route.rate.window
            ):
                return record
            alert = held_alert(route, held, now)
            channels = record.channels if lasts and record is not None else {}
            return OpenAlertRecord(
                alert=key, sequence=0, at=now, opened=alert, only=route.name, channels=channels
            )

        await self._change(key, noted, view)

    async def _tidy_for_ever(self, view: BucketView[OpenAlertRecord]) -> None:
        """End what nothing more was heard of; remove the records of what has ended everywhere."""
        while True:
            self._untidy.clear()
            try:
                await self.tidy(view)
            except (BusError, Retry) as error:
                log.info("alerts are not tidied: %s", error)
                await self._clock.sleep(BACKOFF_FIRST_SECONDS)
                continue
            if view.records:
                await race(self._untidy.wait(), self._clock.sleep(TIDY_SECONDS))
            else:
                await self._untidy.wait()

    async def tidy(self, view: BucketView[OpenAlertRecord]) -> None:
        """Do so once."""
        names, now = [each.route.name for each in self._channels], self._clock.now()
        for key, record in list(view.records.items()):
            if is_settled(record, names):
                revision = view.revisions[key]
                try:
                    await self._open.forget(record.alert, revision)
                except Conflict:
                    continue
            elif record.ended is None and now - record.at >= timedelta(
                seconds=quiet_seconds(record.alert)
            ):
                await self._change(
                    record.alert,
                    lambda found: found and finish(found, lambda begun: end_by_quiet(begun, now)),
                    view,
                )


def _with_unrecorded(
    record: OpenAlertRecord, name: str, progress: _ChannelProgress
) -> OpenAlertRecord:
    """The record, with what the channel was sent and the bus has not taken."""
    state = progress.unrecorded.get(record.alert)
    return record if state is None else _with_state(record, name, state)


def _with_state(record: OpenAlertRecord, name: str, state: ChannelState) -> OpenAlertRecord:
    return msgspec.structs.replace(record, channels={**record.channels, name: state})


def _state_after(alert: Alert, sent: AlertDelivery, known: ChannelState | None) -> ChannelState:
    receipt = sent.receipt or (known.receipt if known else "")
    return ChannelState(
        event=alert.event, receipt=receipt[:RECEIPT_CHARS_MAX], ended=alert.resolved
    )


def _repeatable(channel: RoutedChannel, records: Iterable[OpenAlertRecord]) -> list[str]:
    """The alerts that the channel has, and forgets unless they are sent again."""
    if not channel.channel.repeat_seconds:
        return []
    return [
        each.alert
        for each in records
        if each.ended is None
        and each.opened is not None
        and (known := each.channels.get(channel.route.name)) is not None
        and known.event == each.opened.event
    ]


def _only(times: dict[str, float], keys: Iterable[str]) -> dict[str, float]:
    kept = set(keys)
    return {key: at for key, at in times.items() if key in kept}
