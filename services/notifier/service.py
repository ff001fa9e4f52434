"""The notifier: performs the cordon, drain and uncordon steps of sagas, and sends alerts.

It is stateless: the bus redelivers the message that a killed replica was handling.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from schemas.breaker_state import OpenIncident
from schemas.fleet_queries import CurrentFailure
from schemas.messages import LimitedDecoder, Message, decoder
from schemas.node_events import Lost
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import SagaOverdue
from schemas.pool_records import pool_key
from schemas.settings import ALERT_CHANNEL_PLUGINS, NOTIFIER_PLUGINS, Settings
from schemas.stored_messages import decode_stored
from schemas.topology import NODES, NOTIFIER_ALERTS, NOTIFIER_STEPS, POOLS
from services.bus.bucket_mirror import readable
from services.bus.port import Bus, Stored
from services.notifier.alerts.alert_channel import AlertChannel
from services.notifier.alerts.alert_dedup import (
    HOLD_SECONDS,
    QUIET_SECONDS,
    AlertGroups,
    end_of_summary,
    is_held,
    lasts,
    limit_alert,
    summary_key,
)
from services.notifier.alerts.alert_rules import Alert, alert_of, ending_subjects, store_alert
from services.notifier.alerts.incident_matching import matching_incident
from services.notifier.alerts.open_alerts import OpenAlerts
from services.notifier.store_watch import StoreWatch
from services.notifier.work_report import read_remaining_work
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import Notifier
from services.notifier.workload_check_endpoint import WorkloadCheckEndpoint
from services.notifier.workload_steps import WorkloadSteps
from services.primitives.clock import Clock, SystemClock
from services.primitives.coalesce import Joined
from services.primitives.errors import BusError, Retry
from services.runtime.consumer_loop import Consumer, Received
from services.runtime.failure_register import FailureRegister
from services.runtime.process import Context, Service
from services.settings.drain_warnings import drain_warnings
from services.settings.plugin_loader import make_plugin

log = logging.getLogger(__name__)

ALERT_SECONDS_MAX: Final = 30.0
FINISH_SECONDS: Final = 1.0
"""Enough for an order in flight; the next replica continues a drain."""
DIRECT_SECONDS: Final = 5.0
"""Between two looks at what is alerted without the store."""
UNSENT_RETRY_SECONDS: Final = 1.0
"""Between two looks at an alert that is being sent when its end arrives."""
UNSENT_TRIES_MAX: Final = 60
"""Then no replica sends it any more; its end is sent in case a channel has it."""
EXTEND_SECONDS: Final = 30.0
SUMMARY_CHECK_SECONDS: Final = 60.0
SENT_MAX: Final = 10_000
"""Alerts remembered as sent while other channels still fail."""


class _Incidents(msgspec.Struct, frozen=True):
    """The part of a pool's record that the notifier reads."""

    incidents: dict[str, OpenIncident] = {}


_incidents = LimitedDecoder(_Incidents)
_nodes = decoder(NodeRecord)


class Alerting:
    """Sends alerts to every channel."""

    def __init__(self, channels: Sequence[AlertChannel], bus: Bus) -> None:
        """Send to `channels`; the open incidents are read from `bus`."""
        self._channels = channels
        self._bus = bus
        self._sent: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        self._open = OpenAlerts(bus)
        self._groups = AlertGroups()
        self._extended: dict[str, datetime] = {}
        """Key of a summary -> the time of the last alert that was noted in its record."""
        self._open_incidents = Joined(self._read_incidents)

    def consumer(self) -> Consumer:
        """The consumer of its events; alerts about one node or pool are sent in order."""
        return Consumer(
            durable=NOTIFIER_ALERTS, decode=decode_stored, handle=self.handle, key=_subject_of
        )

    async def handle(self, received: Received[Message]) -> None:
        """Alert about one event; a retry sends only to the channels that failed."""
        alert = alert_of(received.message)
        if alert is None:
            return
        if isinstance(received.message, SagaOverdue) and received.message.step == "drain":
            alert = replace(alert, text=await self._with_remaining_work(alert, received.message))
        if alert.ends:
            await self._resolve(alert, received)
            return
        if incident := await self._incident_of(alert, received):
            log.info("covered by an incident", extra={"alert": alert.key, "incident": incident})
            return
        if received.deliveries == 1 and is_held(self._groups, alert):
            raise Retry("held in case it ends, or is part of an incident", HOLD_SECONDS)
        if isinstance(received.message, Lost) and not await self._is_in_service(alert):
            log.info("not in service", extra={"alert": alert.key})
            return
        # Counted at once: alerts about other nodes are handled concurrently.
        self._groups, limited = limit_alert(self._groups, alert)
        if await self._open.is_over(alert, received.message, received.stored):
            log.info("over before it was sent", extra={"alert": alert.key})
            await self._open.settle(alert)
            return
        if limited is None:
            await self._extend(alert)
            return
        ends = limited.key != alert.key or bool(ending_subjects(received.message))
        if ends:
            await self._open.open(limited, received.stored, sent=False)
        await self._deliver(limited)
        if ends:
            await self._open.open(limited, received.stored, sent=True)

    async def _with_remaining_work(self, alert: Alert, overdue: SagaOverdue) -> str:
        """The alert's text, with the work that the drain waits for."""
        waits = await read_remaining_work(self._bus, overdue.pool, overdue.node, overdue.saga)
        return f"{alert.text} It {waits}." if waits else alert.text

    async def _extend(self, alert: Alert) -> None:
        """Note that a summary has got one more alert, at most once in EXTEND_SECONDS."""
        key = summary_key(alert)
        extended = self._extended.get(key)
        if extended is None or (alert.time - extended).total_seconds() >= EXTEND_SECONDS:
            await self._open.extend(key, alert.time)
            self._extended[key] = alert.time

    async def end_summaries_for_ever(self, clock: Clock) -> None:
        """End each summary that nothing was added to for a while and whose nodes are well again."""
        while True:
            await clock.sleep(SUMMARY_CHECK_SECONDS)
            try:
                await self.end_summaries(clock.now())
            except (BusError, Retry) as error:
                log.warning("cannot end summaries of alerts: %s", error)

    async def end_summaries(self, now: datetime) -> None:
        """End the summaries that are over by now."""
        for summary in await self._open.summaries():
            if (now - summary.at).total_seconds() < QUIET_SECONDS + EXTEND_SECONDS:
                continue
            end = end_of_summary(summary.alert, now)
            entries = await self._bus.entries(NODES, f"{end.pool}.*") if end.pool else []
            if not lasts(summary.alert, [record for _, record in readable(entries, _nodes)]):
                await self._deliver(end)
                await self._open.close(summary.alert)
                self._extended.pop(summary.alert, None)

    async def _resolve(self, alert: Alert, received: Received[Message]) -> None:
        """Send the end of what was sent."""
        for key in alert.ends:
            found = await self._open.find(key, received.stored)
            if found is None:
                continue
            if not found.sent and received.deliveries < UNSENT_TRIES_MAX:
                raise Retry(f"alert {key} is being sent", UNSENT_RETRY_SECONDS)
            await self._deliver(replace(alert, key=key, resolved=True))
            await self._open.close(key)

    async def _deliver(self, alert: Alert) -> None:
        """Send to every channel that does not have it; Retry if one fails."""
        if failures := await self._send(alert):
            raise Retry(f"alert not delivered: {'; '.join(failures)}")

    async def alert_unwritable_for_ever(self, failures: FailureRegister, clock: Clock) -> None:
        """Alert about a store that takes no event about itself, and about its recovery."""
        sent: dict[str, CurrentFailure] = {}
        while True:
            found = {
                each.about: each for each in failures.current if each.failure == "store-unwritable"
            }
            for about in {**found, **sent}:
                if (about in found) == (about in sent):
                    continue
                failing = about in found
                alert = store_alert((found if failing else sent)[about], clock.now(), failing)
                if await self._send(alert):
                    continue
                if failing:
                    sent[about] = found[about]
                else:
                    del sent[about]
            await clock.sleep(DIRECT_SECONDS)

    async def _send(self, alert: Alert) -> list[str]:
        """Send to every channel that does not have it; return what failed."""
        failures = []
        for position, channel in enumerate(self._channels):
            if (alert.event, alert.key, position) in self._sent:
                continue
            try:
                async with asyncio.timeout(ALERT_SECONDS_MAX):
                    await channel.send(alert)
            except Exception as error:  # noqa: BLE001 - a channel may be a third party's code
                failures.append(f"{channel.name}: {error or type(error).__name__}")
            else:
                self._sent[alert.event, alert.key, position] = None
        while len(self._sent) > SENT_MAX:
            self._sent.popitem(last=False)
        return failures

    async def _incident_of(self, alert: Alert, received: Received[Message]) -> str:
        """The open incident that covers this alert; empty if none does."""
        if not alert.node or alert.severity != "critical":
            return ""
        incidents = await self._open_incidents(alert.pool)
        if not incidents:
            return ""
        node = await self._node(alert)
        return matching_incident(received.message, node, incidents, received.stored.time)

    async def _is_in_service(self, alert: Alert) -> bool:
        """Whether the node of an alert is in service; a node without a record may be."""
        node = await self._node(alert)
        return node is None or node.state == "active"

    async def _node(self, alert: Alert) -> NodeRecord | None:
        entry = await self._bus.get(NODES, node_key(alert.pool, alert.node))
        return next((record for _, record in readable([entry] if entry else [], _nodes)), None)

    async def _read_incidents(self, pool: str) -> dict[str, OpenIncident]:
        """The pool's open incidents; in a wave many alerts share one read of a large record."""
        found = await self._bus.get(POOLS, pool_key(pool))
        records = [record for _, record in readable([found] if found else [], _incidents)]
        return records[0].incidents if records else {}


def _subject_of(stored: Stored) -> str:
    """The subject without the event name: the node or pool that the alert is about."""
    return stored.subject.partition(".event.")[0]


def load_notifiers(
    settings: Settings, file: Path | None, clock: Clock
) -> tuple[Notifier, dict[str, Notifier]]:
    """Construct the fleet's notifier and the named ones; ConfigurationError if one cannot be."""
    default: Notifier = make_plugin(NOTIFIER_PLUGINS, settings.notifier, file, clock=clock)
    named = {
        name: make_plugin(NOTIFIER_PLUGINS, each, file, clock=clock)
        for name, each in settings.notifiers.items()
    }
    return default, named


def load_channels(settings: Settings, file: Path | None, clock: Clock) -> list[AlertChannel]:
    """Construct the alert channels; ConfigurationError if one cannot be."""
    return [make_plugin(ALERT_CHANNEL_PLUGINS, each, file, clock=clock) for each in settings.alerts]


def check(settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError if a notifier or an alert channel cannot be constructed."""
    default, named = load_notifiers(settings, file, SystemClock())
    channels = load_channels(settings, file, SystemClock())

    async def close() -> None:
        notifiers = (default, *named.values())
        await asyncio.gather(*(each.close() for each in notifiers))
        await asyncio.gather(*(each.close() for each in channels))

    asyncio.run(close())


async def build(context: Context) -> Service:
    """Make the notifiers and the alert channels that the configuration names."""
    settings, file = context.settings, context.settings_file
    default, named = load_notifiers(settings, file, context.clock)
    notifiers = PoolNotifiers(default, named, settings.pools, context.bus)
    channels = load_channels(settings, file, context.clock)
    for warning in drain_warnings(settings):
        log.warning("%s", warning)
    log.info(
        "notifier configured",
        extra={
            "notifiers": [each.name for each in notifiers.all],
            "alerts": [each.name for each in channels],
        },
    )
    workload = WorkloadSteps(notifiers, context.bus, context.clock)

    async def close() -> None:
        for channel in channels:
            await channel.close()
        await notifiers.close()

    participant = workload.participant(context)
    steps = participant.consumer(NOTIFIER_STEPS)
    failures = context.instruments.failures
    alerting = Alerting(channels, context.bus)
    return Service(
        description="Cordons, drains and uncordons in the workload system; sends alerts",
        consumers=[
            replace(steps, finish_seconds=FINISH_SECONDS),
            alerting.consumer(),
        ],
        tasks=[
            participant.watch,
            StoreWatch(context.bus, context.clock, failures, settings.nats.replicas).run,
            partial(alerting.alert_unwritable_for_ever, failures, context.clock),
            partial(alerting.end_summaries_for_ever, context.clock),
        ],
        endpoints=WorkloadCheckEndpoint(notifiers, context.bus).endpoints,
        close=close,
    )
