"""Follows the whole fleet's telemetry and reports levels that last, while it holds the lease.

One replica does it for all nodes: comparing is cheap enough that one core keeps up with a fleet of
any size we serve, and two replicas would report everything twice. Reported levels are kept in the
nodes' records, so the replica that takes over the lease neither repeats nor forgets it; a level
that had not lasted long enough by then is timed again. Samples are worth little: one that comes
late is passed over for the newest of its node, so lag never piles up.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.held_conditions import ConditionList
from schemas.messages import LimitedDecoder, decoder
from schemas.topology import HEALTH, TELEMETRY
from services.bus.bucket_mirror import readable
from services.bus.leases import Lease, while_held
from services.bus.port import Bus, Stored
from services.health_monitor.fault_handler import FaultHandler
from services.health_monitor.health_store import HealthStore
from services.health_monitor.rules.health_policy import Policy
from services.health_monitor.rules.health_state import WatchDecision, keep, unpublished, working_of
from services.health_monitor.rules.level_faults import record_crossing
from services.health_monitor.rules.node_health import Trigger
from services.health_monitor.rules.telemetry_levels import (
    Crossing,
    NodeLevels,
    Spells,
    without_level,
)
from services.health_monitor.verdict_publisher import HealthInstruments, NodeWorkers, Performer
from services.primitives.clock import Clock
from services.runtime.tracing import Tracing

log = logging.getLogger(__name__)

LATE_SECONDS: Final = 20.0
"""A sample that was stored so long ago shows that this replica lags."""
LOOK_EVERY: Final = 64
"""Samples between two looks at the clock."""
SWEEP_SECONDS: Final = 1.0
RECHECK_SECONDS: Final = 600
"""Within about so long every node's list is compared with its record again."""

_sample: Final = LimitedDecoder(NodeLevels)
_health: Final = decoder(HealthRecord)


class LevelWatch:
    """Watches telemetry while it holds the lease."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: HealthStore,
        performer: Performer,
        lease: Lease,
        policy: Callable[[], Policy],
        instruments: HealthInstruments,
        tracing: Tracing,
        judge: FaultHandler,
    ) -> None:
        """Report levels of the policy in force, as the holder of `lease`.

        `judge`: of the conditions that samples list.
        """
        self._bus = bus
        self._clock = clock
        self._store = store
        self._performer = performer
        self._lease = lease
        self._policy = policy
        self._tracing = tracing
        self._judge = judge
        self._listed: dict[str, ConditionList | None] = {}
        """Subject -> the last list that was compared with the node's record; None: there was none.

        A subject that is absent is compared at its next sample."""
        self._refused: set[str] = set()
        """Subjects of lists that came too early: those are compared again."""
        self._judged, self._invalid, self._late = (
            instruments.samples.labels(each) for each in ("judged", "invalid", "late")
        )
        self._workers = NodeWorkers(clock, lease)
        self._spells = Spells(())

    async def run(self) -> None:
        """Contend for the lease and watch while it is held, for ever."""
        await while_held(self._lease, self._clock, self._watch)

    async def _watch(self) -> None:
        """Watch from the present state on."""
        self._workers = NodeWorkers(self._clock, self._lease)
        async with asyncio.TaskGroup() as group:
            self._workers.start(group)
            policy = self._policy()
            await self._begin(policy)
            group.create_task(self._sweep(policy))
            while True:
                await self._follow()

    async def _begin(self, policy: Policy) -> None:
        """Take over the levels that were reported; one that the policy no longer has is over.

        The lists of conditions that the records have need not be compared with them once more.
        """
        self._spells = Spells(policy.levels)
        self._listed.clear()
        now = self._clock.now().timestamp()
        for _, record in readable(await self._bus.entries(HEALTH), _health):
            subject = subjects.telemetry(record.pool, record.node)
            if record.conditions is not None:
                self._listed[subject] = record.conditions
            if unpublished(record):
                await self._change(subject, record.pool, record.node, keep)
            for key, since in working_of(record).levels.items():
                name, _, gpu = key.rpartition("/")
                if not self._spells.adopt(subject, name, int(gpu), since, now):
                    await self._report(subject, without_level(name, int(gpu), since, now))

    async def _follow(self) -> None:
        """Take samples until one comes late; then begin again with each node's newest."""
        before = await self._bus.last_sequence(TELEMETRY.name)
        following = self._bus.follow(TELEMETRY.name, [subjects.TELEMETRY], "last_per_subject")
        assert isinstance(following, AsyncGenerator)
        async with aclosing(following):
            async for stored in following:
                # What was stored before this began may be of any age.
                if stored.sequence > before and stored.sequence % LOOK_EVERY == 0:
                    lag_seconds = (self._clock.now() - stored.time).total_seconds()
                    if lag_seconds > LATE_SECONDS:
                        self._late.inc()
                        log.warning("passing over samples", extra={"lag_s": lag_seconds})
                        return
                await self.take(stored)

    async def take(self, stored: Stored) -> None:
        """Compare one sample with the levels."""
        try:
            sample = _sample.decode(stored.data)
        except msgspec.DecodeError:
            self._invalid.inc()
            return
        self._judged.inc()
        subject, listed = stored.subject, sample.conditions
        if subject not in self._listed or listed != self._listed[subject]:
            await self._compare(subject, listed, stored)
        crossings = self._spells.take(subject, stored.time.timestamp(), sample.gpus)
        for crossing in crossings:
            await self._report(subject, crossing)

    async def _compare(self, subject: str, listed: ConditionList | None, stored: Stored) -> None:
        """Have the list of a sample compared with the node's record."""
        of = subjects.parse_node(subject)
        if of is None:
            return
        self._listed[subject] = listed
        seen = Trigger(f"sample-{stored.sequence}", 0, stored.time)

        async def compare() -> None:
            held = await self._store.read(of.pool, of.node)
            if held.record.conditions == listed and (held.revision or listed is None):
                return
            if not await self._judge.listed(of.pool, of.node, listed, seen):
                self._refused.add(subject)

        await self._workers.put(subject, compare)

    def _forget_lists(self) -> None:
        """Have some lists compared again: a record may have been set back since."""
        some = list(islice(self._listed, len(self._listed) // RECHECK_SECONDS + 1))
        for subject in (*some, *self._refused):
            self._listed.pop(subject, None)
        self._refused.clear()

    async def _judge_again(self, policy: Policy) -> None:
        """Judge what holds on each node by a changed policy."""
        for _, record in readable(await self._bus.entries(HEALTH), _health):
            if record.conditions is None or not record.conditions.held:
                continue
            now = self._clock.now()
            seen = Trigger(f"{policy.hash}-{now.timestamp() * 1000:.0f}", 0, now)
            job = partial(self._judge.judge_again, record.pool, record.node, seen)
            await self._workers.put(subjects.telemetry(record.pool, record.node), job)

    async def _sweep(self, policy: Policy) -> None:
        """End spells of which nothing is heard any more; take a changed policy's levels."""
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            self._forget_lists()
            for subject, crossing in self._spells.unheard(self._clock.now().timestamp()):
                await self._report(subject, crossing)
            if self._policy() is not policy:
                policy = self._policy()
                await self._begin(policy)
                await self._judge_again(policy)

    async def _report(self, subject: str, crossing: Crossing) -> None:
        """Have a crossing noted in the node's record, and its fault published."""
        of = subjects.parse_node(subject)
        if of is None:
            return

        def decide(record: HealthRecord) -> WatchDecision:
            return record_crossing(record, crossing, self._clock.now())

        await self._change(subject, of.pool, of.node, decide)

    async def _change(
        self, subject: str, pool: str, node: str, decide: Callable[[HealthRecord], WatchDecision]
    ) -> None:
        async def change() -> None:
            with self._tracing.span("level", {}, node=node):
                await self._store.publish(pool, node, decide, self._performer.publish)

        await self._workers.put(subject, change)
