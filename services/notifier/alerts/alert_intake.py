"""Turns events into open alerts, and ends them: `AlertSender` sends what is recorded here."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from schemas.alert_records import Alert, OpenAlertRecord
from schemas.breaker_state import OpenIncident
from schemas.messages import LimitedDecoder, Message, decoder
from schemas.node_events import Lost, Verdict
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import SagaOverdue
from schemas.pool_records import pool_key
from schemas.stored_messages import decode_stored, event_source
from schemas.topology import HEALTH, NODES, NOTIFIER_ALERTS, POOLS
from services.bus.bucket_mirror import readable, readable_record
from services.bus.port import Bus
from services.notifier.alerts.alert_dedup import (
    HOLD_SECONDS,
    QUIET_SECONDS,
    AlertGroups,
    end_of_summary,
    is_held,
    is_summary,
    lasts,
    limit_alert,
    matching_incident,
    summary_key,
)
from services.notifier.alerts.alert_rules import (
    alert_of,
    end_of,
    end_of_predecessor,
    end_of_unknown,
    ended_keys,
    ends_pool,
    is_of_predecessor,
    keys_of_node,
    may_be_unknown,
)
from services.notifier.alerts.open_alerts import OpenAlerts, repeats
from services.primitives.clock import Clock
from services.primitives.coalesce import Joined
from services.primitives.errors import BusError, Retry
from services.runtime.consumer_loop import Consumer, Received

log = logging.getLogger(__name__)

ReadWork = Callable[[str, str, str, datetime], Awaitable[str]]

EXTEND_SECONDS: Final = 30.0
CHECK_SECONDS: Final = 60.0


class _Incidents(msgspec.Struct, frozen=True):
    """The part of a pool's record that the notifier reads."""

    incidents: dict[str, OpenIncident] = {}


_incidents = LimitedDecoder(_Incidents)
_nodes = decoder(NodeRecord)


class AlertIntake:
    """Records which alerts begin and end."""

    def __init__(self, bus: Bus, read_work: ReadWork | None = None) -> None:
        """Record them on `bus`; the open incidents are read from there.

        `read_work`: reads what a drain waits for, of a pool, node and saga, at a moment.
        """
        self._bus = bus
        self._read_work = read_work
        self._open = OpenAlerts(bus)
        self._groups = AlertGroups()
        self._extended: dict[str, datetime] = {}
        """Key of a summary -> the time of the last alert that was noted in its record."""
        self._open_incidents = Joined(self._read_incidents)

    def consumer(self) -> Consumer:
        """The consumer of its events; those about one node or pool are handled in order."""
        return Consumer(
            durable=NOTIFIER_ALERTS, decode=decode_stored, handle=self.handle, key=event_source
        )

    async def handle(self, received: Received[Message]) -> None:
        """Record what one event begins and ends."""
        event, stored = received.message, received.stored
        for key in await self._open.recorded(ended_keys(event)):
            await self._open.end(key, partial(end_of, event), stored)
        if pool := ends_pool(event):
            for record in await self._open.all():
                if record.opened is not None and record.opened.pool == pool:
                    await self._open.end(record.alert, partial(end_of, event), stored)
        alert = alert_of(event)
        if alert is None:
            return
        if isinstance(event, SagaOverdue) and event.step == "drain":
            alert = replace(alert, text=await self._with_remaining_work(alert, event))
        await self._begin(alert, received)

    async def _with_remaining_work(self, alert: Alert, overdue: SagaOverdue) -> str:
        """The alert's text, with the work that the drain waits for."""
        if self._read_work is None:
            return alert.text
        waits = await self._read_work(overdue.pool, overdue.node, overdue.saga, overdue.time)
        return f"{alert.text} It {waits}." if waits else alert.text

    async def _begin(self, alert: Alert, received: Received[Message]) -> None:
        """Record an alert, unless an incident or a summary covers it or it is over."""
        event, stored = received.message, received.stored
        if repeats(await self._open.find(alert.key), alert):
            await self._open.open(alert, stored)
            return
        if incident := await self._incident_of(alert, received):
            log.info("covered by an incident", extra={"alert": alert.key, "incident": incident})
            return
        if isinstance(event, Lost | Verdict) and await self._is_outdated(alert, event):
            log.info("outdated", extra={"alert": alert.key})
            return
        if received.deliveries == 1 and is_held(self._groups, alert):
            raise Retry("held in case it ends, or is part of an incident", HOLD_SECONDS)
        # Counted at once: alerts about other nodes are handled concurrently.
        self._groups, limited = limit_alert(self._groups, alert)
        if await self._open.ending(alert, event, stored) is not None:
            log.info("over before it was sent", extra={"alert": alert.key})
            return
        if limited is None:
            await self._extend(alert)
            return
        await self._open.open(limited, stored)
        if limited.key != alert.key:
            return
        # An end that was handled while this was recorded did not find it.
        if (end := await self._open.ending(alert, event, stored)) is not None:
            await self._open.end_now(alert.key, partial(end_of, end))

    async def _extend(self, alert: Alert) -> None:
        """Note that a summary has got one more alert, at most once in EXTEND_SECONDS."""
        key = summary_key(alert)
        extended = self._extended.get(key)
        if extended is None or (alert.time - extended).total_seconds() >= EXTEND_SECONDS:
            await self._open.extend(key, alert.time)
            self._extended[key] = alert.time

    async def end_without_event_for_ever(self, clock: Clock) -> None:
        """End what no event ends: summaries, and alerts about nodes that are gone."""
        while True:
            await clock.sleep(CHECK_SECONDS)
            try:
                await self.end_without_event(clock.now())
            except (BusError, Retry) as error:
                log.warning("cannot end what is over of the alerts: %s", error)

    async def end_without_event(self, now: datetime) -> None:
        """End what is over by now."""
        lasting = await self._open.lasting()
        await self._end_summaries([each for each in lasting if is_summary(each.alert)], now)
        for record in lasting:
            if record.opened is not None and may_be_unknown(record, now):
                await self._end_if_gone(record, record.opened, now)

    async def _end_if_gone(self, record: OpenAlertRecord, alert: Alert, now: datetime) -> None:
        """End an alert about a node of which nothing is recorded, or only its successor.

        Of a node that beats and waits for its adoption its health alone is recorded.
        """
        key = _node_key(alert)
        entry = await self._bus.get(NODES, key)
        node = readable_record(entry, _nodes)
        unknown = entry is None and await self._bus.get(HEALTH, key) is None
        # Its end may be lost, or be taken for an older event: EVENTS may have been rolled back.
        if unknown or (node is not None and node.state == "terminated"):
            for each in keys_of_node(alert.pool, alert.node):
                await self._open.end_now(each, partial(end_of_unknown, now=now))
            return
        if node is not None and is_of_predecessor(record, node):
            await self._open.end_now(alert.key, partial(end_of_predecessor, now=now))

    async def _end_summaries(self, summaries: Sequence[OpenAlertRecord], now: datetime) -> None:
        for summary in summaries:
            if (now - summary.at).total_seconds() < QUIET_SECONDS + EXTEND_SECONDS:
                continue
            pool = summary.opened.pool if summary.opened else ""
            entries = await self._bus.entries(NODES, f"{pool}.*") if pool else []
            if not lasts(summary.alert, [record for _, record in readable(entries, _nodes)]):
                await self._open.end_now(summary.alert, partial(end_of_summary, now=now))
                self._extended.pop(summary.alert, None)

    async def _incident_of(self, alert: Alert, received: Received[Message]) -> str:
        """The open incident that covers this alert; empty if none does."""
        if not alert.node or alert.severity != "critical":
            return ""
        incidents = await self._open_incidents(alert.pool)
        if not incidents:
            return ""
        node = await self._node(alert)
        return matching_incident(received.message, node, incidents, received.stored.time)

    async def _is_outdated(self, alert: Alert, event: Lost | Verdict) -> bool:
        """Whether the record is past the event: not in service, or with later news.

        So it is after a message that was set aside is published again. A node without a record may
        be in service.
        """
        node = await self._node(alert)
        if node is None:
            return False
        if isinstance(event, Lost):
            returned_since = node.liveness_at is not None and event.time < node.liveness_at
            return node.state != "active" or returned_since
        judged_since = node.health_at is not None and event.time < node.health_at
        return node.state == "terminated" or judged_since

    async def _node(self, alert: Alert) -> NodeRecord | None:
        entry = await self._bus.get(NODES, _node_key(alert))
        return readable_record(entry, _nodes)

    async def _read_incidents(self, pool: str) -> dict[str, OpenIncident]:
        """The pool's open incidents; in a wave many alerts share one read of a large record."""
        found = await self._bus.get(POOLS, pool_key(pool))
        record = readable_record(found, _incidents)
        return record.incidents if record else {}


def _node_key(alert: Alert) -> str:
    return node_key(alert.pool, alert.node)
