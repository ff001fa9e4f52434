"""Publishes `lost` and `returned` events: each node must beat again within `heartbeat_ttl`.

One replica watches, the one that holds the lease; the replica that takes over the lease gives every
registered node that time again, and publishes what its predecessor has decided and not published.
While the bus does not answer no node is silent. Before a loss is published the heartbeat is read
from the server, which removes it after its time to live, and where many expire together they wait
while the bus or this service lags (`ExpiredHeartbeats`).

The bucket is kept in memory: when every server has restarted it is empty, or does not exist. The
watch then creates it and begins again.

A node without a health record is not known (or is gone), and its silence says nothing, unless NODES
has it: then its record was lost. What silence *means* is the pool-manager's decision.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal

from schemas import subjects
from schemas.fleet_events import FACTS, ConsumerLag, fleet_codec
from schemas.fleet_queries import CurrentFailure
from schemas.health_records import HealthRecord
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.settings import AgentSettings
from schemas.topology import EVENTS, HEALTH, HEARTBEATS, INTAKE, NODES
from services.bus.bucket_mirror import readable
from services.bus.leases import Lease, while_held
from services.bus.port import Bus, Entry
from services.bus.topology_setup import STREAM_NOT_FOUND, set_up_stream
from services.health_monitor.health_store import HealthStore
from services.health_monitor.rules import silences
from services.health_monitor.rules.expired_heartbeats import (
    EndingCredentials,
    ExpiredHeartbeats,
    OutlivedNodes,
    RefusedAgents,
)
from services.health_monitor.rules.health_state import WatchDecision, keep, unpublished, working_of
from services.health_monitor.rules.lost_health import recovered_health
from services.health_monitor.rules.silences import epoch_milliseconds
from services.health_monitor.verdict_publisher import NodeWorkers, Performer
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Refused
from services.primitives.race import race
from services.runtime.event_publisher import publish_event
from services.runtime.failure_register import FailureRegister, unwritable
from services.runtime.tracing import Tracing

STREAM: Final = f"KV_{HEARTBEATS.name}"
WATCH: Final = "heartbeats"
"""Name of this watch among what may lag."""
OBSERVER: Final = "credentials of nodes"
"""Name of this watch among those that report failures."""
SWEEP_SECONDS: Final = 0.5
STRAY_SECONDS: Final = 600.0
"""Silence of a node that NODES lacks, after which its record is removed: NODES, were it what is
lost, has been rebuilt long before."""
LOOK_SECONDS: Final = 1.0
"""How often the watch checks that its bucket is still there."""

log = logging.getLogger(__name__)

_health: Final = decoder(HealthRecord)
_nodes: Final = decoder(NodeRecord)


@dataclass(frozen=True, slots=True)
class _HeartbeatChange:
    """What a heartbeat's entry says of its node."""

    key: str
    silent: bool
    time: datetime


class HeartbeatWatch:
    """Watches heartbeats while it holds the lease."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: HealthStore,
        performer: Performer,
        lease: Lease,
        tracing: Tracing,
        agent: AgentSettings,
        replicas: int,
        failures: FailureRegister,
    ) -> None:
        """Publish through `performer` while `lease` is held; `replicas`: of the bucket."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._performer = performer
        self._lease = lease
        self._tracing = tracing
        self._interval_seconds = float(agent.heartbeat_interval)
        self._ttl_seconds = float(agent.heartbeat_ttl)
        self._replicas = replicas
        self._silent: set[str] = set()
        """Nodes whose next beat is news."""
        self._alive: set[str] = set()
        self._expected: dict[str, float] = {}
        """Nodes that are not silent -> when the next beat is due at the latest."""
        self._expired = ExpiredHeartbeats(self._interval_seconds)
        self._changes: dict[str, _HeartbeatChange] = {}
        """Key -> the loss, of those that wait."""
        self._strays: dict[str, float] = {}
        """Silent nodes -> when to see whether the fleet knows them at all."""
        self._stored_before = 0
        """The last heartbeat stored before the watch began: older ones show no lag."""
        self._newest = 0
        """The newest revision that the watch has seen."""
        self._behind_seconds = 0.0
        """How far the watch was behind at its last entry."""
        self._lagging = False
        self._workers = NodeWorkers(clock, lease)
        self._credentials = EndingCredentials()
        self._refused = RefusedAgents()
        self._outlived = OutlivedNodes()
        self._failures = failures

    async def run(self) -> None:
        """Contend for the lease and watch while it is held, for ever."""
        await while_held(self._lease, self._clock, self._watch)

    async def _watch(self) -> None:
        """Watch until the bucket is lost; then it is created and watched again."""
        await set_up_stream(self._bus, HEARTBEATS.stream(), self._replicas)
        created, self._stored_before = await self._state()
        self._newest = self._stored_before
        try:
            watching, _ = await race(self._watch_bucket(), self._lost(created))
        finally:
            self._failures.update(OBSERVER, ())
        if not watching.cancelled():
            watching.result()
        log.warning("the heartbeats are lost, and rebuilt as the nodes beat")

    def _reported(self) -> list[CurrentFailure]:
        """What the heartbeats of the nodes that beat say of more than the node."""
        refused = self._refused.reason(self._alive)
        found = [unwritable((INTAKE.name, refused))] if refused else []
        outlived = self._outlived.warnings(self._alive, self._clock.monotonic())
        return [*found, *outlived, *self._credentials.warnings(self._alive)]

    async def _state(self) -> tuple[str, int]:
        """When the bucket was created, and its last revision."""
        info = await self._bus.admin(f"STREAM.INFO.{STREAM}", {})
        return info["created"], int(info["state"]["last_seq"])

    async def _lost(self, created: str) -> None:
        """Return when the bucket is gone, another one, or empty: all servers have restarted."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            seen = self._newest  # before the server is asked: the watch goes on meanwhile
            try:
                now, last = await self._state()
            except Refused as error:
                if error.code == STREAM_NOT_FOUND:
                    return
                log.info("heartbeats not looked at", extra={"reason": str(error)})
            except BusError:
                continue  # the watch itself waits for the bus
            else:
                if now != created or last < seen:
                    return

    async def _watch_bucket(self) -> None:
        """Publish every loss and every return, from the present state on."""
        self._workers = NodeWorkers(self._clock, self._lease)
        self._expired = ExpiredHeartbeats(self._interval_seconds)
        self._changes.clear()
        self._behind_seconds = 0.0
        began = self._clock.now() - timedelta(seconds=self._ttl_seconds)
        async with asyncio.TaskGroup() as group:
            self._workers.start(group)
            await self._take_stock()
            self._lagging = await self._was_lagging()
            group.create_task(self._sweep())
            group.create_task(self._follow_lives(began))
            async for entry in self._bus.watch(HEARTBEATS):
                await self._take(entry)

    async def _take_stock(self) -> None:
        """Learn who is lost, and who is expected to beat."""
        beats = [entry.key for entry in await self._bus.entries(HEARTBEATS)]
        self._silent.clear()
        self._strays.clear()
        self._expected.clear()
        self._alive = alive = set(beats)
        for key in beats:  # in this order nodes are lost that fall silent together
            self._expect(key)
        for key, record in (await self._health_records()).items():
            if unpublished(record):
                await self._workers.put(key, partial(self._change, key, keep))
            if record.lost:
                self._silent.add(key)
                self._strays[key] = self._clock.monotonic() + STRAY_SECONDS
            elif key not in alive and working_of(record).registered:
                self._expect(key)

    async def _follow_lives(self, after: datetime) -> None:
        """Expect those that register from now on to beat, and those that are gone not to.

        An agent may end before its first heartbeat.
        """
        facts = [subjects.node_event_wildcard(fact) for fact in ("registered", "terminated")]
        while True:
            try:
                async for stored in self._bus.follow(EVENTS.name, facts, "new", after=after):
                    after = stored.time
                    parsed = subjects.parse_node(stored.subject)
                    if parsed is None:
                        continue
                    key = node_key(parsed.pool, parsed.node)
                    if parsed.fact == "terminated":
                        self._outlived.ended(key, self._clock.monotonic())
                        continue
                    self._outlived.began(key)
                    if key not in self._alive and key not in self._silent:
                        self._expect(key)
            except BusError as error:
                log.info("registrations are not followed", extra={"reason": str(error)})
            await self._clock.sleep(SWEEP_SECONDS)

    async def _health_records(self) -> dict[str, HealthRecord]:
        """Every node's record, of nodes that lost theirs what NODES makes of it."""
        entries = await self._bus.entries(HEALTH)
        found = {entry.key: record for entry, record in readable(entries, _health)}
        for entry, node in readable(await self._bus.entries(NODES), _nodes):
            if node.state == "terminated":
                self._outlived.ended(entry.key, self._clock.monotonic())
            recovered = recovered_health(node, self._clock.now())
            if recovered is not None:
                found.setdefault(entry.key, recovered)
        return found

    async def _take(self, entry: Entry) -> None:
        """Sort one entry of the watch: nearly all are beats of nodes that were not lost."""
        self._newest = max(self._newest, entry.revision)
        if not entry.removed:
            if entry.revision > self._stored_before:
                self._behind_seconds = (self._clock.now() - entry.time).total_seconds()
            self._alive.add(entry.key)
            self._credentials.add(entry.key, entry.value)
            self._refused.add(entry.key, entry.value)
            self._expect(entry.key)
            if entry.key in self._silent:
                self._silent.discard(entry.key)
                self._expired.beats(entry.key)
                self._changes.pop(entry.key, None)
                await self._put(_HeartbeatChange(entry.key, silent=False, time=entry.time))

    def _expect(self, key: str) -> None:
        self._expected[key] = self._clock.monotonic() + self._ttl_seconds

    def _expire(self, key: str) -> None:
        """Take in that a node is silent."""
        self._expected.pop(key, None)
        self._alive.discard(key)
        if key not in self._silent:
            self._silent.add(key)
            self._changes[key] = _HeartbeatChange(key, silent=True, time=self._clock.now())
            self._expired.expired(key, self._clock.monotonic())

    async def _sweep(self) -> None:
        """Publish the losses that are due, and report where they are held back for our lag."""
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            self._failures.update(OBSERVER, self._reported())
            passed = self._clock.monotonic()
            for key in [key for key, at in self._strays.items() if at <= passed]:
                del self._strays[key]
                await self._workers.put(key, partial(self._forget, key))
            overdue = [key for key, until in self._expected.items() if until <= passed]
            if not overdue and not self._expired.recent and not self._lagging:
                continue
            try:
                lag_seconds = max(await self._round_trip_seconds(), self._behind_seconds)
            except BusError:
                continue  # nothing is known of the nodes while the bus is away
            for key in overdue:
                if self._expected.get(key, passed + 1) <= passed:  # no beat came meanwhile
                    self._expire(key)
            now, alive = self._clock.monotonic(), len(self._alive)
            reason = self._expired.lag_reason(now, alive, lag_seconds)
            if bool(reason) != self._lagging:
                await self._report_lag(reason, lag_seconds)
            due = [self._changes.pop(key) for key in self._expired.due(now, alive, lag_seconds)]
            for change in due:
                await self._put(change)

    async def _round_trip_seconds(self) -> float:
        """How long the server takes to answer a read."""
        began = self._clock.monotonic()
        await self._bus.get(HEARTBEATS, next(iter(self._expired.waiting), "none.none"))
        return self._clock.monotonic() - began

    async def _report_lag(self, reason: str, lag_seconds: float) -> None:
        """Publish that losses are held back, or no longer are."""
        status: Literal["lagging", "caught-up"] = "lagging" if reason else "caught-up"
        now = self._clock.now()
        event = ConsumerLag(
            id=f"lag-{WATCH}-{status}-{epoch_milliseconds(now)}",
            time=now,
            status=status,
            stream=STREAM,
            durable=WATCH,
            messages=len(self._expired.waiting),
            seconds=round(lag_seconds, 3),
            reason=reason or "heartbeats arrive in time again",
        )
        await publish_event(self._bus, event)
        self._lagging = bool(reason)
        log.warning("heartbeats: %s", event.status, extra={"reason": event.reason})

    async def _was_lagging(self) -> bool:
        """Whether the last report, of any replica, says that losses are held back."""
        lagging = False
        for stored in await self._bus.read(EVENTS.name, subjects.fleet_event(FACTS[ConsumerLag])):
            event = fleet_codec.decode(stored.data)
            if isinstance(event, ConsumerLag) and event.durable == WATCH:
                lagging = event.status == "lagging"
        return lagging

    async def _put(self, change: _HeartbeatChange) -> None:
        await self._workers.put(change.key, lambda: self._report(change))

    async def _report(self, change: _HeartbeatChange) -> None:
        if change.silent and (beat := await self._bus.get(HEARTBEATS, change.key)) is not None:
            # It beats again, and the watch may never see that heartbeat: only the last one is kept.
            self._silent.discard(change.key)
            self._alive.add(change.key)
            self._expect(change.key)
            change = _HeartbeatChange(beat.key, silent=False, time=beat.time)
        pool, _, node = change.key.partition(".")
        if change.silent and await self._store.node_state(pool, node) == "terminated":
            # Its `terminated` was never published: the entry behind it was set aside.
            await self._store.remove(pool, node)
            return
        decide: Callable[..., WatchDecision] = silences.decide_heartbeat
        if change.silent:
            expired = self._credentials.expired(change.key, change.time)
            decide = partial(
                silences.decide_silent, now=self._clock.now(), credentials_expired=expired
            )
        await self._change(change.key, lambda record: decide(record, change.time))
        if change.silent:
            self._strays[change.key] = self._clock.monotonic() + STRAY_SECONDS

    async def _forget(self, key: str) -> None:
        """Remove the record of a silent node that the fleet does not know.

        A store that was restored from a backup has forgotten a node whose agent goes on; nothing
        would ever say that it is gone.
        """
        pool, _, node = key.partition(".")
        if key in self._silent and await self._store.node_state(pool, node) == "absent":
            await self._store.remove(pool, node)

    async def _change(self, key: str, decide: Callable[[HealthRecord], WatchDecision]) -> None:
        pool, _, node = key.partition(".")
        with self._tracing.span("heartbeat", {}, node=node):
            await self._store.publish(pool, node, decide, self._performer.publish)
