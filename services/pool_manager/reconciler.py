"""The reconciler's shell: reads a pool's snapshot, lets the core decide, writes, starts the sagas.

Runs on whatever may matter (a verdict, a loss, a request, an ended saga, a timer) and takes no hint
from it. Runs of one pool that are asked for while one is under way become one run after it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from msgspec import DecodeError, structs

from schemas.headers import TRACEPARENT
from schemas.launch_offers import Choice
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.offering_records import OfferingView
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import TimerDue
from schemas.saga_params import WORKLOAD_NAME, LaunchSpec, SagaParams, traits_of
from schemas.settings import PoolSpec
from schemas.stops import StopState
from services.bus.port import Bus
from services.bus.record_bucket import retry_conflicts
from services.pool_manager.asked_remediator import AskedRemediator
from services.pool_manager.decision_log import log_event, log_saga
from services.pool_manager.heartbeat_reader import HeartbeatReader
from services.pool_manager.node_use_reader import NodeUseReader
from services.pool_manager.notice_reader import NoticeReader
from services.pool_manager.offering_reader import read_offerings
from services.pool_manager.planner import event_outbox, retirements
from services.pool_manager.planner.admission import admission_refusals
from services.pool_manager.planner.node_counts import Nodes, is_for_silence
from services.pool_manager.planner.node_projection import FOUND
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot, Rest
from services.pool_manager.planner.remediation import obstacles, remedy_selection, renewals
from services.pool_manager.planner.remediation.quarantine_recheck import diagnostic_of
from services.pool_manager.planner.remediator import Remediator
from services.pool_manager.planner.safety import holds
from services.pool_manager.planner.safety.budget_claims import claiming
from services.pool_manager.planner.setup_spec import setup_of
from services.pool_manager.planner.sizing import pool_size
from services.pool_manager.planner.sizing.open_sagas import numbered
from services.pool_manager.pool_store import Store
from services.pool_manager.requests import pool_apply
from services.pool_manager.saga_interventions import SagaInterventions
from services.primitives.clock import Clock
from services.primitives.coalesce import Joined
from services.primitives.errors import AnswerError, BusError, Conflict
from services.runtime.event_publisher import publish_event
from services.runtime.stop_watch import StopWatch
from services.runtime.tracing import current_headers
from services.saga.coordinator import Coordinator
from services.saga.definitions import DEFINITIONS
from services.settings.provider_choices import choice_of, says_more

log = logging.getLogger(__name__)

STARTS_AT_ONCE_MAX: Final = 64
BEGUN_MAX: Final = 100_000
"""Sagas remembered as begun; forgetting one costs a refused append."""
TIMER_OWNER: Final = "pool-manager"


class Reconciler:
    """Brings pools to what is wanted of them."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: Store,
        coordinator: Callable[[], Coordinator],
        remediator: Callable[[PoolRecord], Remediator],
        beat_seconds: float,
        idle: Callable[[str], Mapping[str, Rest]],
        looked_at: Callable[[str], None],
        stops: StopWatch,
    ) -> None:
        """`coordinator` is asked for late: it and the reconciler call each other.

        `beat_seconds`: within so long every agent that is connected beats. `idle`: the nodes of a
        pool that are to leave as they have no work. `looked_at`: called with each pool that was
        decided about. `stops`: what operators have stopped.
        """
        self._looked_at = looked_at
        self._stops = stops
        self._idle = idle
        self._remediator = remediator
        self._bus = bus
        self._clock = clock
        self._store = store
        self._coordinator = coordinator
        self._runs = Joined(self._run)
        self._published: dict[str, frozenset[bytes]] = {}
        """Facts that stand in a pool's record, and that this process has published."""
        self._begun: set[str] = set()
        self._heartbeats = HeartbeatReader(bus)
        self._node_use = NodeUseReader(bus, clock, self._heartbeats)
        self._notices = NoticeReader(bus)
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE_MAX)
        self.interventions = SagaInterventions(
            bus, clock, store, self._heartbeats, coordinator, beat_seconds, stops.state
        )

    async def reconcile(self, pool: str) -> None:
        """Return when a run that began after this call has ended; raise what it raised."""
        await self._runs(pool)

    async def _run(self, pool: str) -> None:
        async with self._store.deciding(pool):
            decided = await self._decide(pool)
        if decided is not None:
            for node in decided.released:
                await self._release(node)
            await self.start_open(decided.record)
            await self.interventions.look(decided.record)
            if decided.wake_at is not None:
                await self._wake(pool, decided.wake_at)
            if decided.record.removing:
                await self._forget(pool)
            await self._clear(pool)
        self._looked_at(pool)

    async def _forget(self, pool: str) -> None:
        """Forget a pool that is to go, once its last node has gone."""
        async with self._store.deciding(pool):
            snapshot = await self._store.snapshot(pool)
            if snapshot is None or not self._store.trusted:
                return
            if not pool_apply.is_empty(snapshot.record, len(snapshot.nodes)):
                return
            # Published first: after a crash in between it is published again, under the same ID.
            await self._publish_pending(snapshot.record)
            await publish_event(self._bus, pool_apply.farewell(snapshot.record, self._clock.now()))
            with suppress(Conflict):
                await self._store.forget_pool(snapshot.record, snapshot.revision)

    async def _decide(self, pool: str) -> PoolPlan | None:
        with suppress(Conflict):
            return await self._decide_once(pool)

        async def attempt() -> PoolPlan | None:
            async with self._store.claiming:
                return await self._decide_once(pool)

        return await retry_conflicts(attempt, f"pool {pool}")

    async def _decide_once(self, pool: str) -> PoolPlan | None:
        """Decide and write: the claim on the fleet's budget, then the pool's record with the facts.

        Only then are the events published: a decision that lost the race publishes nothing, and
        those of a replica that died are published by the next one that looks.
        """
        snapshot, stops = await asyncio.gather(self._store.snapshot(pool), self._stops.fresh())
        if snapshot is None or not self._store.trusted:
            return None  # what was lost is recorded again first: no node is launched in its place
        before = snapshot.record
        await self._publish_pending(before)
        snapshot = self._prepared(snapshot, stops)
        decided = await self._plan(snapshot)
        decided = replace(decided, record=numbered(before, decided.record))
        claim = claiming(snapshot, decided.record)
        if claim.fence:
            # A slower decision on the earlier record can no longer be written.
            await self._store.save_pool(snapshot.record, snapshot.revision)
            raise Conflict(f"pool {pool}: fenced, to give back what it claims")
        if claim.claims is not None:
            await self._store.save_claims(claim.claims, snapshot.claims_revision)
        record = event_outbox.pending_events(decided.record, decided.events)
        if record != before:
            await self._store.save_pool(record, snapshot.revision)
            await self._publish_pending(record)
        return decided

    def _prepared(self, snapshot: PoolSnapshot, stops: StopState) -> PoolSnapshot:
        """Return a snapshot with what this process knows beside the records."""
        record = event_outbox.without_events(snapshot.record)
        return replace(
            snapshot,
            record=record,
            remediator=self._remediator(record),
            idle=self._idle(record.name),
            stops=stops,
        )

    async def would_begin(self, pool: str, stops: StopState) -> Mapping[str, OpenSaga]:
        """Return what would begin in a pool now, under these stops; nothing is written."""
        snapshot = await self._store.snapshot(pool)
        if snapshot is None or not self._store.trusted:
            return {}
        return (await self._plan(self._prepared(snapshot, stops))).start

    async def _plan(self, snapshot: PoolSnapshot) -> PoolPlan:
        """Decide; which of several nodes leaves, and when, depends on how they are used."""
        decided, now = await self._plan_once(snapshot), self._clock.now()
        free = pool_size.removable(snapshot, decided, now)
        free += retirements.asked_about(snapshot.record, snapshot.nodes.needs_attention, now)
        free += remedy_selection.asked_about(snapshot, now)
        free += renewals.asked_about(snapshot, now)
        free += obstacles.asked_about(snapshot, now)
        pool = snapshot.record.name
        if free:
            use = await self._node_use.read_with_work(pool, tuple(dict.fromkeys(free)))
            snapshot = replace(snapshot, use=use)
            decided = await self._plan_once(snapshot)
        if renewals.needs_room(decided):
            offered = await self._offered(pool)
            decided = await self._plan_once(replace(snapshot, offered=offered))
        return decided

    async def _offered(self, pool: str) -> list[OfferingView]:
        """Return the pool's offerings; none where the provisioner, which launches, is not there."""
        try:
            return await read_offerings(self._bus, pool)
        except (AnswerError, BusError, DecodeError) as error:
            log.info("offerings are not read", extra={"pool": pool, "reason": str(error)})
            return []

    async def _plan_once(self, snapshot: PoolSnapshot) -> PoolPlan:
        """Decide, with what the server has of the nodes that something would be done about."""
        news: dict[str, NodeRecord] = {}
        while True:
            decided = plan(snapshot, self._clock.now())
            if isinstance(snapshot.remediator, AskedRemediator) and await snapshot.remediator.ask():
                continue
            found = await self._news(snapshot, decided, news.keys())
            if not found:
                return decided
            news |= found
            nodes = Nodes([found.get(node.node, node) for node in snapshot.nodes])
            snapshot = replace(snapshot, nodes=nodes)

    async def _news(
        self, snapshot: PoolSnapshot, decided: PoolPlan, known: Collection[str]
    ) -> dict[str, NodeRecord]:
        """What the records lack of nodes that something would be begun about.

        One that would be remediated for silence beats; a notice of one that would leave for it is
        withdrawn.
        """
        pool, nodes = snapshot.record.name, snapshot.nodes.by_name
        begun = [each for each in decided.start.values() if each.node not in known]
        silent = [each.node for each in begun if is_for_silence(each.kind, each)]
        beating = await self._heartbeats.beating(pool, silent)
        if beating:
            log.warning(
                "recorded as lost, and beating: not remediated",
                extra={"pool": pool, "nodes": sorted(beating)},
            )
        found = {name: structs.replace(nodes[name], **FOUND) for name in beating}
        leaving = [nodes[each.node] for each in begun if each.notice and each.node in nodes]
        heard = await asyncio.gather(*(self._notices.heard(node) for node in leaving))
        withdrawn = {
            after.node: after
            for before, after in zip(leaving, heard, strict=True)
            if after != before
        }
        return {**withdrawn, **found}

    async def _publish_pending(self, record: PoolRecord) -> None:
        """Publish what was decided with a record; again, and the stream knows it by its id."""
        published = self._published.get(record.name, frozenset())
        for event in event_outbox.unpublished_events(record, published):
            await publish_event(self._bus, event)
            log_event(event)
        self._published[record.name] = event_outbox.outbox_contents(record)

    async def _clear(self, pool: str) -> None:
        """Remove published events from a pool's record, unless it is about to be written anyway."""
        if self._runs.waited_for(pool) or not self._published.get(pool):
            return
        async with self._store.deciding(pool):
            found = self._store.last_read(pool)
            if found is None or event_outbox.outbox_contents(found[0]) != self._published[pool]:
                return
            with suppress(Conflict):
                # Others have written it since: they take it off, or the next look does.
                await self._store.save_pool(event_outbox.without_events(found[0]), found[1])
                self._published[pool] = frozenset()

    async def _release(self, node: NodeRecord) -> None:
        """Publish the end of a hold, and remove it from the node's record.

        Published first: once the hold is off the record, a missing event could not be noticed.
        """
        found = await self._store.fresh_node(node.pool, node.node)
        if found is None or found.held_until != node.held_until:
            return
        end, fact = holds.expire(node, self._clock.now())
        await publish_event(self._bus, fact)

        def ended(record: NodeRecord | None) -> NodeRecord | None:
            same = record is not None and record.held_until == node.held_until
            return holds.with_hold(record, end) if same else None

        await self._store.change_node(node.pool, node.node, ended)

    async def start_open(self, record: PoolRecord) -> None:
        """Begin every saga that the record holds and that this process has not seen begun.

        A saga that has a log already is left alone, so a replica that died between the record and
        the log is completed by the next replica that looks.
        """
        if len(self._begun) > BEGUN_MAX:
            self._begun.clear()
        fresh = {saga: each for saga, each in record.open.items() if saga not in self._begun}
        if not fresh:
            return
        await self._store.record_openings(record)
        await asyncio.gather(*(self._start(record, saga, each) for saga, each in fresh.items()))

    def forget_begun(self) -> None:
        """Begin open sagas again whose logs may be lost."""
        self._begun.clear()

    async def begin_again(self, record: PoolRecord, saga: str) -> None:
        """Begin a saga of the record although this process may have begun it: its log is lost."""
        self._begun.discard(saga)
        await self._start(record, saga, record.open[saga])

    async def _start(self, record: PoolRecord, saga: str, opened: OpenSaga) -> None:
        async with self._starts:
            params = saga_params(self._store.fleet, record, opened)
            headers = {TRACEPARENT: opened.trace} if opened.trace else current_headers()
            if await self._coordinator().start(
                saga, opened.kind, params, cause=opened.fault or opened.cause, headers=headers
            ):
                log_saga(record, saga, opened)
            self._begun.add(saga)

    async def _wake(self, pool: str, at: datetime) -> None:
        due = TimerDue(id=f"wake-{pool}-{at.timestamp():.0f}", time=self._clock.now(), pool=pool)
        await self._bus.schedule(TIMER_OWNER, f"pool-{pool}", at, encode(due))


def _labels(record: PoolRecord, opened: OpenSaga) -> dict[str, str]:
    name = opened.workload_name
    return {**record.spec.labels, WORKLOAD_NAME: name} if name else record.spec.labels


def _choice(record: PoolRecord, opened: OpenSaga) -> Choice:
    """What a launch chooses from; one that is to save something waits for nothing dearer."""
    choice = choice_of(record.spec, record.avoid, not_spot=opened.not_spot)
    if not opened.max_dollars:
        return choice
    return structs.replace(choice, max_dollars=opened.max_dollars, fallback_seconds=0.0)


def _diagnostic(spec: PoolSpec, opened: OpenSaga) -> str:
    if opened.kind == "recheck":
        return diagnostic_of(opened.fault_signature)
    is_checked = opened.new_node or DEFINITIONS[opened.kind].in_place
    return spec.admission.diagnostic if is_checked else ""


def saga_params(fleet: str, record: PoolRecord, opened: OpenSaga) -> SagaParams:
    """Fix what a saga is about, from the pool's spec as it is now. Pure."""
    spec = record.spec
    launch = LaunchSpec(
        fleet=fleet,
        provider=spec.provider,
        instance_type=spec.instance_type,
        gpu_count=spec.gpu_count,
        region=spec.region,
        zones=admission_refusals.zones(spec.zones, record.avoid),
        ssh_keys=spec.ssh_keys,
        labels=_labels(record, opened),
        setup=setup_of(spec),
        user_data=spec.user_data,
        choice=_choice(record, opened) if says_more(spec) else None,
        gang=opened.gang,
        gang_size=opened.gang_size,
        gather_seconds=float(spec.placement.gather) if opened.gang else 0.0,
        fingerprint=record.launch_digests,
    )
    return SagaParams(
        pool=record.name,
        **traits_of(opened),
        order=opened.order or spec.replace_order,
        launch=launch if opened.new_node else None,
        drain=opened.drain or spec.drain,
        drain_timeout_seconds=float(
            spec.drain_timeout
            if opened.drain_timeout_seconds is None
            else opened.drain_timeout_seconds
        ),
        checkpoint_seconds=float(spec.checkpoint_timeout),
        launch_timeout_seconds=float(spec.launch_timeout),
        diagnostic=_diagnostic(spec, opened),
        diagnostic_timeout_seconds=float(spec.admission.timeout),
    )
